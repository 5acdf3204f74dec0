package sim

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/config"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/node"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/internal/simnet"
	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/source"
)

// world is a deployment that runs, and what its clients saw.
type world struct {
	t    testing.TB
	seed uint64
	plan plan
	top  *zone.Topology // of the first epoch
	pki  string
	ctx  context.Context
	log  *slog.Logger
	net  *simnet.Net
	sky  *weather
	hist *history

	began   time.Time
	nodes   map[zone.Node]*machine
	names   []zone.Node // of nodes, in the order of the topology
	caches  map[zone.City]*store
	clients map[zone.Zone]*simnet.Host
	wg      sync.WaitGroup // everything that runs
	limits  broker.Limits

	wanMu sync.Mutex
	wan   map[[2]zone.City]int // bytes that arrived between routers of two cities; guarded by wanMu

	traceMu sync.Mutex
	digest  hash.Hash64 // of the events of the network; guarded by traceMu
	events  int         // guarded by traceMu
	record  io.Writer   // takes the events, too; nil = nobody; guarded by traceMu
}

// machine is a node with its disk. It is used by the world's own goroutine,
// except where said.
type machine struct {
	w      *world
	info   *zone.NodeInfo
	mem    *disk.Mem
	faulty *disk.Faulty
	run    *running // nil = down

	life  atomic.Int64 // grows when the store is another one than before: wiped, or an older copy
	epoch atomic.Int64 // of the topology file that the node reads
	files chan struct{}
}

// running is one start of a node.
type running struct {
	host   *simnet.Host
	cancel context.CancelFunc
	ready  chan struct{}
	done   chan struct{}
	killed atomic.Bool
	err    error // why it ended; read after done
}

// rng returns randomness of its own for a subject.
func (w *world) rng(subject string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(subject))
	return rand.New(rand.NewPCG(w.seed, h.Sum64()))
}

// newWorld starts a deployment inside a bubble and waits until it serves.
func newWorld(t testing.TB, seed uint64, p plan, pki string, log *slog.Logger) *world {
	t.Helper()
	top, err := zone.Parse(p.text(p.epoch), "sim.yaml")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &world{
		t: t, seed: seed, plan: p, top: top, pki: pki, ctx: ctx, log: log, began: time.Now(),
		nodes: map[zone.Node]*machine{}, caches: map[zone.City]*store{}, clients: map[zone.Zone]*simnet.Host{},
		limits: broker.Limits{SegmentBytes: 128 << 10, SnapshotEvery: 7 * time.Second},
	}
	w.digest, w.wan = fnv.New64a(), map[[2]zone.City]int{}
	if path := os.Getenv(traceEnv); path != "" {
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		b := bufio.NewWriter(f)
		t.Cleanup(func() {
			if err := errors.Join(b.Flush(), f.Close()); err != nil {
				t.Error(err)
			}
		})
		w.record = b
	}
	w.sky = newWeather()
	w.hist = newHistory(w)
	w.net = simnet.New(seed, w.sky.path, w.trace)
	netCtx, stopNet := context.WithCancel(context.Background())
	var netDone sync.WaitGroup
	netDone.Go(func() { w.net.Run(netCtx) })
	t.Cleanup(func() {
		cancel()
		w.wg.Wait()
		time.Sleep(6 * time.Minute) // what memberlist and timers of connections leave behind
		stopNet()
		netDone.Wait()
	})
	for _, c := range top.Cities {
		for _, n := range c.Routers {
			w.add(n)
		}
		for _, z := range c.Zones {
			for _, g := range z.Groups {
				w.add(g.Nodes[0])
			}
		}
		for _, n := range c.Caches {
			w.add(n)
			w.caches[c.Name] = newStore()
		}
	}
	w.addClients()
	for _, name := range w.names {
		w.nodes[name].start()
	}
	for _, name := range w.names {
		w.nodes[name].serves()
	}
	return w
}

func (w *world) add(n *zone.NodeInfo) {
	m := &machine{w: w, info: n, files: make(chan struct{}, 1)}
	m.epoch.Store(int64(w.plan.epoch))
	m.replace(disk.NewMem())
	w.nodes[n.Name] = m
	w.names = append(w.names, n.Name)
}

// replace gives the machine another disk.
func (m *machine) replace(mem *disk.Mem) {
	m.mem, m.faulty = mem, disk.NewFaulty(mem)
}

// start starts the node on its disk.
func (m *machine) start() {
	w := m.w
	host, err := w.net.Host(string(m.info.Name), string(m.info.City.Name), addrOf(w.top, m.info))
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	r := &running{host: host, cancel: cancel, ready: make(chan struct{}), done: make(chan struct{})}
	m.run = r
	cfg := config.Node{Name: string(m.info.Name), Topology: "sim.yaml", DataDir: "/data", PKI: w.pki, Plaintext: true, Group: "member-cache"}
	o := node.Options{
		Logger: w.log, FS: m.faulty, Limits: w.limits, Network: hostNet{host}, Ready: func() { close(r.ready) },
		Topology: source.Options{Read: m.readTopology, Notify: m.watchTopology},
	}
	serve := node.Broker
	switch m.info.Role {
	case zone.RoleRouter:
		serve = node.Router
	case zone.RoleCacheSync:
		serve = node.CacheSync
		o.Cache = w.caches[m.info.City.Name]
	}
	w.wg.Go(func() {
		defer close(r.done)
		r.err = serve(ctx, cfg, o)
		host.Crash(true)
	})
}

func (m *machine) readTopology(string) ([]byte, error) {
	return m.w.plan.text(int(m.epoch.Load())), nil
}

func (m *machine) watchTopology(string) (<-chan struct{}, func(), error) {
	return m.files, func() {}, nil
}

// serves waits until the node is ready or has ended.
func (m *machine) serves() {
	select {
	case <-m.run.ready:
	case <-m.run.done:
		m.w.t.Fatalf("%s does not start: %v", m.info.Name, m.run.err)
	case <-time.After(5 * time.Minute):
		m.w.t.Fatalf("%s is not ready after five minutes", m.info.Name)
	}
}

// crash ends the node at once. Its disk has what a loss of power leaves when
// power is true, else what it had written. It does not wait for what still runs,
// which reaches neither network nor disk any more.
func (m *machine) crash(rng *rand.Rand, power bool) {
	r := m.run
	m.run = nil
	r.killed.Store(true)
	r.host.Crash(!power)
	if power {
		m.replace(m.mem.Crash(rng))
	} else {
		m.replace(m.copy())
	}
	r.cancel()
}

// copy returns what the disk has now, all of it durable.
func (m *machine) copy() *disk.Mem { return m.mem.Clone() }

// stop ends the node as an operator does, and waits.
func (m *machine) stop() {
	r := m.run
	m.run = nil
	r.killed.Store(true)
	r.cancel()
	<-r.done
	if r.err != nil && !m.sick(r.err) {
		m.w.t.Errorf("%s stopped with: %v", m.info.Name, r.err)
	}
}

// sick reports whether an error is one that the faults of a disk explain.
func (m *machine) sick(err error) bool {
	return disk.IsFull(err) || errors.Is(err, errSick) || errors.Is(err, fs.ErrClosed)
}

// ended reports whether the node ended by itself.
func (m *machine) ended() bool {
	if m.run == nil {
		return false
	}
	select {
	case <-m.run.done:
		return true
	default:
		return false
	}
}

// errSick is what a faulty disk says.
var errSick = errors.New("sim: input/output error")

// hostNet is a host as the network of a node.
type hostNet struct{ *simnet.Host }

var _ node.Network = hostNet{}

// client returns the machine of a zone's clients.
func (w *world) client(z zone.Zone) *simnet.Host { return w.clients[z] }

// addClients makes a machine for the clients of each zone.
func (w *world) addClients() {
	for i, z := range w.top.Zones() {
		h, err := w.net.Host("client-"+string(z.Name), string(z.City.Name), cityAddr(w.top, z.City.Name, 9, byte(i+1)))
		if err != nil {
			w.t.Fatal(err)
		}
		w.clients[z.Name] = h
	}
}

// now is the simulated time since the world began.
func (w *world) now() time.Duration { return time.Since(w.began) }

// close stops every node, the way an operator does, and joins it.
func (w *world) close() {
	for _, name := range slices.Backward(w.names) {
		if m := w.nodes[name]; m.run != nil {
			m.stop()
		}
	}
}

func verbose() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// count adds what arrives between the routers of two cities.
func (w *world) count(e simnet.Event) {
	if e.Kind != simnet.Packet {
		return
	}
	from, to := w.top.FindNode(zone.Node(e.From)), w.top.FindNode(zone.Node(e.To))
	if from == nil || to == nil || from.City == to.City {
		return
	}
	w.wanMu.Lock()
	defer w.wanMu.Unlock()
	w.wan[[2]zone.City{from.City.Name, to.City.Name}] += e.Size
}

// crossed returns the bytes that have arrived from a city at another, and counts
// anew.
func (w *world) crossed() map[[2]zone.City]int {
	w.wanMu.Lock()
	defer w.wanMu.Unlock()
	n := w.wan
	w.wan = map[[2]zone.City]int{}
	return n
}

// trace adds an event of the network to the digest of all.
func (w *world) trace(e simnet.Event) {
	w.count(e)
	w.traceMu.Lock()
	defer w.traceMu.Unlock()
	w.events++
	fmt.Fprintf(w.digest, "%d %s %s %d %d\n", e.At.Sub(w.began), e.From, e.To, e.Kind, e.Size)
	if w.record != nil {
		fmt.Fprintf(w.record, "%d %s %s %d %d\n", e.At.Sub(w.began), e.From, e.To, e.Kind, e.Size)
	}
}

// traced returns how many events there were, and their digest.
func (w *world) traced() (events int, digest uint64) {
	w.traceMu.Lock()
	defer w.traceMu.Unlock()
	return w.events, w.digest.Sum64()
}
