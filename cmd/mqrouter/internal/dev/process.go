package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	// stopBound is how long a process may take after SIGTERM: the grace that it
	// was given, and time for a busy machine. Then it is killed.
	stopBound = grace + 13*time.Second
	// maxPause bounds the doubling pause between starts of a node that dies soon
	// after each (as RestartMaxDelaySec of the systemd units).
	maxPause = 30 * time.Second
	// steady is how long a node has to live for its next death to be a new one.
	steady = time.Minute
	// askEvery and askTimeout are how a starting process is asked whether it serves.
	askEvery   = 100 * time.Millisecond
	askTimeout = 2 * time.Second
	// lastWords (bytes) and lastLines bound how much of its log a process that
	// fails to start is quoted with: the error comes last.
	lastWords = 2 << 10
	lastLines = 3
)

// process keeps one node running as a process of its own until ctx ends. A node
// that dies before it ever served is an error: its configuration does not work.
func (d *deployment) process(ctx context.Context, n *zone.NodeInfo) error {
	var pause time.Duration
	for first := true; ; first = false {
		began := time.Now()
		p, err := d.spawn(ctx, n)
		if err != nil {
			return err
		}
		served := d.attend(ctx, p, first)
		how := p.end()
		if ctx.Err() != nil {
			return p.stopped(how)
		}
		if first && !served {
			return fmt.Errorf("%s before it served; the end of %s:\n%s", how, d.f.nodeLog(n.Name), tail(d.f.nodeLog(n.Name)))
		}
		if d.o.Restart == 0 {
			d.say("%s (pid %d) %s; start it again with\n  %s %s", n.Name, p.pid, how, d.o.Program, strings.Join(d.args(n), " "))
			<-ctx.Done()
			return nil
		}
		pause = nextPause(pause, d.o.Restart, time.Since(began))
		d.say("%s (pid %d) %s; starting it again in %v", n.Name, p.pid, how, pause)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// nextPause is how long to wait before a node is started again that lived for
// lived, after a pause of last (0: it is its first death): base, doubled up to
// maxPause while deaths follow each other.
func nextPause(last, base, lived time.Duration) time.Duration {
	if last == 0 || lived > steady {
		return base
	}
	return max(base, min(2*last, maxPause))
}

// args is the command line of a node. What it says wins over the environment.
func (d *deployment) args(n *zone.NodeInfo) []string {
	c := d.config(n)
	args := []string{n.Role.String(), "--name", c.Name, "--topology", c.Topology, "--pki", c.PKI,
		"--grace", c.Grace.String(), "--log-level", strings.ToLower(d.o.LogLevel.String())}
	args = append(args, c.Trace.Args()...)
	switch n.Role {
	case zone.RoleCacheSync:
		args = append(args, "--group", c.Group)
		if c.Redis != "" {
			args = append(args, "--redis", c.Redis, "--redis-prefix", c.RedisPrefix)
		}
	case zone.RoleCoordinator:
		args = append(args, "--data-dir", c.DataDir)
	case zone.RoleBroker:
		args = append(args, "--data-dir", c.DataDir, "--segment-size", strconv.FormatInt(limits.SegmentBytes>>20, 10)+"MiB", "--acl", c.ACL)
	}
	return args
}

// child is a running process.
type child struct {
	n    *zone.NodeInfo
	cmd  *exec.Cmd
	pid  int
	done chan struct{} // closed when it has ended and its pid file is gone
	err  error         // of Wait; read after done
}

// spawn starts a node's process. When ctx ends it is asked to stop; a frozen one
// is thawed, so that it hears. It is killed when it takes longer than stopBound.
func (d *deployment) spawn(ctx context.Context, n *zone.NodeInfo) (*child, error) {
	log, err := os.OpenFile(d.f.nodeLog(n.Name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, d.exe, d.args(n)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = apart()
	cmd.WaitDelay = stopBound
	cmd.Cancel = func() error {
		err := cmd.Process.Signal(syscall.SIGTERM)
		return errors.Join(err, cmd.Process.Signal(syscall.SIGCONT))
	}
	if err := d.starter.start(cmd); err != nil {
		return nil, err
	}
	p := &child{n: n, cmd: cmd, pid: cmd.Process.Pid, done: make(chan struct{})}
	pidFile := d.f.pid(n.Name)
	if err := os.WriteFile(pidFile, fmt.Appendf(nil, "%d\n", p.pid), 0o644); err != nil {
		d.say("%s runs as pid %d, which cannot be written down: %v", n.Name, p.pid, err)
	}
	d.track(p, true)
	go func() {
		p.err = cmd.Wait()
		d.track(p, false)
		os.Remove(pidFile) //nolint:errcheck // a stale one is overwritten by the next start
		close(p.done)
	}()
	return p, nil
}

// attend waits until the process serves, says so, and waits for its end. It
// returns whether it ever served.
func (d *deployment) attend(ctx context.Context, p *child, first bool) bool {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for !d.serves(ctx, p) {
		select {
		case <-p.done:
			return false
		case <-tick.C:
		}
	}
	if first {
		select {
		case d.ready <- p.n.Name:
		case <-ctx.Done():
		}
	} else {
		d.say("%s serves again, as pid %d", p.n.Name, p.pid)
	}
	<-p.done
	return true
}

// serves asks the node itself; its pid tells it from a stranger on its address.
// One without an admin address is taken at its life.
func (d *deployment) serves(ctx context.Context, p *child) bool {
	if p.n.Admin == "" {
		return true
	}
	s, err := d.ask.Status(ctx, p.n.Admin)
	return err == nil && s.Ready && s.PID == p.pid
}

// end waits for the process and says in words how it ended.
func (p *child) end() string {
	<-p.done
	state := p.cmd.ProcessState
	if state == nil {
		return fmt.Sprintf("is lost: %v", p.err)
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return "was ended by the signal: " + ws.Signal().String()
	}
	return fmt.Sprintf("ended with exit code %d", state.ExitCode())
}

// stopped judges how a process ended that was told to.
func (p *child) stopped(how string) error {
	state := p.cmd.ProcessState
	switch {
	case state == nil:
		return errors.New(how)
	case state.Success():
		return nil
	}
	ws, ok := state.Sys().(syscall.WaitStatus)
	if ok && ws.Signaled() && ws.Signal() == syscall.SIGTERM {
		return nil // it was so young that it did not handle signals yet
	}
	return fmt.Errorf("%s while it was to stop, for which it has %v", how, stopBound)
}

// tail is the end of a log.
func tail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if end, err := f.Seek(0, io.SeekEnd); err == nil {
		f.Seek(max(0, end-lastWords), io.SeekStart) //nolint:errcheck // read from wherever it stands
	}
	b, err := io.ReadAll(io.LimitReader(f, lastWords))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-lastLines):], "\n")
}

// track keeps the set of living processes, for kill.
func (d *deployment) track(p *child, lives bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if lives {
		d.alive[p] = struct{}{}
		if d.killed {
			p.cmd.Process.Kill() //nolint:errcheck // it has ended by itself
		}
		return
	}
	delete(d.alive, p)
}

// kill ends every process at once, also those that start from now on.
func (d *deployment) kill() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.killed = true
	for p := range d.alive {
		p.cmd.Process.Kill() //nolint:errcheck // it has ended by itself
	}
}

// heedSecondSignal kills every process when one more signal comes during the
// stop. The returned function ends the watch.
func (d *deployment) heedSecondSignal() (end func()) {
	again, over, done := make(chan os.Signal, 1), make(chan struct{}), make(chan struct{})
	signal.Notify(again, os.Interrupt, syscall.SIGTERM)
	go func() {
		defer close(done)
		select {
		case <-again:
			d.say("killing what still runs")
			d.kill()
		case <-over:
		}
	}()
	return func() {
		signal.Stop(again)
		close(over)
		<-done
	}
}

// supervise makes what processes need: their folders, and the program itself.
func (d *deployment) supervise() (stop func(), err error) {
	if d.exe, err = os.Executable(); err != nil {
		return nil, fmt.Errorf("dev: the path of this program: %w", err)
	}
	for _, dir := range []string{filepath.Dir(d.f.nodeLog("x")), filepath.Dir(d.f.pid("x")), filepath.Dir(d.f.lock("x")), filepath.Dir(d.f.master("x"))} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("dev: %w", err)
		}
	}
	unlock, err := d.lock()
	if err != nil {
		return nil, err
	}
	d.alive = map[*child]struct{}{}
	d.ask = admin.NewClient(nil, askTimeout)
	d.starter = newStarter()
	return func() {
		d.starter.close()
		unlock()
	}, nil
}

// lock takes the nodes, so that a second dev of the same folder does not write
// over the pid files of those that run. Others of its nodes may run elsewhere.
func (d *deployment) lock() (unlock func(), err error) {
	var held []io.Closer
	unlock = func() {
		for _, l := range held {
			l.Close() // the lock ends with the file, whatever is said
		}
	}
	for _, n := range d.nodes {
		l, err := disk.OS{}.Lock(d.f.lock(n.Name))
		if err != nil {
			unlock()
			return nil, fmt.Errorf("dev: %s: %w", n.Name, err)
		}
		held = append(held, l)
	}
	return unlock, nil
}
