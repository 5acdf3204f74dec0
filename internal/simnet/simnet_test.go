package simnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// pair is a network of two hosts whose path a test changes.
type pair struct {
	*Net
	a, b   *Host
	mu     sync.Mutex
	path   map[string]Path // by name of the sender; guarded by mu
	events []Event
}

const addrB = "10.0.0.2:7"

func newPair(t *testing.T, seed uint64) *pair {
	t.Helper()
	p := &pair{path: map[string]Path{"a": {Delay: 10 * time.Millisecond}, "b": {Delay: 10 * time.Millisecond}}}
	p.Net = New(seed, func(from, _ *Host) Path {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.path[from.Name()]
	}, func(e Event) { p.events = append(p.events, e) })
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { p.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	p.a, p.b = p.host(t, "a", 1), p.host(t, "b", 2)
	return p
}

func (p *pair) host(t *testing.T, name string, last byte) *Host {
	t.Helper()
	h, err := p.Host(name, "x", netip.AddrFrom4([4]byte{10, 0, 0, last}))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (p *pair) set(from string, path Path) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.path[from] = path
}

// connect returns both ends of a connection from a to b.
func (p *pair) connect(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := p.b.Listen(t.Context(), addrB)
	if err != nil {
		t.Fatal(err)
	}
	if near, err = p.a.Dial(t.Context(), addrB); err == nil {
		far, err = l.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	return near, far
}

func TestConnectionKeepsOrderThroughLossAndCuts(t *testing.T) {
	for seed := range uint64(5) {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, seed)
			near, far := p.connect(t)
			p.set("a", Path{Delay: 10 * time.Millisecond, Jitter: 5 * time.Millisecond, Loss: 0.2})
			rng := rand.New(rand.NewPCG(seed, 1))
			want := make([]byte, 1<<20)
			for i := range want {
				want[i] = byte(rng.Uint32())
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				for rest := want; len(rest) > 0; {
					n := min(1+rng.IntN(100_000), len(rest))
					if _, err := near.Write(rest[:n]); err != nil {
						t.Error(err)
						return
					}
					rest = rest[n:]
					time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
				}
				_ = near.Close()
			})
			wg.Go(func() {
				for range 3 { // cuts of one direction
					time.Sleep(300 * time.Millisecond)
					p.set("a", Path{Cut: true})
					time.Sleep(2 * time.Second)
					p.set("a", Path{Delay: 10 * time.Millisecond, Loss: 0.2})
				}
			})
			got, err := io.ReadAll(far)
			wg.Wait()
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("seed %d: %d of %d bytes arrived, equal %v, %v", seed, len(got), len(want), bytes.Equal(got, want), err)
			}
		})
	}
}

// A connection goes on within the pause of a resend once a cut is over, with all
// that waited behind the lost segment.
func TestConnectionGoesOnAfterACut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 1)
		near, far := p.connect(t)
		p.set("a", Path{Cut: true})
		for range 10 {
			if _, err := near.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		p.set("a", Path{Delay: 10 * time.Millisecond})
		start := time.Now()
		if _, err := io.ReadFull(far, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("ten bytes took %v after the cut", took)
		}
	})
}

func TestConnectionThatPassesNothingBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 1)
		near, far := p.connect(t)
		p.set("a", Path{Cut: true})
		if _, err := near.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, syscall.ETIMEDOUT) || time.Since(start) > giveUp+rtoMax {
			t.Errorf("%v after %v, want a timeout after about %v", err, time.Since(start), giveUp)
		}
		// The other side has heard nothing and waits on.
		_ = far.SetReadDeadline(time.Now().Add(time.Hour))
		if _, err := far.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the other side: %v", err)
		}
	})
}

func TestSlowReaderStopsTheWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 1)
		near, far := p.connect(t)
		_ = near.SetWriteDeadline(time.Now().Add(time.Second))
		n, err := near.Write(make([]byte, 10*window))
		if n != window || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("%d bytes, %v; want %d and a timeout", n, err, window)
		}
		if _, err := io.ReadFull(far, make([]byte, window)); err != nil {
			t.Fatal(err)
		}
	})
}

func TestCrash(t *testing.T) {
	for _, tell := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, 1)
			near, far := p.connect(t)
			p.b.Crash(tell)
			if _, err := far.Write([]byte("x")); err == nil {
				t.Error("a host without power writes")
			}
			_ = near.SetReadDeadline(time.Now().Add(time.Second))
			_, err := near.Read(make([]byte, 1))
			if tell && !errors.Is(err, syscall.ECONNRESET) || !tell && !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("tell %v: the peer sees %v", tell, err)
			}
			b := p.host(t, "b", 2) // another start takes the address over, and knows no connection
			if _, err := near.Write([]byte("x")); err == nil {
				_ = near.SetReadDeadline(time.Now().Add(time.Second))
				_, err = near.Read(make([]byte, 1))
				if !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("tell %v: the next start answers with %v", tell, err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := p.a.Dial(ctx, addrB); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("nobody listens: %v", err)
			}
			if _, err := b.Listen(t.Context(), addrB); err != nil {
				t.Fatal(err)
			}
			if _, err := p.a.Dial(ctx, addrB); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestDialToNobodyEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		_, err := p.a.Dial(ctx, "10.0.0.9:1")
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 3*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		time.Sleep(2 * giveUp)
	})
}

// Packets are lost, repeated and overtaken as often as the path says, and a cut
// is one of a direction.
func TestPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 7)
		a, err := p.a.ListenPacket(t.Context(), "10.0.0.1:5")
		if err != nil {
			t.Fatal(err)
		}
		b, err := p.b.ListenPacket(t.Context(), addrB)
		if err != nil {
			t.Fatal(err)
		}
		p.set("a", Path{Delay: 20 * time.Millisecond, Loss: 0.2, Repeat: 0.2, Overrun: 0.2})
		const sent = 2000
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range sent {
				if _, err := a.WriteTo(fmt.Appendf(nil, "%d", i), b.LocalAddr()); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Millisecond)
			}
		})
		_ = b.SetReadDeadline(time.Now().Add(time.Minute))
		got, repeated, overtaken, newest := map[int]int{}, 0, 0, -1
		buf := make([]byte, 100)
		for {
			n, _, err := b.ReadFrom(buf)
			if err != nil {
				break
			}
			var i int
			if _, err := fmt.Sscan(string(buf[:n]), &i); err != nil {
				t.Fatal(err)
			}
			if got[i]++; got[i] > 1 {
				repeated++
			}
			if i < newest {
				overtaken++
			}
			newest = max(newest, i)
		}
		wg.Wait()
		if lost := sent - len(got); lost < 200 || lost > 500 || repeated < 200 || overtaken < 200 {
			t.Errorf("of %d packets %d lost, %d repeated, %d overtaken", sent, lost, repeated, overtaken)
		}
		p.set("a", Path{Cut: true})
		p.set("b", Path{})
		_ = b.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := a.WriteTo([]byte("x"), b.LocalAddr()); err != nil {
			t.Error(err)
		}
		if _, _, err := b.ReadFrom(buf); err == nil {
			t.Error("a packet passed a cut")
		}
		if _, err := b.WriteTo([]byte("y"), a.LocalAddr()); err != nil {
			t.Error(err)
		}
		if n, _, err := a.ReadFrom(buf); err != nil || string(buf[:n]) != "y" {
			t.Errorf("the other direction is cut, too: %v", err)
		}
	})
}

func TestRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 1)
		near, far := p.connect(t)
		p.set("a", Path{Rate: 10_000})
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := near.Write(make([]byte, 100_000)); err != nil {
				t.Error(err)
			}
		})
		if _, err := io.ReadFull(far, make([]byte, 100_000)); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if took := time.Since(start); took < 9*time.Second || took > 11*time.Second {
			t.Errorf("100 kB at 10 kB/s took %v", took)
		}
	})
}

// The same seed gives the same events at the same times, to the nanosecond.
func TestEventsRepeat(t *testing.T) {
	run := func() string {
		var trace string
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, 3)
			near, far := p.connect(t)
			p.set("a", Path{Delay: 10 * time.Millisecond, Jitter: 5 * time.Millisecond, Loss: 0.3})
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = io.Copy(io.Discard, far) })
			for range 200 {
				if _, err := near.Write(make([]byte, 1000)); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Millisecond)
			}
			_ = near.Close()
			wg.Wait()
			trace = fmt.Sprint(p.events)
		})
		return trace
	}
	if a, b := run(), run(); a != b || len(a) < 1000 {
		t.Errorf("two runs of one seed differ:\n%.300s\n%.300s", a, b)
	}
}

// Gossip's transport drops what memberlist does not take, and joins its
// goroutines (the bubble sees to that).
func TestGossipDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 1)
		a, err := p.a.Gossip("10.0.0.1:6")
		if err != nil {
			t.Fatal(err)
		}
		b, err := p.b.Gossip("10.0.0.2:6")
		if err != nil {
			t.Fatal(err)
		}
		for range 2 * gossipPackets {
			if _, err := a.WriteTo([]byte("x"), "10.0.0.2:6"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		for range 2 * gossipStreams {
			if _, err := a.DialTimeout("10.0.0.2:6", time.Second); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		if n, m := len(b.PacketCh()), len(b.StreamCh()); n != gossipPackets || m != gossipStreams {
			t.Errorf("%d packets and %d streams wait", n, m)
		}
		for _, x := range []interface{ Shutdown() error }{a, b} {
			if err := x.Shutdown(); err != nil {
				t.Error(err)
			}
		}
	})
}
