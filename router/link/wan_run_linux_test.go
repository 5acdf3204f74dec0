package link

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mqrouter/mqrouter/internal/wan"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	wanFlows  = 16
	wanFrame  = 64 << 10 // bytes
	wanChange = 1 << 10  // bytes
	wanEach   = time.Millisecond
)

// bulkResult is what a run of bulk traffic came to.
type bulkResult struct {
	rate     float64 // bytes a second that arrived
	wire     float64 // bytes sent for each of them
	cpu, all float64 // seconds of processors for 1e9 of them, without and with the emulation
}

// urgentResult is what a run of single changes came to.
type urgentResult struct {
	took []time.Duration // sorted; of what did not come: how long it was waited for
	came float64         // part that came, 0 to 1
	wire float64
}

// runBulk measures what arrives of as much as goes.
func runBulk(t *testing.T, n *wan.Net, k wanKind, plan wanPlan) bulkResult {
	var total func() int64
	var end func()
	if k.congestion != "" {
		total, end = tcpBulk(t, n, k)
	} else {
		total, end = linkBulk(t, n, k, plan.flows)
	}
	defer end()
	<-time.After(plan.warm)
	bytes, sent, used, emulated, start := total(), n.Stats(0), ownTime(), n.Used(), time.Now()
	<-time.After(plan.long)
	came, took := float64(total()-bytes), time.Since(start).Seconds()
	all, own := (ownTime() - used).Seconds(), (n.Used() - emulated).Seconds()
	return bulkResult{
		rate: came / took, wire: float64(n.Stats(0).Sub(sent).Bytes) / max(came, 1),
		cpu: (all - own) / came * 1e9, all: all / came * 1e9,
	}
}

// runUrgent measures how long changes take that are sent one each millisecond.
func runUrgent(t *testing.T, n *wan.Net, k wanKind, plan wanPlan) urgentResult {
	x := &changes{start: time.Now(), came: make(map[int64]int64)}
	var end func()
	if k.congestion != "" {
		end = x.overTCP(t, n, k)
	} else {
		end = x.overLink(t, n, k)
	}
	defer end()
	<-time.After(plan.warm)
	from, sent := int64(time.Since(x.start)), n.Stats(0)
	<-time.After(plan.long)
	wire, to := n.Stats(0).Sub(sent).Bytes, int64(time.Since(x.start))
	<-time.After(time.Second) // what was sent last arrives
	r := x.result(from, to)
	if len(r.took) == 0 {
		t.Fatal("no change was due")
	}
	r.wire = float64(wire) / float64(len(r.took)*wanChange)
	return r
}

// changes are single changes that carry when they were sent.
type changes struct {
	start time.Time
	mu    sync.Mutex
	first int64           // guarded by mu; when the first was due, nanoseconds since start
	came  map[int64]int64 // guarded by mu; when which came, by when it was due
}

func (x *changes) arrived(payload []byte) {
	now := int64(time.Since(x.start))
	x.mu.Lock()
	x.came[int64(binary.LittleEndian.Uint64(payload))] = now
	x.mu.Unlock()
}

// result tells of the changes that were due in an interval.
func (x *changes) result(from, to int64) urgentResult {
	x.mu.Lock()
	defer x.mu.Unlock()
	now, came := int64(time.Since(x.start)), 0
	var r urgentResult
	for due := x.first; due < to; due += int64(wanEach) {
		if due < from {
			continue
		}
		at, ok := x.came[due]
		if ok {
			came++
		} else {
			at = now
		}
		r.took = append(r.took, time.Duration(at-due))
	}
	slices.Sort(r.took)
	r.came = float64(came) / float64(max(len(r.took), 1))
	return r
}

// produce calls send with a change each millisecond until stop is closed. One that
// is late is still due when it was: what waits for a slow sender counts.
func (x *changes) produce(stop <-chan struct{}, send func([]byte) error) {
	payload := make([]byte, wanChange)
	next := time.Now()
	x.mu.Lock()
	x.first = int64(next.Sub(x.start))
	x.mu.Unlock()
	for ; ; next = next.Add(wanEach) {
		select {
		case <-stop:
			return
		case <-time.After(time.Until(next)):
		}
		binary.LittleEndian.PutUint64(payload, uint64(next.Sub(x.start)))
		if send(payload) != nil {
			return
		}
	}
}

func (x *changes) overTCP(t *testing.T, n *wan.Net, k wanKind) (end func()) {
	from, to := tcpPair(t, n, k)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		x.produce(stop, func(p []byte) error {
			_, err := from.Write(p)
			return err
		})
	})
	wg.Go(func() {
		b := make([]byte, wanChange)
		for {
			if _, err := io.ReadFull(to, b); err != nil {
				return
			}
			x.arrived(b)
		}
	})
	return func() {
		close(stop)
		_ = from.Close()
		_ = to.Close()
		wg.Wait()
	}
}

func (x *changes) overLink(t *testing.T, n *wan.Net, k wanKind) (end func()) {
	take := func(ctx context.Context, s *Session) {
		for {
			f, err := s.Recv(ctx)
			if err != nil {
				return
			}
			x.arrived(f.Payload)
		}
	}
	a, b, shut := wanPair(t, n, k, zone.ClassUrgent, take)
	s, err := a.Open(b, zone.ClassUrgent, 1)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		x.produce(stop, func(p []byte) error {
			return s.Send(context.Background(), wire.Frame{Type: wire.TypeBatch, Session: 1, Class: zone.ClassUrgent, Payload: p})
		})
	})
	return func() {
		close(stop)
		_ = s.Close(wire.CodeOK)
		wg.Wait()
		shut()
	}
}

func linkBulk(t *testing.T, n *wan.Net, k wanKind, flows int) (total func() int64, end func()) {
	x, end := linkFlows(t, n, k, flows)
	return x.total, end
}

// linkFlows has flows send over a link of their own as much as goes.
func linkFlows(t *testing.T, n *wan.Net, k wanKind, flows int) (*senders, func()) {
	x := new(senders)
	a, b, shut := wanPair(t, n, k, zone.ClassBulk, x.handle)
	x.from, x.to = a, b
	x.start(flows, wanFrame)
	return x, func() {
		x.end()
		shut()
	}
}

// wanPair links two managers over the path.
func wanPair(t *testing.T, n *wan.Net, k wanKind, class zone.Class, handle func(context.Context, *Session)) (*node, zone.Node, func()) {
	ca := newAuthority(t)
	var nodes [2]*node
	var ends [2]func()
	for i, name := range []zone.Node{"a", "b"} {
		var sock *net.UDPConn
		err := n.Site(i).Do(func() (err error) {
			sock, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(n.Site(i).Addr(), 0)))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		city := zone.City("city-" + name)
		conf := ca.issue(t, peer.Identity{Deployment: testDeployment, City: city, Role: zone.RoleRouter, Name: name})
		m, err := New(Options{
			Deployment: testDeployment, City: city, Node: name, Incarnation: 1, PacketConn: sock,
			TLS: func(*Peer) *tls.Config { return conf }, Identify: identify, Handle: handle, Correction: k.correction,
			Classes: []zone.Class{class}, Limits: Limits{Parallel: k.parallel}, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		x := &node{Manager: m, done: make(chan error, 1), peer: Peer{Node: name, City: city, Addr: sock.LocalAddr().String()}}
		go func() { x.done <- m.Run(ctx) }()
		nodes[i], ends[i] = x, func() {
			cancel()
			if err := <-x.done; err != nil {
				t.Errorf("%s: Run: %v", name, err)
			}
			_ = sock.Close()
		}
	}
	nodes[0].SetPeers([]Peer{nodes[1].peer})
	nodes[1].SetPeers([]Peer{nodes[0].peer})
	eventually(t, "link", func() bool {
		_, up := nodes[0].Up("b", class)
		_, back := nodes[1].Up("a", class)
		return up && back
	})
	return nodes[0], "b", func() {
		ends[0]()
		ends[1]()
	}
}

// tcpPair connects the sites with the kernel's TCP.
func tcpPair(t *testing.T, n *wan.Net, k wanKind) (from, to net.Conn) {
	choose := func(_, _ string, c syscall.RawConn) error {
		var err error
		control := c.Control(func(fd uintptr) {
			err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, k.congestion)
			for _, what := range []int{unix.SO_RCVBUFFORCE, unix.SO_SNDBUFFORCE} {
				if err == nil && k.window > 0 { // else the kernel goes on choosing
					err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, what, k.window)
				}
			}
		})
		if control != nil {
			return control
		}
		return err
	}
	var ln net.Listener
	err := n.Site(1).Do(func() (err error) {
		lc := net.ListenConfig{Control: choose}
		ln, err = lc.Listen(context.Background(), "tcp4", netip.AddrPortFrom(n.Site(1).Addr(), 0).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	err = n.Site(0).Do(func() (err error) {
		d := net.Dialer{Control: choose}
		from, err = d.Dial("tcp4", ln.Addr().String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if to, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	return from, to
}

func tcpBulk(t *testing.T, n *wan.Net, k wanKind) (total func() int64, end func()) {
	from, to := tcpPair(t, n, k)
	var came atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		b := make([]byte, wanFrame)
		for {
			if _, err := from.Write(b); err != nil {
				return
			}
		}
	})
	wg.Go(func() {
		b := make([]byte, wanFrame)
		for {
			k, err := to.Read(b)
			came.Add(int64(k))
			if err != nil {
				return
			}
		}
	})
	return came.Load, func() {
		_ = from.(*net.TCPConn).SetLinger(0) // what is unsent is nobody's
		_ = from.Close()
		_ = to.Close()
		wg.Wait()
	}
}

// ownTime returns the processor time that this process has used.
func ownTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
