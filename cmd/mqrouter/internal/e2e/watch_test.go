package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
)

// screen is a program on a terminal of its own.
type screen struct {
	tty  *os.File
	cmd  *exec.Cmd
	read chan struct{} // closed when the terminal is gone

	mu  sync.Mutex
	out bytes.Buffer // guarded by mu
}

func onScreen(t *testing.T, env []string, args ...string) *screen {
	t.Helper()
	s := &screen{cmd: exec.CommandContext(t.Context(), binary, args...), read: make(chan struct{})}
	s.cmd.Env = append(os.Environ(), env...)
	var err error
	if s.tty, err = pty.StartWithSize(s.cmd, &pty.Winsize{Rows: 24, Cols: 80}); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.read)
		b := make([]byte, 32<<10)
		for {
			n, err := s.tty.Read(b)
			s.mu.Lock()
			s.out.Write(b[:n])
			s.mu.Unlock()
			if err != nil {
				return // the program has ended
			}
		}
	}()
	return s
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

// await waits for a frame with the text after the first n bytes.
func (s *screen) await(t *testing.T, n int, text string) {
	t.Helper()
	eventually(t, "the screen shows "+text, time.Minute, func() error {
		if out := s.text(); len(out) < n || !strings.Contains(out[n:], text) {
			return errors.New("not yet")
		}
		return nil
	})
}

func (s *screen) press(t *testing.T, key string) {
	t.Helper()
	if _, err := s.tty.WriteString(key); err != nil {
		t.Fatal(err)
	}
}

// end waits for the program and returns its exit code.
func (s *screen) end(t *testing.T) int {
	t.Helper()
	_ = s.cmd.Wait() // the code says it
	<-s.read
	s.tty.Close()
	return s.cmd.ProcessState.ExitCode()
}

// TestStatusWatchOnATerminal uses it as a person does.
func TestStatusWatchOnATerminal(t *testing.T) {
	d := sharedDev(t)
	s := onScreen(t, append(d.env(), "TERM=xterm", "NO_COLOR="), "status", "--watch", "--interval", "300ms")
	s.await(t, 0, "link ends")
	s.await(t, 0, "s sort: trouble")
	for _, step := range [][2]string{{"s", "s sort: name"}, {"\t", "tab show: links"}, {" ", "paused"}} {
		n := len(s.text())
		s.press(t, step[0])
		s.await(t, n, step[1])
	}
	s.press(t, "q")
	if code := s.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	out := s.text()
	if !strings.HasPrefix(out, "\x1b[?1049h") || !strings.HasSuffix(out, "\x1b[?1049l") {
		t.Error("the terminal is not left as it was")
	}
	if !strings.Contains(out, "\x1b[1m") {
		t.Error("no colours on a terminal")
	}
	plain := onScreen(t, append(d.env(), "TERM=xterm", "NO_COLOR=1"), "status", "--watch", "--interval", "300ms")
	plain.await(t, 0, "link ends")
	plain.press(t, "\x03") // Ctrl-C
	if code := plain.end(t); code != 0 {
		t.Errorf("exit code %d after Ctrl-C", code)
	}
	if strings.Contains(plain.text(), "\x1b[1m") || strings.Contains(plain.text(), "\x1b[3") {
		t.Error("colours although NO_COLOR is set")
	}
}

// TestStatusWatchInAPipe prints samples one below the other, without a trace of
// a terminal.
func TestStatusWatchInAPipe(t *testing.T) {
	d := sharedDev(t)
	out := must(t, d.env(), "status", "--watch", "--interval", "200ms", "--count", "3")
	if n := strings.Count(out, "link ends"); n != 3 || strings.Contains(out, "\x1b") {
		t.Errorf("%d samples:\n%s", n, out)
	}
	type node struct {
		Node string `json:"node"`
	}
	lines := strings.Split(strings.TrimSpace(must(t, d.env(), "status", "--watch", "--interval", "200ms", "--count", "2", "-o", "json")), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines of JSON, want 2", len(lines))
	}
	if nodes := decode[[]node](t, lines[1]); len(nodes) < 10 {
		t.Errorf("%d nodes", len(nodes))
	}
}
