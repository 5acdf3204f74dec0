package ship

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// fixedView is the log of a master whose positions are given.
type fixedView struct{ end, synced, committed record.Position }

func (v fixedView) Incarnation() record.Incarnation { return 1 }
func (v fixedView) Lineage() []record.LineageStart  { return nil }
func (v fixedView) Begin() record.Position          { return 0 }
func (v fixedView) End() record.Position            { return v.end }
func (v fixedView) Synced() record.Position         { return v.synced }
func (v fixedView) Committed() record.Position      { return v.committed }

// bench is a keeper, the disks that it decides about, and a coordinator that may do
// what it is asked late, or without saying so.
type bench struct {
	rng      *rand.Rand
	now      time.Time
	k        *keeper
	group    coordinator.Group
	term     coordinator.Term // in force
	disks    map[zone.Node]*benchDisk
	asked    *ask   // the keeper waits for its answer
	late     []*ask // sent, and not looked at by the coordinator yet
	next     uint64 // session
	replaces bool   // disks are replaced
	seen     map[string]int
}

// benchDisk is a member's log as it is, whatever the keeper knows of it.
type benchDisk struct {
	written, synced record.Position
	session         uint64
	empty           bool // a new disk, without a store
}

func newBench(seed uint64) *bench {
	b := &bench{rng: rand.New(rand.NewPCG(seed, 1)), now: simStart, disks: map[zone.Node]*benchDisk{}, seen: map[string]int{}}
	names := []zone.Node{"a", "b", "c", "d", "e"}[:3+b.rng.IntN(3)]
	b.group = coordinator.Group{Name: simGroup, Members: names}
	b.term = coordinator.Term{Group: simGroup, Epoch: 1, Master: "a", InSync: slices.Clone(names[:1+b.rng.IntN(len(names))]), Majority: true, Version: 7}
	for _, n := range names {
		b.disks[n] = &benchDisk{}
	}
	b.replaces = seed%2 == 0
	limits := Limits{Near: 10, Close: 4, MaxHoldOff: 3 * time.Second}.WithDefaults()
	b.k = newKeeper(b.now, "a", b.term, limits, names, fixedView{})
	return b
}

// step is one random event, and what the keeper makes of it.
func (b *bench) step() {
	n := b.group.Members[b.rng.IntN(len(b.group.Members))]
	d, self := b.disks[n], b.disks["a"]
	switch b.rng.IntN(13) {
	case 0, 1:
		self.written += record.Position(b.rng.IntN(8))
		self.synced = self.written
		b.k.moved(self.written, self.synced)
	case 2, 3, 4: // it takes some, syncs, and says so, now or never
		if n == "a" || d.session == 0 {
			return
		}
		d.written = min(self.written, d.written+record.Position(b.rng.IntN(60)))
		if b.rng.IntN(4) > 0 {
			d.synced = d.written
		}
		if b.rng.IntN(4) > 0 {
			b.k.acked(b.now, n, d.session, d.written, d.synced)
		}
	case 5:
		b.come(n)
	case 6:
		if n != "a" && b.rng.IntN(2) == 0 {
			b.k.left(b.now, n, d.session)
			d.session, d.written = 0, d.synced // it crashed
		}
	case 7, 8:
		b.decide()
	case 9:
		b.answer()
	case 10:
		b.k.learned(b.now, b.term.Clone())
	case 11:
		b.now = b.now.Add(time.Duration(b.rng.Int64N(int64(400 * time.Millisecond))))
	case 12:
		if n != "a" && b.replaces && b.rng.IntN(20) == 0 {
			b.seen["disk replaced"]++
			b.k.left(b.now, n, d.session)
			*d = benchDisk{empty: true}
		}
	}
	x := b.k.step(b.now, b.rng.IntN(20) > 0)
	if x.ask != nil {
		if b.asked != nil {
			panic("a second request is under way")
		}
		b.asked, b.late = x.ask, append(b.late, x.ask)
		b.seen["asked"]++
	}
}

// come lets a replica begin a session.
func (b *bench) come(n zone.Node) {
	d := b.disks[n]
	if n == "a" {
		return
	}
	if d.empty {
		if b.k.emptied(b.now, n) {
			b.seen["kept waiting"]++
			return
		}
		d.empty = false // given a store, which begins empty
	}
	b.next++
	d.session = b.next
	b.k.joined(b.now, n, d.session, d.written)
}

// decide lets the coordinator look at a request, not always in order.
func (b *bench) decide() {
	if len(b.late) == 0 {
		return
	}
	i := b.rng.IntN(len(b.late))
	a := b.late[i]
	b.late = slices.Delete(b.late, i, i+1)
	if b.rng.IntN(5) == 0 {
		return // lost
	}
	t, err := b.term.Changed(b.group, 1, a.version, a.inSync, a.proposed)
	if err != nil {
		b.seen["stale"]++
		return
	}
	b.term = t
	b.seen["changed"]++
}

// answer ends the keeper's wait: with the term if the request was carried out, or
// without anything.
func (b *bench) answer() {
	if b.asked == nil {
		return
	}
	done := b.term.Version == b.asked.version+1 && slices.Equal(b.term.InSync, b.asked.inSync) && slices.Equal(b.term.Proposed, b.asked.proposed)
	if done = done && b.rng.IntN(3) > 0; done {
		b.k.learned(b.now, b.term.Clone())
	}
	b.asked = nil
	b.k.answered(b.now, done)
}

// check holds what was acknowledged against the disks of those who may be elected.
func (b *bench) check() error {
	whole := true
	var have []record.Position
	for _, n := range b.term.InSync {
		d := b.disks[n]
		if d.empty {
			whole = false // not fit, so not elected
			continue
		}
		have = append(have, d.synced)
		if d.synced < b.k.commit {
			return fmt.Errorf("%s is in sync up to %d, %d is committed", n, d.synced, b.k.commit)
		}
	}
	slices.Sort(have)
	if i := (len(have) - 1) / 2; whole && b.seen["disk replaced"] == 0 && have[i] < b.k.quorum {
		return fmt.Errorf("a majority of %v has %d, %d was acknowledged", b.term.InSync, have[i], b.k.quorum)
	}
	return nil
}

// TestWhoeverMayBeElectedHasWhatWasAcknowledged walks the keeper at random, with a
// coordinator whose answers and even deeds come late or never.
func TestWhoeverMayBeElectedHasWhatWasAcknowledged(t *testing.T) {
	total := map[string]int{}
	var commits, quorums int
	for seed := range uint64(400) {
		b := newBench(seed)
		for i := range 1500 {
			commit, quorum := b.k.commit, b.k.quorum
			b.step()
			if b.k.commit < commit || b.k.quorum < quorum || b.k.quorum < b.k.commit {
				t.Fatalf("seed %d step %d: positions went back", seed, i)
			}
			if b.k.commit > commit {
				commits++
			}
			if b.k.quorum > quorum {
				quorums++
			}
			if err := b.check(); err != nil {
				t.Fatalf("seed %d step %d: %v; in force %+v, the keeper knows %+v, open %v", seed, i, err, b.term, b.k.term, b.k.open)
			}
		}
		for what, n := range b.seen {
			total[what] += n
		}
	}
	for _, what := range []string{"asked", "changed", "stale", "kept waiting", "disk replaced"} {
		if total[what] < 100 {
			t.Errorf("%s: %d times only", what, total[what])
		}
	}
	if commits < 10_000 || quorums < 10_000 {
		t.Errorf("%d commits and %d majorities only", commits, quorums)
	}
	t.Logf("%d commits, %d majorities, %v", commits, quorums, total)
}

// A step that changes nothing but positions is taken for every write: it costs no
// memory.
func TestSteadyStepsAllocateNothing(t *testing.T) {
	names := []zone.Node{"a", "b", "c"}
	term := coordinator.Term{Group: simGroup, Epoch: 1, Master: "a", InSync: names, Version: 7}
	k := newKeeper(simStart, "a", term, Limits{}.WithDefaults(), names, fixedView{})
	k.joined(simStart, "b", 1, 0)
	k.joined(simStart, "c", 2, 0)
	now, p := simStart, record.Position(0)
	n := testing.AllocsPerRun(1000, func() {
		now, p = now.Add(time.Millisecond), p+100
		k.moved(p, p)
		k.step(now, true)
		k.acked(now, "b", 1, p, p)
		k.step(now, true)
		k.acked(now, "c", 2, p, p)
		if d := k.step(now, true); d.commit != p || !d.committed {
			t.Fatalf("committed up to %d of %d", d.commit, p)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations for a write with two replicas, want none", n)
	}
}

// Acknowledgements wait for a replica that has little left to make durable, or that
// has been as close as it comes for a while; not for one that is still syncing what it
// caught up with.
func TestAReplicaIsWaitedForWhenItIsClose(t *testing.T) {
	now := simStart
	term := coordinator.Term{Group: simGroup, Epoch: 1, Master: "a", InSync: []zone.Node{"a"}, Version: 7}
	k := newKeeper(now, "a", term, Limits{Near: 100, Close: 10}.WithDefaults(), []zone.Node{"a", "b"}, fixedView{})
	phase := func(after time.Duration, written, synced record.Position) Phase {
		now = now.Add(after)
		k.acked(now, "b", 1, written, synced)
		k.step(now, true)
		return k.find("b").phase
	}
	k.moved(1000, 1000)
	k.joined(now, "b", 1, 0)
	for _, c := range []struct {
		what            string
		after           time.Duration
		end             record.Position
		written, synced record.Position
		want            Phase
	}{
		{"far", 0, 1000, 800, 700, PhaseAsync},
		{"near", 500 * time.Millisecond, 1000, 950, 700, PhaseAsync},
		{"near for a while", 600 * time.Millisecond, 1000, 990, 980, PhaseAsync},
		{"far again", 100 * time.Millisecond, 1200, 990, 990, PhaseAsync},
		{"near once more", 100 * time.Millisecond, 1200, 1150, 1150, PhaseAsync},
		{"near for less than Semi", 900 * time.Millisecond, 1300, 1250, 1250, PhaseAsync},
		{"close", 50 * time.Millisecond, 1300, 1299, 1290, PhaseSemi},
	} {
		k.moved(c.end, c.end)
		if got := phase(c.after, c.written, c.synced); got != c.want {
			t.Fatalf("%s: %s, want %s", c.what, got, c.want)
		}
	}
	k.left(now, "b", 1)
	k.step(now, true)
	k.joined(now, "b", 1, 1000)
	k.moved(1400, 1400)
	for range 2 { // it comes, and is seen to be near
		if got := phase(0, 1350, 1350); got != PhaseAsync {
			t.Fatalf("near at once: %s", got)
		}
	}
	for range 2 {
		if got := phase(400*time.Millisecond, 1350, 1350); got != PhaseAsync {
			t.Fatalf("near for less than Semi: %s", got)
		}
	}
	if got := phase(300*time.Millisecond, 1350, 1350); got != PhaseSemi {
		t.Errorf("near for as long as Semi: %s", got)
	}
}
