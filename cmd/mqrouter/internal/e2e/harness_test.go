package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/freeport"
)

// binary is the mqrouter under test, built once by TestMain.
var binary string

// breakable is one with a layer that breaks its disk and clock (package faults), built
// when a test asks for it.
var breakable = sync.OnceValues(func() (string, error) {
	path := binary + "-faults"
	return path, build(path, "-tags", "faults")
})

// build builds the command.
func build(path string, args ...string) error {
	all := append([]string{"build", "-o", path}, args...)
	if os.Getenv("MQROUTER_RACE") != "" { // the processes under test get the race detector
		all = append(all, "-race")
	}
	if out, err := exec.Command("go", append(all, "github.com/mqrouter/mqrouter/cmd/mqrouter")...).CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	return nil
}

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "mqrouter-e2e-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "mqrouter")
		if err := build(binary); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		code := m.Run()
		if err := stopShared(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return code
	}())
}

// need skips the test when a command is missing, or fails it with CI=true.
func need(t *testing.T, commands ...string) {
	t.Helper()
	for _, c := range commands {
		if _, err := exec.LookPath(c); err != nil {
			missing(t, c)
		}
	}
}

func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is missing and CI=true", what)
	}
	t.Skipf("skipped: %s is missing", what)
}

func repoRoot(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// process is a started program whose output is kept for the failure report.
type process struct {
	name string
	cmd  *exec.Cmd
	mu   sync.Mutex
	out  bytes.Buffer             // guarded by mu
	hit  map[string]chan struct{} // guarded by mu: texts waited for
	done chan struct{}            // closed when the process has ended
	err  error                    // of Wait; read after done
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out.Write(b)
	for text, c := range p.hit {
		if bytes.Contains(p.out.Bytes(), []byte(text)) {
			close(c)
			delete(p.hit, text)
		}
	}
	return len(b), nil
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// start runs a program until the test ends; a failed test prints its output.
func start(t *testing.T, name string, env []string, program string, args ...string) *process {
	t.Helper()
	return startIn(t, "", name, env, program, args...)
}

// startIn is start in a folder. The program leads a process group of its own,
// which is ended as a whole: `go run` has a child.
func startIn(t *testing.T, dir, name string, env []string, program string, args ...string) *process {
	t.Helper()
	p := &process{name: name, hit: map[string]chan struct{}{}, done: make(chan struct{})}
	p.cmd = exec.Command(program, args...)
	p.cmd.Dir = dir
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.WaitDelay = 5 * time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			text := p.output()
			if len(text) > 6000 {
				text = text[:2000] + "\n...\n" + text[len(text)-4000:]
			}
			t.Logf("output of %s:\n%s", name, text)
		}
	})
	return p
}

// await waits until the output holds the text.
func (p *process) await(t *testing.T, text string, within time.Duration) {
	t.Helper()
	c := make(chan struct{})
	p.mu.Lock()
	if bytes.Contains(p.out.Bytes(), []byte(text)) {
		close(c)
	} else {
		p.hit[text] = c
	}
	p.mu.Unlock()
	select {
	case <-c:
	case <-p.done:
		t.Fatalf("%s ended (%v) before it said %q", p.name, p.err, text)
	case <-time.After(within):
		t.Fatalf("%s did not say %q within %v", p.name, text, within)
	}
}

// kill sends SIGKILL and waits.
func (p *process) kill() {
	syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
}

// stop sends SIGTERM and fails the test unless the process ends well in time.
func (p *process) stop(t *testing.T, within time.Duration) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("%s: %v", p.name, err)
	}
	select {
	case <-p.done:
	case <-time.After(within):
		p.kill()
		t.Fatalf("%s did not stop within %v of SIGTERM", p.name, within)
	}
	if p.err != nil {
		t.Errorf("%s ended with %v after SIGTERM", p.name, p.err)
	}
}

// mqrouter runs a command of the binary to its end and returns its output.
func mqrouter(t *testing.T, env []string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), env...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("mqrouter %s: %w: %s", strings.Join(args, " "), err, errOut.String())
	}
	return out.String(), err
}

// must is mqrouter for commands that have to succeed.
func must(t *testing.T, env []string, args ...string) string {
	t.Helper()
	out, err := mqrouter(t, env, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// eventually repeats check until it returns nil; within bounds a hang, it is
// not a promise of speed.
func eventually(t *testing.T, what string, within time.Duration, check func() error) {
	t.Helper()
	deadline := time.After(within)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var err error
	for {
		if err = check(); err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not within %v: %v", what, within, err)
		}
	}
}

// jsonLines decodes one value for each line.
func jsonLines[T any](t *testing.T, text string) []T {
	t.Helper()
	var all []T
	sc := bufio.NewScanner(strings.NewReader(text))
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		if len(bytes.TrimSpace(sc.Bytes())) == 0 {
			continue
		}
		var v T
		if err := json.Unmarshal(sc.Bytes(), &v); err != nil {
			t.Fatalf("line %q: %v", sc.Text(), err)
		}
		all = append(all, v)
	}
	return all
}

// freePorts returns n ports of the loopback that are the test's until it ends.
func freePorts(t *testing.T, n int) []int {
	t.Helper()
	return freeport.Take(t, n)
}

var _ io.Writer = (*process)(nil)
