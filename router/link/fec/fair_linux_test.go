package fec

import (
	"crypto/tls"
	mrand "math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go"
)

// Measures of the shared path.
const (
	sharedQueue = 80 * time.Millisecond
	sharedDelay = 15 * time.Millisecond // one way
)

// shared says who shares a path, and for how long that is measured.
type shared struct {
	rate  float64 // bytes a second
	lasts time.Duration
	tcp   bool
	links []int // connections of each
}

// simLink is several QUIC connections from one node to another that send without
// end over a bottleneck, in a synctest bubble.
type simLink struct {
	from, to *simUDP
	layers   []*Layer
	leases   [2]*Lease
	got      atomic.Int64 // bytes
	end      func()
}

// connectSim makes a link. The way back is free.
func connectSim(t *testing.T, line *bottleneck, number byte, connections int) *simLink {
	t.Helper()
	l := &simLink{from: newSimUDP(2 * number), to: newSimUDP(2*number + 1)}
	l.from.route = func(_ *net.UDPAddr, size int, deliver func(*simUDP)) {
		line.send(size, func() { deliver(l.to) })
	}
	l.to.route = func(_ *net.UDPAddr, _ int, deliver func(*simUDP)) {
		time.AfterFunc(sharedDelay, func() { deliver(l.from) })
	}
	a, b := l.correct(number)
	conf := &quic.Config{InitialStreamReceiveWindow: 16 << 20, InitialConnectionReceiveWindow: 16 << 20}
	ln, err := b.Listen(&tls.Config{Certificates: []tls.Certificate{certificate(t)}, NextProtos: []string{"test"}}, conf)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range connections {
		client := dialOften(t, a, l.to.addr, conf)
		server, err := ln.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if s, err := client.OpenStream(); err == nil {
				for err == nil {
					_, err = s.Write(make([]byte, 16<<10))
					time.Sleep(line.pause)
				}
			}
		})
		wg.Go(func() {
			s, err := server.AcceptStream(server.Context())
			for n := 0; err == nil; l.got.Add(int64(n)) {
				n, err = s.Read(make([]byte, 64<<10))
			}
		})
	}
	l.end = func() {
		_ = a.Close()
		_ = b.Close()
		for _, layer := range l.layers {
			layer.Close()
		}
		_, _ = l.from.Close(), l.to.Close()
		wg.Wait()
	}
	return l
}

// dialOften dials, and again if a full queue has taken all of a handshake.
func dialOften(t *testing.T, from *quic.Transport, to net.Addr, conf *quic.Config) *quic.Conn {
	t.Helper()
	var err error
	for range 5 {
		var c *quic.Conn
		if c, err = from.Dial(t.Context(), to, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"test"}}, conf); err == nil { //nolint:gosec // the test's own peer
			return c
		}
	}
	t.Fatal(err)
	return nil
}

// correct puts correction on both sockets, and tells each end what the other takes.
func (l *simLink) correct(seed byte) (a, b *quic.Transport) {
	conns := [2]net.PacketConn{l.from, l.to}
	for i := range conns {
		layer := New(conns[i], Options{Rand: mrand.New(mrand.NewPCG(uint64(seed), uint64(i)))})
		l.layers = append(l.layers, layer)
		conns[i], l.leases[i] = layer.PacketConn(), layer.Lease("peer")
	}
	l.leases[0].Enable(l.to.addr, l.leases[1].Tag())
	l.leases[1].Enable(l.from.addr, l.leases[0].Tag())
	return &quic.Transport{Conn: conns[0]}, &quic.Transport{Conn: conns[1]}
}

// outcome is what a run on a shared bottleneck gave: bytes, and the mean queue.
type outcome struct {
	links []float64
	tcp   float64
	queue time.Duration
}

// share returns the part of the TCP flow.
func (o outcome) share() float64 {
	sum := o.tcp
	for _, n := range o.links {
		sum += n
	}
	return o.tcp / sum
}

// contend lets links, and perhaps a TCP flow, share a bottleneck.
func contend(t *testing.T, s shared) outcome {
	t.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true")
	var out outcome
	synctest.Test(t, func(t *testing.T) {
		line := &bottleneck{rate: s.rate, delay: sharedDelay, queue: sharedQueue}
		var all []*simLink
		for i, n := range s.links {
			all = append(all, connectSim(t, line, byte(i+1), n))
		}
		c := newCubic(line, sharedDelay)
		if s.tcp {
			c.start()
		}
		time.Sleep(5 * time.Second)
		line.meanWait()
		var before []int64
		for _, l := range all {
			before = append(before, l.got.Load())
		}
		start := c.delivered()
		time.Sleep(s.lasts)
		out.queue = line.meanWait()
		for i, l := range all {
			out.links = append(out.links, float64(l.got.Load()-before[i]))
		}
		out.tcp = float64(c.delivered()-start) * (cubicPacket - 40)
		c.stop()
		for _, l := range all {
			if st := l.leases[0].Status(); st.Crowded == 0 || !st.On {
				t.Errorf("status %+v, want losses for want of room", st)
			}
			l.end()
		}
		time.Sleep(time.Minute) // timers of quic-go that nobody joins
		synctest.Wait()
	})
	return out
}

// TestTCPKeepsItsShareBesideALink: four corrected connections are one peer to
// others. A TCP flow gets a third of what it shares with another like it, and a
// quarter beside a link is what is asked for; it gets 0.4 here.
func TestTCPKeepsItsShareBesideALink(t *testing.T) {
	got := contend(t, shared{rate: 10e6 / 8, lasts: 20 * time.Second, tcp: true, links: []int{4}})
	t.Logf("TCP has %.2f; queue %v", got.share(), got.queue)
	if got.share() < 0.25 || got.share() > 0.8 {
		t.Errorf("a TCP flow has %.2f beside a link of four connections", got.share())
	}
}

// TestQueueIsNotKeptFull: a link alone leaves no longer queue than four connections
// without correction, for which the mean of this path is 70 ms, and uses the path.
func TestQueueIsNotKeptFull(t *testing.T) {
	const rate = 5e6 / 8
	got := contend(t, shared{rate: rate, lasts: 15 * time.Second, links: []int{4}})
	used := got.links[0] / 15 / rate
	t.Logf("queue %v, %.2f of the path", got.queue, used)
	if got.queue > 68*time.Millisecond || used < 0.9 {
		t.Errorf("a queue of %v, %.2f of the path", got.queue, used)
	}
}

func TestTwoLinksShare(t *testing.T) {
	got := contend(t, shared{rate: 5e6 / 8, lasts: 20 * time.Second, links: []int{4, 4}})
	a, b := got.links[0], got.links[1]
	t.Logf("%.0f and %.0f bytes; queue %v", a, b, got.queue)
	if low := min(a, b) / (a + b); low < 0.35 {
		t.Errorf("one of two links has %.2f", low)
	}
}

// TestManyKeepTheirShare: a link of four connections that comes to a queue which 30
// flows keep full takes no more than four of them would, an eighth; it takes 0.08, and
// 0.16 if the queue is not seen, which never drains by what would be measured.
func TestManyKeepTheirShare(t *testing.T) {
	t.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true")
	const flows, rate = 30, 20e6 / 8
	var share float64
	var repaired uint64
	synctest.Test(t, func(t *testing.T) {
		line := &bottleneck{rate: rate, delay: sharedDelay, queue: sharedQueue}
		var all []*cubic
		for range flows {
			c := newCubic(line, sharedDelay)
			c.start()
			all = append(all, c)
			time.Sleep(130 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		l := connectSim(t, line, 1, 4)
		time.Sleep(15 * time.Second)
		line.meanWait()
		before, status := l.got.Load(), l.leases[1].Status()
		time.Sleep(20 * time.Second)
		share = float64(l.got.Load()-before) / 20 / rate
		end := l.leases[1].Status()
		repaired = end.Recovered - end.Marked - end.Withheld - (status.Recovered - status.Marked - status.Withheld)
		t.Logf("a link has %.3f; %d losses were hidden; queue %v", share, repaired, line.meanWait())
		for _, c := range all {
			c.stop()
		}
		l.end()
		time.Sleep(time.Minute) // timers of quic-go that nobody joins
		synctest.Wait()
	})
	if share < 0.03 || share > 0.12 || repaired > 20 {
		t.Errorf("a link beside %d flows has %.3f, with %d hidden losses", flows, share, repaired)
	}
}

// TestLongerRouteKeepsItsParity: a link that loses 1 % by chance, and does not fill the
// path, goes on as before when the path becomes 20 ms longer.
func TestLongerRouteKeepsItsParity(t *testing.T) {
	t.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true")
	synctest.Test(t, func(t *testing.T) {
		rng := mrand.New(mrand.NewPCG(1, 2))
		line := &bottleneck{rate: 100e6 / 8, delay: sharedDelay, queue: sharedQueue, pause: 15 * time.Millisecond}
		line.before = func() bool { return rng.Float64() < 0.01 }
		l := connectSim(t, line, 1, 4)
		second := func(n time.Duration) float64 {
			before := l.got.Load()
			time.Sleep(n * time.Second)
			return float64(l.got.Load()-before) / float64(n)
		}
		second(5)
		short, before := second(5), l.leases[1].Status()
		line.mu.Lock()
		line.delay += 20 * time.Millisecond
		line.mu.Unlock()
		long, after := second(5), l.leases[1].Status()
		t.Logf("%.0f bytes a second over the short path, %.0f over the long one", short, long)
		if long < 0.9*short {
			t.Errorf("%.0f bytes a second over a longer path, %.0f before", long, short)
		}
		if n := after.Marked - before.Marked; n > 0 || after.Recovered == before.Recovered {
			t.Errorf("%d repaired packets were marked, %d repaired in all", n, after.Recovered-before.Recovered)
		}
		l.end()
		time.Sleep(time.Minute) // timers of quic-go that nobody joins
		synctest.Wait()
	})
}

// dial makes a connection from a to b.
func dial(t testing.TB, a, b *quic.Transport, to net.Addr) (client, server *quic.Conn) {
	t.Helper()
	conf := &quic.Config{InitialStreamReceiveWindow: 16 << 20, InitialConnectionReceiveWindow: 16 << 20}
	ln, err := b.Listen(&tls.Config{Certificates: []tls.Certificate{certificate(t)}, NextProtos: []string{"test"}}, conf)
	if err != nil {
		t.Fatal(err)
	}
	if client, err = a.Dial(t.Context(), to, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"test"}}, conf); err != nil { //nolint:gosec // the test's own peer
		t.Fatal(err)
	}
	if server, err = ln.Accept(t.Context()); err != nil {
		t.Fatal(err)
	}
	return client, server
}
