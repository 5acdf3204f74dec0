package redistest

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/internal/freeport"
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
	s := &Server{port: strconv.Itoa(port(t)), dir: t.TempDir(), args: args}
	s.Addr = net.JoinHostPort("127.0.0.1", s.port)
	s.Start(t)
	t.Cleanup(s.Kill)
	return s
}

// busAbove is by how much the port that nodes of a cluster use between them is above the
// one for clients.
const busAbove = 10_000

// port returns one that is the test's until it ends, as is that for the bus of a cluster.
func port(t testing.TB) int {
	t.Helper()
	for {
		if p := freeport.Take(t, 1)[0]; freeport.Claim(t, p+busAbove) {
			return p
		}
	}
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
