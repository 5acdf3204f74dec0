package gossip

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// keyStep gives a pool its keys; the first is used.
func keyStep(t *testing.T, p simPool, keys ...byte) {
	t.Helper()
	var old [][]byte
	for _, k := range keys[1:] {
		old = append(old, testKey(k))
	}
	if err := p.SetKeys(testKey(keys[0]), old); err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
}

// TestKeysRotateWithoutAGap changes the key of a running pool in the three steps
// of the runbook, node by node with time between them: nobody is lost, nobody is
// refused, and a node that has the old key only is outside then. One that missed
// the steps comes back when it follows.
func TestKeysRotateWithoutAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newSimNetwork()
		seeds := []string{"10.0.0.1:7", "10.0.0.2:7", "10.0.0.3:7", "10.0.0.4:7"}
		var pools []simPool
		for i, name := range []string{"a", "b", "c", "d"} {
			pools = append(pools, openSim(t, n, LAN, name, fmt.Sprintf("10.0.0.%d:7", i+1), seeds...))
		}
		follows, late := pools[:3], pools[3]
		within(t, 20*time.Second, "join", see("a b c d", pools...))
		all := func(want string) {
			t.Helper()
			for range 100 {
				time.Sleep(100 * time.Millisecond)
				for _, p := range follows {
					if names(p) != want {
						t.Fatalf("%s sees %q, want %q", p.name, names(p), want)
					}
				}
			}
		}
		for _, step := range [][]byte{{1, 2}, {2, 1}} {
			for _, p := range pools {
				keyStep(t, p, step...)
				all("a b c d")
			}
		}
		for _, p := range pools {
			if s := p.Stats(); s.ForeignKey != 0 {
				t.Errorf("%s refused %d packets in a change by the book", p.name, s.ForeignKey)
			}
		}
		// The last node goes back to the old key alone while the others drop it.
		keyStep(t, late, 1)
		for _, p := range follows {
			keyStep(t, p, 2)
		}
		within(t, time.Minute, "the late one is outside", see("a b c", follows...))
		if s := follows[0].Stats(); s.ForeignKey == 0 {
			t.Error("packets of a foreign key are not counted")
		}
		keyStep(t, late, 2)
		within(t, 2*time.Minute, "the late one is back", see("a b c d", pools...))
		if err := late.Abort(); err != nil {
			t.Error(err)
		}
		if err := late.SetKeys(testKey(3), nil); !errors.Is(err, ErrClosed) {
			t.Errorf("SetKeys after the end: %v", err)
		}
		closeAll(t, follows...)
	})
}

// TestR3_StarvedMembersFlapAlone starves two of twelve nodes for three minutes:
// they hear and answer late. The others keep each other, whatever the two say,
// and everybody has everybody when it is over.
func TestR3_StarvedMembersFlapAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newSimNetwork()
		var seeds []string
		for i := range 12 {
			seeds = append(seeds, fmt.Sprintf("10.0.0.%d:7", i+1))
		}
		var pools []simPool
		want := ""
		for i := range 12 {
			name := fmt.Sprintf("n%02d", i)
			pools = append(pools, openSim(t, n, LAN, name, seeds[i], seeds[:4]...))
			want += " " + name
		}
		want = want[1:]
		within(t, time.Minute, "join", see(want, pools...))

		starved := func(addr string) bool { return addr == seeds[10] || addr == seeds[11] }
		n.setDelay(func(from, to string) time.Duration {
			if starved(from) || starved(to) {
				return 2 * time.Second // more than a probe waits
			}
			return 0
		})
		lost := 0
		for range 3 * 60 {
			time.Sleep(time.Second)
			for _, p := range pools[:10] {
				seen := map[string]bool{}
				for _, m := range p.Members() {
					seen[string(m.Name)] = true
				}
				for _, o := range pools[:10] {
					if !seen[o.name] {
						lost++
					}
				}
			}
		}
		// A refuted death shows for a moment; ten nodes look at nine 180 times.
		if most := 10 * 9 * 180 / 100; lost > most {
			t.Errorf("well nodes missed each other in %d looks of %d, want at most one in a hundred", lost, 10*9*180)
		}
		n.setDelay(nil)
		within(t, 2*time.Minute, "everybody again", see(want, pools...))
		closeAll(t, pools...)
	})
}
