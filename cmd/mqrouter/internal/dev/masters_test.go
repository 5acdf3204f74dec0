package dev

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

// told collects what is said.
type told struct {
	mu    sync.Mutex
	text  bytes.Buffer
	wrote chan struct{} // capacity 1
}

func (s *told) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case s.wrote <- struct{}{}:
	default:
	}
	return s.text.Write(b)
}

func (s *told) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// TestWhoBecomesMasterIsTold: the pid of the newest epoch's master is kept, also while the
// one before still believes that it is, and the one after is told with the time between.
func TestWhoBecomesMasterIsTold(t *testing.T) {
	text, err := sample.Replicated(3)
	if err != nil {
		t.Fatal(err)
	}
	top, err := zone.Parse(text, "replicas")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	says := map[zone.Node]admin.Status{} // guarded by mu
	set := func(n zone.Node, role string, epoch uint64, pid int) {
		mu.Lock()
		defer mu.Unlock()
		says[n] = admin.Status{Node: string(n), PID: pid, Member: &admin.Member{Role: role, Epoch: epoch}}
	}
	group := top.FindGroup("rz01-a")
	for _, n := range group.Nodes {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			json.NewEncoder(w).Encode(says[n.Name])
		}))
		t.Cleanup(s.Close)
		n.Admin = strings.TrimPrefix(s.URL, "http://")
	}
	out := &told{wrote: make(chan struct{}, 1)}
	d := &deployment{o: Options{Out: out, Processes: true}, f: folder{t.TempDir()}, t: top, nodes: group.Nodes, ask: admin.NewClient(nil, time.Minute)}
	stop, err := d.supervise()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { d.watchMasters(ctx) })
	pid := func(want string) {
		t.Helper()
		tick, end := time.NewTicker(10*time.Millisecond), time.After(3*time.Minute)
		defer tick.Stop()
		for {
			b, err := os.ReadFile(d.f.master("rz01-a"))
			if got := strings.TrimSpace(string(b)); got == want && (err == nil || want == "") {
				return
			}
			select {
			case <-tick.C:
			case <-end:
				t.Fatalf("the master's pid is %q, %v; want %q", b, err, want)
			}
		}
	}
	set("rz01-a-1", "master", 1, 101)
	pid("101")
	set("rz01-a-1", "replica", 1, 101)
	pid("")
	set("rz01-a-3", "master", 2, 103)
	set("rz01-a-1", "master", 1, 101) // it was frozen, and has not heard yet
	pid("103")
	<-out.wrote
	if got := out.String(); !strings.Contains(got, "rz01-a: rz01-a-3 is master now, of epoch 2, after ") || strings.Contains(got, "rz01-a-1 is master") {
		t.Errorf("told: %s", got)
	}
}
