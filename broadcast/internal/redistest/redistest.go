package redistest

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Server is a private Redis. It is used by the test's goroutine.
type Server struct {
	Addr string // host:port, the same after every Start
	port string
	dir  string
	args []string
	cmd  *exec.Cmd
	done chan struct{} // closed when the output has ended
}

// Start starts a Redis, with more arguments, that ends with the test. Without
// the binary the test is skipped, unless CI=true.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("redis-server is not installed, and CI=true needs it")
		}
		t.Skip("redis-server is not installed")
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a loopback port for a test
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Addr: ln.Addr().String(), dir: t.TempDir(), args: args}
	ln.Close()
	if _, s.port, err = net.SplitHostPort(s.Addr); err != nil {
		t.Fatal(err)
	}
	s.Start(t)
	t.Cleanup(s.Kill)
	return s
}

// Start runs the process and returns when it accepts connections.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	args := append([]string{"--port", s.port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", s.dir}, s.args...)
	s.cmd = exec.Command("redis-server", args...) //nolint:noctx // Kill ends it
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan bool, 1)
	done := make(chan struct{})
	s.done = done
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if strings.Contains(lines.Text(), "eady to accept connections") {
				select {
				case ready <- true:
				default: // said before
				}
			}
		}
	}()
	select {
	case <-ready:
	case <-done:
		t.Fatalf("redis-server %v did not start", args)
	}
}

// Kill is kill -9. A second one does nothing.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill() // it may have ended by itself
	<-s.done
	_ = s.cmd.Wait() // says that it was killed
	s.cmd = nil
}
