package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// readmeCommands returns the command lines of the README's sh blocks, in order.
func readmeCommands(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repoRoot(t), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	inside := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch {
		case line == "```sh":
			inside = true
		case strings.HasPrefix(line, "```"):
			inside = false
		case inside && line != "":
			commands = append(commands, line)
		}
	}
	return commands
}

// checkout copies the tree's files, as git knows them, to a folder of its own:
// what the commands leave behind stays out of the tree.
func checkout(t *testing.T) string {
	t.Helper()
	root, dir := repoRoot(t), t.TempDir()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	for _, name := range strings.Split(strings.TrimRight(string(out), "\x00"), "\x00") {
		data, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // removed and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o644)
		if info, err := os.Stat(filepath.Join(root, name)); err == nil {
			mode = info.Mode().Perm()
		}
		if err := os.WriteFile(to, data, mode); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestReadmeCommands runs every command of the README as it is written there,
// in its order, on the documented ports. `make test` is what runs this test.
func TestReadmeCommands(t *testing.T) {
	dir := checkout(t)
	const dev = "go run ./cmd/mqrouter dev"
	var running *process
	ran := 0
	for _, line := range readmeCommands(t) {
		switch {
		case line == "make test":
			continue
		case line == dev && running != nil:
			continue // the tour starts what runs already
		case line == dev+" --processes", line == dev+" --replicas 3":
			running.interrupt(t)
			running = shell(t, dir, "exec "+line)
			running.await(t, "Ctrl-C stops it", 5*time.Minute)
		case line == dev:
			running = shell(t, dir, "exec "+line)
			running.await(t, "Ctrl-C stops it", 5*time.Minute)
		default:
			p := shell(t, dir, line)
			select {
			case <-p.done:
			case <-time.After(3 * time.Minute):
				t.Fatalf("%s: does not end", line)
			}
			if p.err != nil {
				t.Errorf("%s: %v\n%s", line, p.err, p.output())
			}
			if strings.Contains(line, "/masters/") {
				running.await(t, "is master now", 3*time.Minute)
			}
		}
		ran++
	}
	if running == nil || ran < 10 {
		t.Errorf("ran %d commands of the README, dev among them: %v", ran, running != nil)
	}
}

// interrupt is Ctrl-C at the terminal: every process of the group gets it.
func (p *process) interrupt(t *testing.T) {
	t.Helper()
	syscall.Kill(-p.cmd.Process.Pid, syscall.SIGINT)
	select {
	case <-p.done:
	case <-time.After(time.Minute):
		t.Fatalf("%s did not stop within a minute of Ctrl-C", p.name)
	}
	if !strings.Contains(p.output(), "stopped; the data stays") { // `go run` itself ends with 1
		t.Errorf("%s ended with %v after Ctrl-C", p.name, p.err)
	}
}

// shell runs a command line in a folder.
func shell(t *testing.T, dir, line string) *process {
	t.Helper()
	return startIn(t, dir, line, nil, "bash", "-c", line)
}
