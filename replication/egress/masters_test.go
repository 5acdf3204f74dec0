package egress

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/masters"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

// member is a session with a node that refuses unless it is the master.
type member struct {
	*fakeStream
	first  wire.Frame
	answer func(first *wire.Frame) (wire.Frame, error)
}

func (m *member) Send(_ context.Context, f wire.Frame) error {
	m.first = f
	return nil
}

func (m *member) Recv(context.Context) (wire.Frame, error) { return m.answer(&m.first) }

// TestDirectSessionsFindTheMaster opens sessions to a group of three nodes in the same
// city whose master moves: each refusal leads on, and once the master was met the next
// session goes straight there, on whatever class.
func TestDirectSessionsFindTheMaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const node = "              - name: rz02-a-1\n"
		text := strings.Replace(string(sample.YAML), node,
			"              - {name: rz02-a-2, client: a:1, peer: a:2, gossip: a:3}\n              - {name: rz02-a-3, client: b:1, peer: b:2, gossip: b:3}\n"+node, 1)
		text = strings.Replace(text, "  - name: shanghai\n", "  - name: shanghai\n    coordinator: {driver: consul}\n", 1)
		top, err := zone.Parse([]byte(text), "sample.yaml")
		if err != nil {
			t.Fatal(err)
		}
		net := newFake()
		var mu sync.Mutex
		var master zone.Node
		var epoch uint64
		elect := func(n zone.Node) {
			mu.Lock()
			defer mu.Unlock()
			master = n
			epoch++
		}
		e := New(Options{City: "shanghai", Topology: func() *zone.Topology { return top }, Masters: masters.New(nil),
			Pool: PoolOptions{Rand: rand.New(rand.NewPCG(1, 2)), Open: func(ctx context.Context, to Target, session uint64) (wire.Stream, error) {
				s, err := net.Open(ctx, to, session)
				if err != nil {
					return nil, err
				}
				return &member{fakeStream: s.(*fakeStream), answer: func(first *wire.Frame) (wire.Frame, error) {
					mu.Lock()
					defer mu.Unlock()
					if to.Node == master {
						return wire.Frame{Type: wire.TypeAccept, Session: first.Session}, nil
					}
					return masters.Refusal(first, master, epoch, ""), nil
				}}, nil
			}}})
		defer e.Close()
		// session reports which node answered, and whether it is the master.
		session := func() (zone.Node, bool) {
			t.Helper()
			s, err := e.Open(t.Context(), leg("shanghai", "rz02-a"), 1)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close(wire.CodeOK)
			f, err := s.Recv(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return net.last().Node, f.Type == wire.TypeAccept
		}
		elect("rz02-a-1")
		if n, ok := session(); ok || n != "rz02-a-2" {
			t.Fatalf("the first session goes to %s", n)
		}
		for range 3 {
			if n, ok := session(); !ok || n != "rz02-a-1" {
				t.Fatalf("a refusal led to %s", n)
			}
		}
		// The master dies: whoever answers instead tells of the next one.
		net.set("rz02-a-1", true)
		elect("rz02-a-3")
		// until opens sessions, most at the most, until one meets the master.
		until := func(most int) {
			t.Helper()
			for range most {
				if _, ok := session(); ok {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
			t.Errorf("%d sessions, and none met the master", most)
		}
		until(2)
		// Nobody leads for a while: every session is refused, none is opened elsewhere.
		mu.Lock()
		master = ""
		mu.Unlock()
		for range 10 {
			if n, ok := session(); ok {
				t.Errorf("%s answers without being master", n)
			}
			time.Sleep(100 * time.Millisecond)
		}
		net.set("rz02-a-1", false)
		elect("rz02-a-1")
		until(6) // the one that was dead is backed off from for up to half a second
	})
}
