package consul

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/mqrouter/mqrouter/internal/freeport"
)

// binary returns the Consul server that deploy/test/needs.sh builds, or skips.
func binary(t *testing.T) string {
	t.Helper()
	mod, err := os.ReadFile("../../../deploy/test/consul/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(home, ".cache")
	}
	sum := sha256.Sum256(mod)
	path := filepath.Join(cache, "mqrouter", "bin", "consul-"+hex.EncodeToString(sum[:])[:16])
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%v, and CI=true: make needs builds it", err)
		}
		t.Skipf("%v: make needs builds it", err)
	}
	return path
}

// server is one Consul server, in a process of its own.
type server struct {
	t      *testing.T
	binary string
	dir    string
	args   []string
	http   string // address
	serf   string

	mu  sync.Mutex
	cmd *exec.Cmd     // nil = not running; guarded by mu
	log *bytes.Buffer // what it said since its last start; read when it has ended
}

// servers starts n Consul servers that are one cluster with a leader.
func servers(t *testing.T, n int) []*server {
	t.Helper()
	bin := binary(t)
	ports := freeport.Take(t, 4*n)
	var all []*server
	var join []string
	for i := range n {
		p := ports[4*i : 4*i+4]
		s := &server{t: t, binary: bin, dir: t.TempDir(), http: fmt.Sprintf("127.0.0.1:%d", p[0]), serf: fmt.Sprintf("127.0.0.1:%d", p[2])}
		s.args = []string{"agent", "-server", fmt.Sprintf("-bootstrap-expect=%d", n), "-bind=127.0.0.1", "-client=127.0.0.1",
			"-node", fmt.Sprintf("c%d", i+1), "-data-dir", s.dir, "-log-level=warn", "-hcl",
			fmt.Sprintf(`ports { http = %d server = %d serf_lan = %d dns = -1 grpc = -1 grpc_tls = -1 https = -1 serf_wan = -1 } performance { raft_multiplier = 1 } connect { enabled = false } disable_update_check = true leave_on_terminate = false`, p[0], p[1], p[2])}
		join = append(join, "-retry-join="+s.serf)
		all = append(all, s)
	}
	for _, s := range all {
		s.args = append(s.args, join...)
		s.start()
		t.Cleanup(s.kill)
	}
	awaitLeader(t, all)
	return all
}

func (s *server) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = &bytes.Buffer{}
	s.cmd = exec.Command(s.binary, s.args...) //nolint:gosec // the test's own
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		s.t.Error(err)
		s.cmd = nil
	}
}

// kill ends the process as a crash does.
func (s *server) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill() // it may have ended
	_ = s.cmd.Wait()         // killed
	s.cmd = nil
	if s.t.Failed() {
		s.t.Logf("%s:\n%.4000s", s.http, s.log)
	}
}

func (s *server) client() *api.Client {
	c, err := api.NewClient(&api.Config{Address: s.http, HttpClient: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// leads says whether the server says that it leads.
func (s *server) leads() bool {
	self, err := s.client().Operator().RaftGetConfiguration(nil)
	if err != nil {
		return false
	}
	for _, x := range self.Servers {
		if x.Leader && strings.HasSuffix(s.serverAddr(), strings.TrimPrefix(x.Address, "127.0.0.1")) {
			return true
		}
	}
	return false
}

func (s *server) serverAddr() string {
	for _, a := range s.args {
		if i := strings.Index(a, "server = "); i >= 0 {
			port, _, _ := strings.Cut(a[i+len("server = "):], " ")
			return "127.0.0.1:" + port
		}
	}
	return ""
}

// patience bounds what is waited for; a busy machine may need some of it.
const patience = 3 * time.Minute

func awaitLeader(t *testing.T, all []*server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, s := range all {
			if l, err := s.client().Status().Leader(); err == nil && l != "" {
				if _, err := s.client().KV().Put(&api.KVPair{Key: "ready", Value: []byte("1")}, nil); err == nil {
					return
				}
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("Consul gets no leader")
		}
	}
}

// disturb kills a server, rather the one that leads, and starts it again at once or
// later.
func disturb(all []*server) func(*rand.Rand) func() {
	return func(r *rand.Rand) func() {
		s := all[r.IntN(len(all))]
		if r.IntN(3) > 0 {
			for _, x := range all {
				if x.leads() {
					s = x
				}
			}
		}
		s.kill()
		if r.IntN(2) == 0 {
			s.start()
			return func() {}
		}
		return s.start
	}
}
