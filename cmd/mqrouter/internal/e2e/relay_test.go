package e2e

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/pki"
	"github.com/mqrouter/mqrouter/zone"
)

// Cuts of a relay, by the direction that no longer passes.
const (
	cutIn  = 1 // towards the node
	cutOut = 2 // from the node
)

// network is a relay in user space before every door between the nodes of a
// deployment: they are advertised at 127.0.0.2 and bound at 127.0.0.1.
type network struct {
	relays map[string]*relay // "rt-a1 quic"
	source map[int]string    // port of a node's datagrams -> node; not changed once relays run
	lost   atomic.Pointer[map[[2]string]bool]
	// dialler names the node that has dialled a relay's stream from a port, "" when it
	// cannot be told. nil: nobody asks, and streams of gossip between cities stand still
	// while any pair of nodes loses.
	dialler func(port, at int) string
}

// relayTopology moves the doors of a topology's nodes behind relays, and every
// port by offset. It returns the text for the nodes.
func relayTopology(t *testing.T, text string, offset int) (string, *network) {
	t.Helper()
	t.Setenv("MQROUTER_BIND", "127.0.0.1")
	return relayDoors(t, text, offset)
}

// relayDoors is relayTopology for nodes that are told to bind 127.0.0.1 by whoever
// starts them.
func relayDoors(t *testing.T, text string, offset int) (string, *network) {
	t.Helper()
	top, err := zone.Parse([]byte(text), "topology")
	if err != nil {
		t.Fatal(err)
	}
	n := &network{relays: map[string]*relay{}, source: map[int]string{}}
	moved := map[string]bool{}
	for _, node := range pki.Nodes(top) {
		for door, addr := range map[string]string{"quic": node.QUIC, "peer": node.Peer, "gossip": node.Gossip, "wan": node.WAN} {
			if addr == "" {
				continue
			}
			moved[addr] = true
			port := shifted(t, addr, offset)
			if door != "peer" {
				n.source[port] = string(node.Name)
			}
			n.relays[string(node.Name)+" "+door] = &relay{net: n, node: string(node.Name),
				from: fmt.Sprintf("127.0.0.2:%d", port), to: fmt.Sprintf("127.0.0.1:%d", port)}
		}
	}
	for _, r := range n.relays {
		r.start(t)
	}
	return regexp.MustCompile(`\b127\.0\.0\.1:\d+`).ReplaceAllStringFunc(text, func(addr string) string {
		if moved[addr] {
			return fmt.Sprintf("127.0.0.2:%d", shifted(t, addr, offset))
		}
		return fmt.Sprintf("127.0.0.1:%d", shifted(t, addr, offset))
	}), n
}

func shifted(t *testing.T, addr string, offset int) int {
	t.Helper()
	_, text, _ := strings.Cut(addr, ":")
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return port + offset
}

// relayed is a cluster whose nodes meet through relays.
func relayed(t *testing.T) (*cluster, *network) {
	t.Helper()
	c := newCluster(t)
	text, n := relayTopology(t, readFile(t, c.topology()), 0)
	if err := os.WriteFile(c.topology(), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return c, n
}

// cut stops directions of doors; 0 heals them.
func (n *network) cut(how int32, doors ...string) {
	for _, d := range doors {
		n.relays[d].cut.Store(how)
	}
}

// lose drops the datagrams from some nodes to others, besides those that are
// dropped already, and has their streams stand still. Without a dialler it cannot be
// told where streams come from: those of gossip between cities stand still everywhere.
func (n *network) lose(from, to []string) {
	lost := map[[2]string]bool{}
	if before := n.lost.Load(); before != nil {
		maps.Copy(lost, *before)
	}
	for _, f := range from {
		for _, t := range to {
			lost[[2]string{f, t}] = true
		}
	}
	n.lost.Store(&lost)
	for name, r := range n.relays {
		r.hold.Store(n.dialler == nil && strings.HasSuffix(name, " wan"))
	}
}

// part loses both directions between two sets of nodes.
func (n *network) part(a, b []string) {
	n.lose(a, b)
	n.lose(b, a)
}

// heal ends every cut.
func (n *network) heal() {
	n.lost.Store(nil)
	for _, r := range n.relays {
		r.cut.Store(0)
		r.hold.Store(false)
	}
}

// relay stands before one address of a node, for TCP and UDP. A cut TCP
// direction stands still, a cut UDP direction loses.
type relay struct {
	net            *network
	node, from, to string
	cut            atomic.Int32
	hold           atomic.Bool // streams stand still, both ways
	wg             sync.WaitGroup
	mu             sync.Mutex
	open           map[io.Closer]bool // guarded by mu
	closed         bool               // guarded by mu
}

func (r *relay) start(t *testing.T) {
	t.Helper()
	ln, err := net.Listen("tcp", r.from)
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		missing(t, "a second loopback address: "+err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	pc, err := net.ListenPacket("udp", r.from)
	if err != nil {
		t.Fatal(err)
	}
	r.keep(ln)
	r.keep(pc)
	r.wg.Go(func() { r.streams(ln) })
	r.wg.Go(func() { r.datagrams(pc.(*net.UDPConn)) })
	t.Cleanup(r.close)
}

func (r *relay) keep(c io.Closer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		c.Close()
		return false
	}
	if r.open == nil {
		r.open = map[io.Closer]bool{}
	}
	r.open[c] = true
	return true
}

// drop closes what was kept.
func (r *relay) drop(c io.Closer) {
	c.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, c)
}

func (r *relay) close() {
	r.mu.Lock()
	r.closed = true
	for c := range r.open {
		c.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
}

func (r *relay) streams(ln net.Listener) {
	for {
		in, err := ln.Accept()
		if err != nil {
			return
		}
		if !r.keep(in) {
			return
		}
		r.wg.Go(func() {
			defer r.drop(in)
			out, err := net.Dial("tcp", r.to)
			if err != nil || !r.keep(out) {
				return
			}
			defer r.drop(out)
			source := ""
			if r.net.dialler != nil {
				source = r.net.dialler(in.RemoteAddr().(*net.TCPAddr).Port, ln.Addr().(*net.TCPAddr).Port)
			}
			var both sync.WaitGroup
			both.Go(func() { r.copy(out, in, cutIn, [2]string{source, r.node}) })
			both.Go(func() { r.copy(in, out, cutOut, [2]string{r.node, source}) })
			both.Wait()
		})
	}
}

// copy passes bytes on unless the direction is cut.
func (r *relay) copy(dst, src net.Conn, direction int32, way [2]string) {
	defer dst.Close()
	defer src.Close()
	b := make([]byte, 32<<10)
	for {
		n, err := src.Read(b)
		for (r.hold.Load() || r.loses(direction, way[0], way[1])) && !r.ended() {
			hold(relayPause)
		}
		if n > 0 {
			if _, werr := dst.Write(b[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (r *relay) ended() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed
}

// loses reports whether a datagram is dropped, and whether a stream stands still.
func (r *relay) loses(direction int32, from, to string) bool {
	if r.cut.Load()&direction != 0 {
		return true
	}
	lost := r.net.lost.Load()
	return lost != nil && (*lost)[[2]string{from, to}]
}

func (r *relay) datagrams(pc *net.UDPConn) {
	peers := map[string]net.Conn{}
	b := make([]byte, 64<<10)
	for {
		n, from, err := pc.ReadFromUDP(b)
		if err != nil {
			return
		}
		source := r.net.source[from.Port]
		if r.loses(cutIn, source, r.node) {
			continue
		}
		out := peers[from.String()]
		if out == nil {
			if out, err = net.Dial("udp", r.to); err != nil || !r.keep(out) {
				return
			}
			peers[from.String()] = out
			r.wg.Go(func() { r.answers(pc, out, from, source) })
		}
		out.Write(b[:n])
	}
}

// answers passes on what the node sends back to one source.
func (r *relay) answers(pc *net.UDPConn, out net.Conn, to *net.UDPAddr, source string) {
	b := make([]byte, 64<<10)
	for {
		n, err := out.Read(b)
		if err != nil {
			if r.ended() {
				return
			}
			hold(relayPause) // refused while the node is down
			continue
		}
		if !r.loses(cutOut, r.node, source) {
			pc.WriteToUDP(b[:n], to)
		}
	}
}
