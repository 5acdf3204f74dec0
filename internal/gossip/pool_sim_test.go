package gossip

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// settle outlives every timer that memberlist leaves behind after Shutdown; the
// bubble's clock stops with the test.
const settle = 5 * time.Minute

type simPool struct {
	*Pool
	name string
}

func openSim(t *testing.T, n *simNetwork, preset Preset, name, addr string, seeds ...string) simPool {
	t.Helper()
	p, err := Open(Config{
		Pool: "bank/wan", Name: zone.Node(name), Key: testKey(1), Preset: preset,
		Seeds: func() []string { return seeds }, Transport: n.listen(addr),
		Meta: Meta{Role: zone.RoleRouter, City: zone.City("city-of-" + name), QUIC: addr},
	})
	if err != nil {
		t.Fatal(err)
	}
	return simPool{p, name}
}

func names(p simPool) string {
	var all []string
	for _, m := range p.Members() {
		all = append(all, string(m.Name))
	}
	return strings.Join(all, " ")
}

// within polls in simulated time and returns how long it took.
func within(t *testing.T, limit time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > limit {
			t.Fatalf("%s: not within %v", what, limit)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return time.Since(start)
}

func see(want string, pools ...simPool) func() bool {
	return func() bool {
		for _, p := range pools {
			if names(p) != want {
				return false
			}
		}
		return true
	}
}

func closeAll(t *testing.T, pools ...simPool) {
	t.Helper()
	for _, p := range pools {
		if err := p.Close(); err != nil {
			t.Errorf("close %s: %v", p.name, err)
		}
	}
	time.Sleep(settle)
}

func TestX4_LongPartitionHealsThroughSeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newSimNetwork()
		seeds := []string{"10.0.0.1:7", "10.0.0.2:7", "10.0.0.3:7", "10.0.0.4:7"}
		var pools []simPool
		for i, name := range []string{"a", "b", "c", "d"} {
			pools = append(pools, openSim(t, n, WAN, name, fmt.Sprintf("10.0.0.%d:7", i+1), seeds...))
		}
		within(t, 20*time.Second, "join", see("a b c d", pools...))

		left := func(a string) bool { return a == seeds[0] || a == seeds[1] }
		n.setCut(func(from, to string) bool { return left(from) != left(to) })
		within(t, time.Minute, "left half sees the cut", see("a b", pools[:2]...))
		within(t, time.Minute, "right half sees the cut", see("c d", pools[2:]...))
		time.Sleep(2 * time.Hour) // far longer than the dead are remembered

		n.setCut(nil)
		took := within(t, time.Minute, "heal", see("a b c d", pools...))
		t.Logf("healed after %v of simulated time", took)
		closeAll(t, pools...)
	})
}

func TestDeadNodeIsSeenWithinTheBound(t *testing.T) {
	for _, c := range []struct {
		preset Preset
		limit  time.Duration
	}{{LAN, 15 * time.Second}, {WAN, 30 * time.Second}} {
		t.Run(fmt.Sprint(c.preset), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newSimNetwork()
				a := openSim(t, n, c.preset, "a", "10.0.0.1:7", "10.0.0.2:7")
				b := openSim(t, n, c.preset, "b", "10.0.0.2:7", "10.0.0.1:7")
				d := openSim(t, n, c.preset, "d", "10.0.0.3:7", "10.0.0.1:7")
				within(t, 20*time.Second, "join", see("a b d", a, b, d))
				if err := d.Abort(); err != nil {
					t.Fatal(err)
				}
				took := within(t, c.limit, "death", see("a b", a, b))
				t.Logf("death seen after %v of simulated time", took)
				closeAll(t, a, b)
			})
		})
	}
}

func TestT3_RestartUnderANewAddressIsBackWithinSeconds(t *testing.T) {
	for _, preset := range []Preset{LAN, WAN} {
		t.Run(fmt.Sprint(preset), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newSimNetwork()
				a := openSim(t, n, preset, "a", "10.0.0.1:7")
				b := openSim(t, n, preset, "b", "10.0.0.2:7", "10.0.0.1:7")
				within(t, 20*time.Second, "join", see("a b", a, b))
				if err := b.Abort(); err != nil { // as kill -9 would
					t.Fatal(err)
				}
				time.Sleep(100 * time.Millisecond) // the old entry is still thought alive
				again := openSim(t, n, preset, "b", "10.0.0.9:7", "10.0.0.1:7")
				within(t, 3*time.Second, "return", func() bool {
					for _, m := range a.Members() {
						if m.Name == "b" && m.QUIC == "10.0.0.9:7" {
							return true
						}
					}
					return false
				})
				// The dead start never comes back in front of the living one.
				for range 100 {
					time.Sleep(time.Second)
					if names(a) != "a b" || a.Members()[1].QUIC != "10.0.0.9:7" {
						t.Fatalf("members %+v", a.Members())
					}
				}
				closeAll(t, a, again)
			})
		})
	}
}

func TestT3_RestartUnderTheSameAddressIsBackWithinSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newSimNetwork()
		a := openSim(t, n, WAN, "a", "10.0.0.1:7", "10.0.0.2:7")
		b := openSim(t, n, WAN, "b", "10.0.0.2:7", "10.0.0.1:7")
		within(t, 20*time.Second, "join", see("a b", a, b))
		old := a.Members()[1].Start
		if err := b.Abort(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		again := openSim(t, n, WAN, "b", "10.0.0.2:7", "10.0.0.1:7")
		within(t, 3*time.Second, "return", func() bool {
			return names(a) == "a b" && a.Members()[1].Start > old
		})
		closeAll(t, a, again)
	})
}

func TestT3_PausedOlderStartDoesNotReplaceTheNewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newSimNetwork()
		a := openSim(t, n, LAN, "a", "10.0.0.1:7")
		paused := openSim(t, n, LAN, "b", "10.0.0.2:7", "10.0.0.1:7")
		within(t, 20*time.Second, "join", see("a b", a, paused))
		n.setCut(func(from, to string) bool { return from == "10.0.0.2:7" || to == "10.0.0.2:7" })
		within(t, time.Minute, "pause is seen as death", see("a", a))
		newer := openSim(t, n, LAN, "b", "10.0.0.3:7", "10.0.0.1:7")
		within(t, 10*time.Second, "newer start", see("a b", a))
		n.setCut(nil) // the paused one wakes up and finds its seeds
		within(t, time.Minute, "conflict is counted", func() bool { return paused.Stats().NameConflicts > 0 })
		for range 60 {
			time.Sleep(time.Second)
			if m := a.Members(); len(m) != 2 || m[1].QUIC != "10.0.0.3:7" {
				t.Fatalf("members %+v", m)
			}
		}
		closeAll(t, a, paused, newer)
	})
}

func TestMetaReachesTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newSimNetwork()
		a := openSim(t, n, LAN, "a", "10.0.0.1:7")
		b := openSim(t, n, LAN, "b", "10.0.0.2:7", "10.0.0.1:7")
		within(t, 20*time.Second, "join", see("a b", a, b))
		for len(a.Changes()) > 0 {
			<-a.Changes()
		}
		epoch := zone.Epoch{Term: 1, Number: 9}
		if err := b.SetMeta(func(m *Meta) { m.Draining, m.Epoch = true, epoch }); err != nil {
			t.Fatal(err)
		}
		select {
		case <-a.Changes():
		case <-time.After(5 * time.Second):
			t.Fatal("no change signalled")
		}
		within(t, 5*time.Second, "draining", func() bool {
			m := a.Members()[1]
			return m.Draining && m.Epoch == epoch && m.City == "city-of-b" && !m.Self
		})
		if !a.Members()[0].Self {
			t.Error("own entry is not marked")
		}
		huge := strings.Repeat("x", 255)
		if err := b.SetMeta(func(m *Meta) { m.City, m.Peer = zone.City(huge), huge }); err == nil {
			t.Error("oversized metadata accepted")
		}
		if err := b.SetMeta(func(*Meta) {}); err != nil { // what was refused left no trace
			t.Error(err)
		}
		closeAll(t, a, b)
	})
}

func TestFarewellIsSeenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newSimNetwork()
		a := openSim(t, n, WAN, "a", "10.0.0.1:7")
		b := openSim(t, n, WAN, "b", "10.0.0.2:7", "10.0.0.1:7")
		within(t, 20*time.Second, "join", see("a b", a, b))
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		within(t, 2*time.Second, "farewell", see("a", a))
		if err := b.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
		if err := b.SetMeta(func(m *Meta) { m.Draining = true }); err != ErrClosed { //nolint:errorlint // the sentinel itself
			t.Errorf("SetMeta after Close: %v, want ErrClosed", err)
		}
		closeAll(t, a)
	})
}

func TestClosedPoolTouchesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newSimNetwork()
		a := openSim(t, n, LAN, "a", "10.0.0.1:7", "10.0.0.2:7")
		b := openSim(t, n, LAN, "b", "10.0.0.2:7", "10.0.0.1:7")
		within(t, 20*time.Second, "join", see("a b", a, b))
		if err := b.Abort(); err != nil {
			t.Fatal(err)
		}
		var sent bool
		n.setCut(func(from, _ string) bool { sent = sent || from == "10.0.0.2:7"; return false })
		for len(b.Changes()) > 0 {
			<-b.Changes()
		}
		before := names(b)
		time.Sleep(settle)
		n.setCut(nil)
		if sent {
			t.Error("a closed pool sent packets")
		}
		if names(b) != before || len(b.Changes()) > 0 {
			t.Error("a closed pool still listens")
		}
		if _, err := b.fence.WriteTo(nil, "10.0.0.1:7"); err != ErrClosed { //nolint:errorlint // the sentinel itself
			t.Errorf("write: %v, want ErrClosed", err)
		}
		if _, err := b.fence.DialTimeout("10.0.0.1:7", time.Second); err != ErrClosed { //nolint:errorlint // the sentinel itself
			t.Errorf("dial: %v, want ErrClosed", err)
		}
		if _, _, err := b.fence.FinalAdvertiseAddr("", 0); err != ErrClosed { //nolint:errorlint // the sentinel itself
			t.Errorf("advertise: %v, want ErrClosed", err)
		}
		closeAll(t, a)
	})
}
