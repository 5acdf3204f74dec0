package e2e

import (
	"maps"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Cuts of a relay, by the direction that no longer passes.
const (
	cutIn  = 1 // towards the node
	cutOut = 2 // from the node
)

// relay stands before one address of a node, for TCP and UDP. A cut TCP
// direction stands still, a cut UDP direction loses.
type relay struct {
	from, to string
	cut      atomic.Int32
	wg       sync.WaitGroup
	mu       sync.Mutex
	open     []interface{ Close() error } // guarded by mu
	closed   bool                         // guarded by mu
}

func newRelay(t *testing.T, from, to string) *relay {
	t.Helper()
	r := &relay{from: from, to: to}
	ln, err := net.Listen("tcp", from)
	if err != nil {
		missing(t, "a second loopback address: "+err.Error())
	}
	pc, err := net.ListenPacket("udp", from)
	if err != nil {
		t.Fatal(err)
	}
	r.keep(ln)
	r.keep(pc)
	r.wg.Go(func() { r.streams(ln) })
	r.wg.Go(func() { r.datagrams(pc.(*net.UDPConn)) })
	t.Cleanup(r.close)
	return r
}

func (r *relay) keep(c interface{ Close() error }) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		c.Close()
		return false
	}
	r.open = append(r.open, c)
	return true
}

func (r *relay) close() {
	r.mu.Lock()
	r.closed = true
	for _, c := range r.open {
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
			defer in.Close()
			out, err := net.Dial("tcp", r.to)
			if err != nil || !r.keep(out) {
				return
			}
			var both sync.WaitGroup
			both.Go(func() { r.copy(out, in, cutIn) })
			both.Go(func() { r.copy(in, out, cutOut) })
			both.Wait()
		})
	}
}

// copy passes bytes on unless the direction is cut.
func (r *relay) copy(dst, src net.Conn, direction int32) {
	defer dst.Close()
	defer src.Close()
	b := make([]byte, 32<<10)
	for {
		n, err := src.Read(b)
		for r.cut.Load()&direction != 0 && !r.ended() {
			hold(20 * time.Millisecond)
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

func (r *relay) datagrams(pc *net.UDPConn) {
	peers := map[string]net.Conn{}
	b := make([]byte, 64<<10)
	for {
		n, from, err := pc.ReadFromUDP(b)
		if err != nil {
			return
		}
		if r.cut.Load()&cutIn != 0 {
			continue
		}
		out := peers[from.String()]
		if out == nil {
			if out, err = net.Dial("udp", r.to); err != nil || !r.keep(out) {
				return
			}
			peers[from.String()] = out
			r.wg.Go(func() {
				back := make([]byte, 64<<10)
				for {
					n, err := out.Read(back)
					if err != nil {
						if r.ended() {
							return
						}
						hold(10 * time.Millisecond) // refused while the node is down
						continue
					}
					if r.cut.Load()&cutOut == 0 {
						pc.WriteToUDP(back[:n], from)
					}
				}
			})
		}
		out.Write(b[:n])
	}
}

// relayed puts a relay before every door between nodes: they are advertised at
// 127.0.0.2 and bound at 127.0.0.1.
func relayed(t *testing.T) (c *cluster, relays map[string]*relay) {
	t.Helper()
	c = newCluster(t)
	t.Setenv("MQROUTER_BIND", "127.0.0.1")
	text := readFile(t, c.topology())
	relays = map[string]*relay{}
	for name := range c.nodes {
		for door, addr := range c.doors(t, name) {
			if door == "admin" || door == "client" {
				continue
			}
			moved := strings.Replace(addr, "127.0.0.1", "127.0.0.2", 1)
			text = strings.ReplaceAll(text, door+": "+addr, door+": "+moved)
			relays[name+" "+door] = newRelay(t, moved, addr)
		}
	}
	if err := os.WriteFile(c.topology(), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return c, relays
}

// TestCutNetworkHeals cuts what is between nodes, one way or both, under load:
// soon after the heal everything that was acknowledged has arrived, once.
func TestCutNetworkHeals(t *testing.T) {
	c, relays := relayed(t)
	c.upAll()
	l := c.load("rz-a-1", 4, "7", 300, 20*time.Millisecond)
	seen := places{}
	for _, cut := range []struct {
		name  string
		doors []string
		how   int32
	}{
		{"QUIC of city b, towards it", []string{"rt-b1 quic", "rt-b2 quic"}, cutIn},
		{"QUIC and gossip between the cities", []string{"rt-a1 quic", "rt-a2 quic", "rt-b1 quic", "rt-b2 quic", "rt-a1 wan", "rt-a2 wan", "rt-b1 wan", "rt-b2 wan"}, cutIn | cutOut},
		{"the destination, from it", []string{"rz-b-1 peer", "rz-b-1 gossip"}, cutOut},
		{"the routers of city a, towards them", []string{"rt-a1 peer", "rt-a2 peer"}, cutIn},
	} {
		for _, d := range cut.doors {
			relays[d].cut.Store(cut.how)
		}
		hold(time.Duration(rounds(2, 20)) * time.Second)
		for _, d := range cut.doors {
			relays[d].cut.Store(0)
		}
		l.mu.Lock()
		acked := maps.Clone(l.acked)
		l.mu.Unlock()
		seen.drainOnly(t, c.nodes["rz-b-1"].client, acked)
		t.Logf("%s: all of %d have arrived", cut.name, len(acked))
	}
	l.settled(c, "rz-b-1", seen)
}
