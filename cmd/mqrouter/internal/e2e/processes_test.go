package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startProcesses runs `mqrouter dev --processes` until the test ends.
func startProcesses(t *testing.T, args ...string) *deployment {
	t.Helper()
	d := &deployment{dir: filepath.Join(t.TempDir(), "dev"), offset: offsetFor(t)}
	all := append([]string{"dev", "--processes", "--dir", d.dir, "--port-offset", fmt.Sprint(d.offset)}, args...)
	d.process = start(t, "mqrouter dev --processes", nil, binary, all...)
	d.await(t, "Ctrl-C stops it", 2*time.Minute)
	return d
}

// pid is what the pid file of a node says, 0 without one.
func (d *deployment) pid(node string) int {
	b, err := os.ReadFile(filepath.Join(d.dir, "pids", node))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(b)))
	if err != nil {
		return 0 // it is being written
	}
	return pid
}

// pids are those of all nodes that run.
func (d *deployment) pids(t *testing.T) map[string]int {
	t.Helper()
	files, err := os.ReadDir(filepath.Join(d.dir, "pids"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	for _, f := range files {
		all[f.Name()] = d.pid(f.Name())
	}
	return all
}

// lives reports whether a process runs; one that is dead and not waited for does not.
func lives(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	state := stat[bytes.LastIndexByte(stat, ')')+1:]
	return !bytes.HasPrefix(bytes.TrimSpace(state), []byte("Z"))
}

// allDie waits until none of the processes runs.
func allDie(t *testing.T, pids map[string]int) {
	t.Helper()
	eventually(t, "no process is left", time.Minute, func() error {
		for name, pid := range pids {
			if lives(pid) {
				return fmt.Errorf("%s (pid %d) runs", name, pid)
			}
		}
		return nil
	})
}

// TestProcessesAreSupervised kills a node of `mqrouter dev --processes`: it is
// told, started again with what it had, and a stop ends all, a frozen one too.
func TestProcessesAreSupervised(t *testing.T) {
	d := startProcesses(t, "--restart", "100ms")
	pids := d.pids(t)
	if len(pids) != 20 {
		t.Errorf("%d pid files, the sample has 20 nodes: %v", len(pids), pids)
	}
	type status struct {
		Node string `json:"node"`
		PID  int    `json:"pid"`
	}
	for _, s := range decode[[]status](t, must(t, d.env(), "status", "-o", "json")) {
		if s.PID != pids[s.Node] {
			t.Errorf("the status of %s says pid %d, its file %d", s.Node, s.PID, pids[s.Node])
		}
	}
	const victim = "rz04-a-1"
	must(t, d.env(), "publish", "--zone", "rz01", "--topic", "transfer", "--property", "userId=1065", "pay 10")
	if err := syscall.Kill(pids[victim], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	must(t, d.env(), "publish", "--zone", "rz01", "--topic", "transfer", "--property", "userId=1065", "pay 11")
	out := must(t, d.env(), "consume", "--zone", "rz04", "--topic", "transfer", "--group", "transfer-credit", "--count", "2")
	if !strings.Contains(out, "pay 10") || !strings.Contains(out, "pay 11") {
		t.Errorf("received after the kill:\n%s", out)
	}
	d.await(t, fmt.Sprintf("%s (pid %d) was ended by the signal: killed; starting it again in 100ms", victim, pids[victim]), time.Minute)
	d.await(t, victim+" serves again", time.Minute)
	if again := d.pid(victim); again == pids[victim] || !lives(again) {
		t.Errorf("%s has pid %d after %d", victim, again, pids[victim])
	}
	pids = d.pids(t)
	syscall.Kill(pids["rt-hz-1"], syscall.SIGSTOP)
	d.stop(t, time.Minute)
	allDie(t, pids)
	if left := d.pids(t); len(left) > 0 {
		t.Errorf("pid files are left: %v", left)
	}
}

// TestProcessesEndWithDev ends dev in the ways that leave no time for a stop:
// with a second signal, and with SIGKILL.
func TestProcessesEndWithDev(t *testing.T) {
	d := startProcesses(t, "--only", "shanghai")
	pids := d.pids(t)
	if len(pids) != 8 {
		t.Errorf("--only shanghai runs %v", pids)
	}
	syscall.Kill(pids["rz01-a-1"], syscall.SIGSTOP) // thawed, it would stop in time
	d.cmd.Process.Signal(syscall.SIGTERM)
	d.await(t, "stopping", time.Minute)
	d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.done:
	case <-time.After(time.Minute):
		t.Error("a second signal does not end dev")
	}
	allDie(t, pids)
	if runtime.GOOS != "linux" {
		return // only its kernel can
	}
	d = startProcesses(t, "--only", "shenzhen", "--restart", "0")
	pids = d.pids(t)
	syscall.Kill(pids["rz05-a-1"], syscall.SIGKILL)
	d.await(t, "start it again with", time.Minute)
	if err := d.cmd.Process.Kill(); err != nil { // the process alone, not its group
		t.Fatal(err)
	}
	<-d.done
	allDie(t, pids)
}

// TestAProcessThatCannotStartIsExplained: a port that is taken ends dev, with the
// node's own words.
func TestAProcessThatCannotStartIsExplained(t *testing.T) {
	offset := offsetFor(t)
	out, err := mqrouter(t, nil, "dev", "--processes", "--dir", filepath.Join(t.TempDir(), "dev"), "--port-offset", fmt.Sprint(offset), "--only", "nowhere")
	if err == nil || !strings.Contains(err.Error(), `"nowhere"`) {
		t.Errorf("--only nowhere: %v\n%s", err, out)
	}
	first := &deployment{dir: filepath.Join(t.TempDir(), "dev"), offset: offset}
	first.process = start(t, "the first", nil, binary, "dev", "--processes", "--dir", first.dir, "--port-offset", fmt.Sprint(offset), "--only", "rt-sz-1")
	first.await(t, "Ctrl-C stops it", time.Minute)
	out, err = mqrouter(t, nil, "dev", "--processes", "--dir", filepath.Join(t.TempDir(), "dev"), "--port-offset", fmt.Sprint(offset), "--only", "rt-sz-1")
	if err == nil || !strings.Contains(err.Error(), "address already in use") || !strings.Contains(err.Error(), "--port-offset") {
		t.Errorf("on taken ports: %v\n%s", err, out)
	}
}
