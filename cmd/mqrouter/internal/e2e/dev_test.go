package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/freeport"
	"github.com/mqrouter/mqrouter/zone/sample"
)

// deployment is a running `mqrouter dev`.
type deployment struct {
	*process
	dir    string
	offset int
	redis  map[string]string // city -> address; nil without Redis
}

var cities = []string{"shanghai", "hangzhou", "shenzhen"}

// port returns a documented port as this deployment has shifted it.
func (d *deployment) port(documented int) int { return documented + d.offset }

func (d *deployment) addr(documented int) string {
	return fmt.Sprintf("127.0.0.1:%d", d.port(documented))
}

// env lets commands find the deployment.
func (d *deployment) env() []string { return []string{"MQROUTER_ADMIN=" + d.addr(5101)} }

// offsetFor returns a port offset at which all of the sample's ports are the test's until
// it ends, and below the ephemeral range.
func offsetFor(t *testing.T) int {
	t.Helper()
	var bases []int
	for _, m := range regexp.MustCompile(`127\.0\.0\.1:(\d+)`).FindAllSubmatch(sample.YAML, -1) {
		port, err := strconv.Atoi(string(m[1]))
		if err != nil {
			t.Fatal(err)
		}
		bases = append(bases, port)
	}
	slices.Sort(bases)
	bases = slices.Compact(bases)
	for offset := 11000; offset < 22000; offset += 310 {
		if freeport.Claim(t, shiftedAll(bases, offset)...) {
			return offset
		}
	}
	t.Fatal("no free range of ports for the sample deployment")
	return 0
}

func shiftedAll(ports []int, offset int) []int {
	all := make([]int, len(ports))
	for i, p := range ports {
		all[i] = p + offset
	}
	return all
}

// startDev runs `mqrouter dev` until the test ends.
func startDev(t *testing.T, dir string, offset int, redis map[string]string) *deployment {
	t.Helper()
	args := []string{"dev", "--dir", dir, "--port-offset", fmt.Sprint(offset)}
	for city, addr := range redis {
		args = append(args, "--redis", city+"="+addr)
	}
	d := &deployment{process: start(t, "mqrouter dev", nil, binary, args...), dir: dir, offset: offset, redis: redis}
	d.await(t, "Ctrl-C stops it", 2*time.Minute)
	return d
}

// shared is the deployment that the read-mostly tests use together; each uses
// topics, users or keys of its own.
var shared struct {
	once  sync.Once
	parts []*exec.Cmd // in order of start
	d     *deployment
	err   error
}

// sharedDev returns the shared deployment, with a Redis for each city when
// there is one.
func sharedDev(t *testing.T) *deployment {
	t.Helper()
	shared.once.Do(func() { shared.d, shared.err = launchShared(t) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.d
}

func launchShared(t *testing.T) (*deployment, error) {
	d := &deployment{offset: offsetFor(t)}
	dir, err := os.MkdirTemp("", "mqrouter-shared-")
	if err != nil {
		return nil, err
	}
	d.dir = dir
	args := []string{"dev", "--dir", filepath.Join(dir, "dev"), "--port-offset", fmt.Sprint(d.offset)}
	if _, err := exec.LookPath("redis-server"); err == nil {
		d.redis = map[string]string{}
		for i, port := range freePorts(t, len(cities)) {
			d.redis[cities[i]] = fmt.Sprintf("127.0.0.1:%d", port)
			if _, err := launch("Ready to accept connections", "redis-server", "--port", fmt.Sprint(port), "--bind", "127.0.0.1",
				"--save", "", "--appendonly", "no", "--dir", dir); err != nil {
				return nil, err
			}
			args = append(args, "--redis", cities[i]+"="+d.redis[cities[i]])
		}
	}
	d.process, err = launch("Ctrl-C stops it", binary, args...)
	return d, err
}

// launch starts a program of the shared deployment and waits for its word.
func launch(word, program string, args ...string) (*process, error) {
	p := &process{name: program, hit: map[string]chan struct{}{}, done: make(chan struct{}), cmd: exec.Command(program, args...)}
	ready := make(chan struct{})
	p.hit[word] = ready
	p.cmd.Stdout, p.cmd.Stderr = p, p
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	shared.parts = append(shared.parts, p.cmd)
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	select {
	case <-ready:
		return p, nil
	case <-p.done:
		return nil, fmt.Errorf("%s ended: %w\n%s", program, p.err, p.output())
	case <-time.After(2 * time.Minute):
		return nil, fmt.Errorf("%s did not say %q\n%s", program, word, p.output())
	}
}

// stopShared ends the shared deployment and reports how `mqrouter dev` ended.
func stopShared() error {
	var err error
	if d := shared.d; d != nil && d.process != nil {
		d.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-d.done:
			err = d.err
		case <-time.After(time.Minute):
			err = errors.New("did not stop within a minute of SIGTERM")
		}
		if err != nil {
			err = fmt.Errorf("the shared mqrouter dev: %w\n%s", err, d.output())
		}
	}
	for _, cmd := range shared.parts {
		cmd.Process.Kill()
	}
	if shared.d != nil {
		os.RemoveAll(shared.d.dir)
	}
	return err
}
