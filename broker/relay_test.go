package broker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/zone"
)

// zonal is the sample with the topic member broadcast to zones.
func zonal(t testing.TB, edits ...string) *zone.Topology {
	return sample(t, append([]string{"route: {broadcast: city}", "route: {broadcast: zone}"}, edits...)...)
}

// landedIDs returns the message ids of a broadcast topic in the order in which they
// landed in the store.
func (s *station) landedIDs(topic zone.Topic) (ids []string) {
	s.t.Helper()
	s.mu.RLock()
	ix := s.state.topics[topic].queues[0].index
	s.mu.RUnlock()
	entries := make([]queue.Entry, ix.Next()-ix.First())
	if _, err := ix.Read(ix.First(), entries); err != nil {
		s.t.Fatal(err)
	}
	for _, e := range entries {
		if e.Label == markLabel {
			continue // a range that did not land
		}
		v, err := s.readRecord(e)
		if err != nil {
			s.t.Fatal(err)
		}
		ids = append(ids, string(v.MessageID()))
	}
	return ids
}

// publishedIDs returns the message ids that the origin has numbered for a channel.
func (s *station) publishedIDs(channel string) (ids []string) {
	s.t.Helper()
	for id, f := range s.state.out {
		if id.Target != channel {
			continue
		}
		entries := make([]queue.Entry, f.index.Next()-f.index.First())
		if _, err := f.index.Read(f.index.First(), entries); err != nil {
			s.t.Fatal(err)
		}
		for _, e := range entries {
			v, err := s.readRecord(e)
			if err != nil {
				s.t.Fatal(err)
			}
			ids = append(ids, string(v.MessageID()))
		}
	}
	return ids
}

// wantEach fails unless got has each of ids exactly once, and those of each origin
// (what stands before the first -) in the order of publishing. Others, which an
// origin has lost, may be there once.
func wantEach(t testing.TB, where string, got, ids []string) {
	t.Helper()
	at := map[string]int{}
	for i, id := range got {
		if _, twice := at[id]; twice {
			t.Errorf("%s: %s landed twice", where, id)
		}
		at[id] = i
	}
	last, missing := map[string]int{}, 0
	for _, id := range ids {
		i, ok := at[id]
		if !ok {
			if missing++; missing < 5 {
				t.Errorf("%s: %s is missing", where, id)
			}
			continue
		}
		origin, _, _ := strings.Cut(id, "-")
		if before, ok := last[origin]; ok && i < before {
			t.Errorf("%s: %s landed before one that was published earlier", where, id)
		}
		last[origin] = i
	}
	if missing > 0 {
		t.Errorf("%s: %d of %d are missing", where, missing, len(ids))
	}
}

// everyNode is one node of each group that a broadcast to zones reaches in the
// sample, and two origins.
var everyNode = []zone.Node{
	"rz01-a-1", "rz01-b-1", "rz02-a-1", "gz01-a-1", "cz-sh-a-1",
	"rz03-a-1", "rz04-a-1", "gz02-a-1", "cz-hz-a-1", "rz05-a-1", "cz-sz-a-1",
}

// zoneSites returns the group of each zone in which the channel lands.
func (w *world) zoneSites(topic zone.Topic) (sites []*site) {
	for _, s := range w.sites {
		t := s.Topology()
		if s.Zone().SlotOwner(t.FindTopic(topic).Channel.Slot) == s.Group() {
			sites = append(sites, s)
		}
	}
	slices.SortFunc(sites, func(a, b *site) int { return strings.Compare(string(a.node), string(b.node)) })
	return sites
}

func TestBroadcastZoneLandsOnceInEveryZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, zonal(t), testLimits(), everyNode...)
		defer w.close()
		var ids []string
		for _, g := range []zone.Group{"rz02-a", "cz-sh-a", "gz02-a"} { // the second one is its city's CZone
			s := w.sites[g]
			for i := range 300 {
				id := fmt.Sprintf("%s-%d", strings.ReplaceAll(string(g), "-", ""), i)
				ids = append(ids, id)
				s.publish(s.message("member", id))
			}
		}
		w.settled()
		sites := w.zoneSites("member")
		if len(sites) != 10 { // of ten zones; one has a second group
			t.Fatalf("%d zones", len(sites))
		}
		for _, s := range sites {
			wantEach(t, string(s.node), s.landedIDs("member"), ids)
			wantOnce(t, s.drain("member-watch", "member"), ids) // a consumer group may be in any zone
			wantSlots(t, s.station)
			if g := s.cacheGroups(); (s.Zone().Kind == zone.CZone) != (g == 1) {
				t.Errorf("%s has %d cache subscriptions", s.node, g)
			}
		}
		found, err := w.sites["rz04-a"].FindMessage(t.Context(), "rz02a-7")
		if err != nil || len(found) != 1 || !slices.Equal(found[0].Path, []zone.City{"shanghai", "hangzhou"}) || found[0].Number != 8 {
			t.Errorf("found %+v, %v", found, err)
		}
	})
}

func (s *station) cacheGroups() (n int) {
	for _, g := range s.Status().Groups {
		if g.Cache {
			n++
		}
	}
	return n
}

// TestBacklogOfEachZoneIsSeenAtItsCity: a zone that is down holds up no other, the
// origin's cursor of the city moves all the same, and the city tells what waits.
func TestBacklogOfEachZoneIsSeenAtItsCity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, zonal(t), testLimits(), "rz02-a-1", "cz-hz-a-1", "rz03-a-1")
		defer w.close()
		from := w.sites["rz02-a"]
		for i := range 50 {
			from.publish(from.message("member", fmt.Sprintf("a-%d", i)))
		}
		time.Sleep(5 * time.Second)
		if n := len(w.sites["rz03-a"].landedIDs("member")); n != 50 {
			t.Fatalf("%d landed in the zone that is up", n)
		}
		for _, o := range from.Status().Outgoing {
			if o.City == "hangzhou" && o.Cursor != 50 {
				t.Errorf("the origin's cursor of the city is %d", o.Cursor)
			}
		}
		left := map[zone.Group]uint64{}
		for _, o := range w.sites["cz-hz-a"].Status().Outgoing {
			if !o.Onward || o.Flow.Origin != "rz02-a" || o.Head != 50 {
				t.Errorf("outgoing %+v", o)
			}
			left[o.Group] = o.Head - o.Cursor
			if waits := o.Group != "rz03-a"; waits != (o.BacklogBytes > 0) || waits != (o.Oldest > 0) {
				t.Errorf("%s: %d bytes, oldest %v", o.Group, o.BacklogBytes, o.Oldest)
			}
		}
		if left["rz03-a"] != 0 || left["rz04-a"] != 50 || left["gz02-a"] != 50 {
			t.Errorf("backlog %v", left)
		}
	})
}

// TestZonesGetEachRecordOnceThroughAnyFault is I2 and I3 of relay legs: the city's
// group is killed, wiped and put back to an old copy, zones and origins too, and
// each zone has each record once, in order.
func TestZonesGetEachRecordOnceThroughAnyFault(t *testing.T) {
	for seed := range *relaySeeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { zonesUnderFaults(t, seed) })
		})
	}
}

func zonesUnderFaults(t *testing.T, seed uint64) {
	limits := testLimits()
	limits.SnapshotBytes = 20 << 10
	w := newWorld(t, zonal(t), limits, "rz02-a-1", "cz-sh-a-1", "cz-hz-a-1", "rz03-a-1", "rz04-a-1")
	defer w.close()
	w.rng = rand.New(rand.NewPCG(seed, 1))
	kept := map[zone.Group]*disk.Mem{}
	groups := []zone.Group{"cz-hz-a", "cz-hz-a", "rz03-a", "rz04-a", "cz-sh-a", "rz02-a"}
	for round := range 25 {
		for _, g := range []zone.Group{"rz02-a", "cz-sh-a"} {
			s := w.sites[g]
			for i := range 1 + w.rng.IntN(20) {
				id := fmt.Sprintf("%s-%d-%d", s.Zone().Name, round, i)
				id = strings.Replace(id, "cz-sh", "czsh", 1)
				s.publish(s.message("member", id))
			}
		}
		time.Sleep(time.Duration(w.rng.IntN(300)) * time.Millisecond)
		g := groups[w.rng.IntN(len(groups))]
		s := w.sites[g]
		wipe := g != "rz02-a" && g != "cz-sh-a" // what an origin loses is lost
		switch w.rng.IntN(6) {
		case 0, 1:
			s.crash()
		case 2:
			s.bounce()
		case 3:
			kept[g] = s.mem.Crash(w.rng)
		case 4:
			if old := kept[g]; old != nil {
				s.replace(old)
				delete(kept, g)
			}
		case 5:
			if wipe {
				s.replace(disk.NewMem())
			}
		}
	}
	// A destination that lost its store is found out when there is something for it.
	for _, g := range []zone.Group{"rz02-a", "cz-sh-a"} {
		s := w.sites[g]
		s.publish(s.message("member", strings.Replace(string(s.Zone().Name), "-", "", 1)+"-last"))
	}
	w.settledAt("cz-hz-a", "rz03-a", "rz04-a")
	var ids []string
	for _, g := range []zone.Group{"rz02-a", "cz-sh-a"} {
		ids = append(ids, w.sites[g].publishedIDs("member")...)
	}
	for _, g := range []zone.Group{"rz03-a", "rz04-a"} {
		wantEach(t, fmt.Sprintf("seed %d, %s", seed, g), w.sites[g].landedIDs("member"), ids)
	}
	for _, s := range w.sites {
		wantSlots(t, s.station)
	}
}

// replace puts another disk in, as an operator who restores a copy.
func (s *site) replace(m *disk.Mem) {
	s.down()
	s.mem, s.fs = m, m
	s.up()
}

// settledAt waits until nothing is on its way to the groups.
func (w *world) settledAt(groups ...zone.Group) {
	w.t.Helper()
	for range 3000 {
		synctest.Wait()
		left := 0
		for _, s := range w.sites {
			for _, l := range s.Legs() {
				if slices.Contains(groups, l.Group) {
					left++
				}
			}
		}
		if left == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	for _, s := range w.sites {
		for _, o := range s.Status().Outgoing {
			if o.Cursor < o.Head {
				w.t.Logf("%s: %s to %s: %d of %d", s.node, flow.FlowName(o.Flow), o.Group, o.Cursor, o.Head)
			}
		}
	}
	for _, s := range w.sites {
		for _, st := range s.outbox.Status() {
			w.t.Logf("%s leg %+v", s.node, st)
		}
		for _, st := range s.inbox.Status() {
			w.t.Logf("%s inbound %+v", s.node, st)
		}
	}
	w.t.Fatal("flows did not settle")
}

// TestLandingsAreKeptForEachZoneWithinTheBudget: a zone that is away finds all that
// the city landed meanwhile, up to its channel's budget; beyond it, it is told of
// the gap, and the rest comes.
func TestLandingsAreKeptForEachZoneWithinTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits()
		limits.SegmentBytes = 64 << 10
		w := newWorld(t, zonal(t, "budget: 256MiB", "budget: 1MiB", "retention: 168h", "retention: 169h"), limits, "rz02-a-1", "cz-sh-a-1", "cz-sz-a-1", "cz-hz-a-1", "rz03-a-1", "rz04-a-1", "gz02-a-1")
		defer w.close()
		from, lands, away := w.sites["rz02-a"], w.sites["cz-hz-a"], w.sites["rz04-a"]
		away.down()
		send := func(prefix string, n int) (ids []string) {
			for i := range n {
				m := from.message("member", fmt.Sprintf("%s-%d", prefix, i))
				m.Body = make([]byte, 2<<10)
				from.publish(m)
				ids = append(ids, m.ID)
				if i%50 == 49 { // the origin has a budget for the city, too
					w.settledAt("cz-sh-a", "cz-sz-a", "cz-hz-a", "rz03-a")
				}
			}
			w.settledAt("cz-sh-a", "cz-sz-a", "cz-hz-a", "rz03-a")
			lands.drain("member-watch", "member")
			time.Sleep(time.Second)
			if err := lands.snapshot(t.Context()); err != nil {
				t.Fatal(err)
			}
			lands.publishN("orders", prefix, 1)
			lands.drain("orders-billing", "orders")
			time.Sleep(time.Second)
			if err := lands.snapshot(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := lands.trim(time.Now().Add(1000 * time.Hour)); err != nil {
				t.Fatal(err)
			}
			return ids
		}
		lands.drop("member-cache", "member")
		ids := send("a", 300) // 600 KiB
		if o := lands.onward("rz04-a"); o.BacklogBytes < 600<<10 {
			t.Fatalf("backlog %+v", o)
		}
		away.up()
		w.settledAt("rz04-a")
		wantEach(t, "within the budget", away.landedIDs("member"), ids)

		away.down()
		ids = send("b", 1000) // 2 MiB
		kept := []string{"c-1", "c-2"}
		for _, id := range kept {
			from.publish(from.message("member", id))
		}
		w.settledAt("cz-sh-a", "cz-sz-a", "cz-hz-a", "rz03-a")
		away.up()
		w.settledAt("rz04-a")
		ids = append(ids, kept...)
		// The log is trimmed by segments, so a little more than c is left.
		if got := away.landedIDs("member")[300:]; len(got) > 100 || !slices.Equal(got, ids[len(ids)-len(got):]) {
			t.Fatalf("%d landed beyond the budget", len(got))
		}
		wantEach(t, "a zone that was there", w.sites["rz03-a"].landedIDs("member")[300:], ids)
		st := away.Status().Incoming
		if i := slices.IndexFunc(st, func(i IncomingStatus) bool { return i.Flow.Origin == "rz02-a" }); i < 0 || st[i].Settled != 1302 || st[i].Outcomes == 0 {
			t.Errorf("incoming %+v", st)
		}
		if o := lands.onward("rz04-a"); o.Cursor != o.Head || o.BacklogBytes != 0 {
			t.Errorf("onward %+v", o)
		}
	})
}

// drop makes a subscription that nobody reads hold back nothing.
func (s *station) drop(g zone.ConsumerGroup, topic zone.Topic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.subs[subKey{g, topic}].declared = false
}

// onward returns the status of a destination that the group serves from landings.
func (s *station) onward(to zone.Group) OutgoingStatus {
	for _, o := range s.Status().Outgoing {
		if o.Onward && o.Group == to {
			return o
		}
	}
	return OutgoingStatus{}
}
