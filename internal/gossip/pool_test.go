package gossip

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

func testKey(b byte) []byte { return bytes.Repeat([]byte{b}, 32) }

// deadline bounds the waiting of tests with real sockets; reaching it is a
// failure, being early decides nothing.
const deadline = 3 * time.Minute

func openReal(t *testing.T, pool, name string, key byte, seeds ...string) *Pool {
	t.Helper()
	p, err := Open(Config{
		Pool: pool, Name: zone.Node(name), Bind: "127.0.0.1:0", Key: testKey(key),
		Seeds: func() []string { return seeds }, LeaveTimeout: 100 * time.Millisecond,
		Meta: Meta{Role: zone.RoleBroker, City: "shanghai", Zone: "sh-a", Group: "sh-a-1", Peer: "127.0.0.1:9"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Abort(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// await waits until ok, woken by the pool's changes and a slow ticker.
func await(t *testing.T, what string, p *Pool, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-p.Changes():
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within %v; members %+v, stats %+v", what, deadline, p.Members(), p.Stats())
		}
	}
}

func TestT1_RealSocketsJoinAndStayApartByPool(t *testing.T) {
	a := openReal(t, CityPool("bank", "shanghai"), "a", 1)
	seed := a.Addr().String()
	b := openReal(t, CityPool("bank", "shanghai"), "b", 1, seed)
	staging := openReal(t, CityPool("staging", "shanghai"), "c", 1, seed)
	wan := openReal(t, WANPool("bank"), "d", 1, seed, staging.Addr().String())

	await(t, "join", a, func() bool { return len(a.Members()) == 2 })
	await(t, "join", b, func() bool { return len(b.Members()) == 2 })
	await(t, "foreign label counted", a, func() bool { return a.Stats().ForeignLabel > 0 })
	await(t, "refused seed counted", staging, func() bool { return staging.Stats().JoinFailures > 0 })
	await(t, "refused seed counted", wan, func() bool { return wan.Stats().JoinFailures > 0 })
	for _, p := range []*Pool{staging, wan} {
		if len(p.Members()) != 1 {
			t.Errorf("a foreign pool sees %+v", p.Members())
		}
	}
	m := a.Members()
	if len(m) != 2 || m[1].Group != "sh-a-1" || m[1].Addr != b.Addr() {
		t.Errorf("members %+v", m)
	}
}

func TestT1_ForeignKeyIsRefusedAndCounted(t *testing.T) {
	a := openReal(t, "bank/wan", "a", 1)
	b := openReal(t, "bank/wan", "b", 2, a.Addr().String())
	await(t, "stream with a foreign key counted", a, func() bool { return a.Stats().ForeignKey > 0 })
	await(t, "refused seed counted", b, func() bool { return b.Stats().JoinFailures > 0 })
	if len(a.Members()) != 1 || len(b.Members()) != 1 {
		t.Errorf("members %+v and %+v", a.Members(), b.Members())
	}
}

func TestKeyChangesWithoutAGap(t *testing.T) {
	a := openReal(t, "bank/wan", "a", 1)
	b, err := Open(Config{
		Pool: "bank/wan", Name: "b", Bind: "127.0.0.1:0", Key: testKey(1), OldKeys: [][]byte{testKey(2)},
		Seeds: func() []string { return []string{a.Addr().String()} }, LeaveTimeout: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Abort(); err != nil {
			t.Error(err)
		}
	}()
	await(t, "join with a second key", a, func() bool { return len(a.Members()) == 2 })
}

func TestGarbageIsDroppedAndCounted(t *testing.T) {
	a := openReal(t, "bank/wan", "a", 1)
	addr := a.Addr().String()
	udp, err := net.Dial("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = udp.Close() }()
	label := "\xf4\x08bank/wan"
	for _, s := range []string{"x", "\xf4", "\xf4\x00", "\xf4\xff", label, label + "\x01short", label + strings.Repeat("x", 1200), strings.Repeat("\xf4", 60000)} {
		if _, err := udp.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []string{"GET / HTTP/1.1\r\n\r\n", "\xf4\x03abc", label + "\x0a\xff\xff\xff\xff", label + "\x09\x00"} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if _, err := c.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "garbage counted", a, func() bool { s := a.Stats(); return s.ForeignLabel >= 5 && s.ForeignKey >= 3 })
	b := openReal(t, "bank/wan", "b", 1, addr)
	await(t, "join after garbage", b, func() bool { return len(b.Members()) == 2 })
}

func TestStreamsAreBounded(t *testing.T) {
	a := openReal(t, "bank/wan", "a", 1)
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for range maxStreams + 10 { // none says a word
		c, err := net.Dial("tcp", a.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	await(t, "refusals counted", a, func() bool { return a.Stats().StreamsRefused > 0 })
	a.fence.mu.Lock()
	open := a.fence.inbound
	a.fence.mu.Unlock()
	if open > maxStreams {
		t.Errorf("%d inbound streams, bound %d", open, maxStreams)
	}
}

func TestConfigReportsEveryFault(t *testing.T) {
	long := strings.Repeat("x", 300)
	_, err := Open(Config{
		Pool: long, Name: "a~b", Bind: "nowhere", Advertise: "x", Key: []byte("short"), Preset: 9,
		Meta: Meta{City: zone.City(long)},
	})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"label", "node name", "bind address", "advertised", "key 0", "preset", "metadata too large"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no word of %q in:\n%v", want, err)
		}
	}
	if !errors.Is(err, ErrMetaTooLarge) {
		t.Error("not ErrMetaTooLarge")
	}
	ok := Config{Pool: "p", Name: "n", Key: testKey(1), Bind: "0.0.0.0:0"}
	if err := ok.Validate(); err == nil {
		t.Error("unspecified address without one to advertise accepted")
	}
	ok.Advertise = "10.0.0.1:7"
	if err := ok.Validate(); err != nil {
		t.Error(err)
	}
}

func TestHostNamesAreResolved(t *testing.T) {
	a, err := Open(Config{Pool: "bank/wan", Name: "a", Bind: "localhost:0", Key: testKey(1), LeaveTimeout: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.Abort(); err != nil {
			t.Error(err)
		}
	}()
	if !a.Addr().Addr().IsLoopback() || a.Addr().Port() == 0 {
		t.Errorf("address %v", a.Addr())
	}
	b, err := Open(Config{
		Pool: "bank/wan", Name: "b", Bind: ":0", Advertise: "localhost:7", Key: testKey(1), LeaveTimeout: time.Millisecond,
		Seeds: func() []string { return []string{a.Addr().String(), "no-such-host.invalid:7", "not an address"} },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Abort(); err != nil {
			t.Error(err)
		}
	}()
	await(t, "join from all addresses", a, func() bool { return len(a.Members()) == 2 })
	if b.Addr().Port() != 7 || !b.Addr().Addr().IsLoopback() {
		t.Errorf("advertised %v", b.Addr())
	}
}

func TestTakenPortIsAnError(t *testing.T) {
	a := openReal(t, "bank/wan", "a", 1)
	if _, err := Open(Config{Pool: "bank/wan", Name: "b", Bind: a.Addr().String(), Key: testKey(1)}); err == nil {
		t.Error("a taken port was bound twice")
	}
}

func TestFloodOfBadLinesIsNotAFloodOfLogs(t *testing.T) {
	var mu sync.Mutex
	var buf bytes.Buffer
	h := slog.NewTextHandler(lockedWriter{&mu, &buf}, &slog.HandlerOptions{Level: slog.LevelInfo})
	l := newStdLogger(slog.New(h), &counters{})
	for range 100000 {
		l.Printf("[ERR] memberlist: something bad from %s", "10.0.0.1")
	}
	l.Printf("[DEBUG] memberlist: detail")
	lines := strings.Count(buf.String(), "\n")
	// A burst a second, and the loop may cross a few seconds on a slow machine.
	if lines == 0 || lines > 50*logBurst {
		t.Errorf("%d lines", lines)
	}
	if !strings.Contains(buf.String(), "level=WARN msg=memberlist text=\"something bad from 10.0.0.1\"") || strings.Contains(buf.String(), "detail") {
		t.Errorf("log:\n%.300s", buf.String())
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	b  *bytes.Buffer
}

func (w lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}
