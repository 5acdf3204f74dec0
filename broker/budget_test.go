package broker

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// memberAt is the sample with a small budget of the topic member, and what
// happens at its end.
func memberAt(t *testing.T, end string, edits ...string) *zone.Topology {
	return sample(t, append([]string{"budget: 256MiB", "budget: 64KiB", "at_budget: refuse", "at_budget: " + end, "max_body: 1MiB", "max_body: 32KiB"}, edits...)...)
}

// late starts a site that the world did not have.
func (w *world) late(node zone.Node, topo *zone.Topology, limits Limits) *site {
	mem := disk.NewMem()
	s := &site{station: &station{t: w.t, fs: mem, node: node, topo: topo, limits: limits}, world: w, mem: mem}
	s.up()
	return s
}

// to returns the status of the leg to a city.
func (s *station) to(city zone.City, group zone.Group) OutgoingStatus {
	s.t.Helper()
	for _, o := range s.Status().Outgoing {
		if o.City == city && o.Group == group {
			return o
		}
	}
	s.t.Fatalf("no leg to %s in %s", group, city)
	return OutgoingStatus{}
}

// received returns the numeric ids that a group gets, in order.
func (s *station) received(g zone.ConsumerGroup, topic zone.Topic) []string {
	s.t.Helper()
	var ids []string
	for {
		list := s.receive(g, topic, 100, time.Minute)
		if len(list) == 0 {
			return ids
		}
		for _, d := range list {
			ids = append(ids, string(d.Record.MessageID()))
		}
		s.ack(g, list...)
	}
}

func numbered(from, to int) []string {
	var ids []string
	for i := from; i < to; i++ {
		ids = append(ids, fmt.Sprint(i))
	}
	return ids
}

// TestK1_GapAtTheBudget: a city that stays away loses the oldest of what waits for
// it and nothing else. The decision is in the log: neither a power cut nor the
// city's return revives it, the city is told, and everybody else has everything.
func TestK1_GapAtTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topo := memberAt(t, "gap")
		w := newWorld(t, topo, testLimits(), "rz02-a-1", "cz-sh-a-1", "cz-hz-a-1")
		defer w.close() // shenzhen is down
		from := w.sites["rz02-a"]
		const n = 400
		for i := range n {
			m := from.message("member", fmt.Sprint(i))
			m.Body = make([]byte, 1<<10)
			from.publish(m)
			time.Sleep(50 * time.Millisecond)
			if i%100 == 50 {
				time.Sleep(time.Second)
				from.crash()
			}
		}
		time.Sleep(5 * time.Second)
		away := from.to("shenzhen", "cz-sz-a")
		if away.Lost == 0 || away.Untold != away.Lost || away.Cursor != 0 || away.Head != n {
			t.Fatalf("leg to the city that is away: %+v", away)
		}
		if limit := int64(80 << 10); away.BacklogBytes > limit || away.BacklogBytes < 32<<10 {
			t.Fatalf("%d bytes of backlog, want at most %d and most of the budget", away.BacklogBytes, limit)
		}
		if here := from.to("hangzhou", "cz-hz-a"); here.Lost != 0 || here.Cursor != n {
			t.Fatalf("leg to a city that is there: %+v", here)
		}
		from.crash()
		if again := from.to("shenzhen", "cz-sz-a"); again.Lost != away.Lost || again.BacklogBytes != away.BacklogBytes {
			t.Fatalf("after a power cut %+v, before it %+v", again, away)
		}
		sz := w.late("cz-sz-a-1", topo, testLimits())
		w.settled()
		lost := int(away.Lost)
		if got := sz.received("member-watch", "member"); !slices.Equal(got, numbered(lost, n)) {
			t.Fatalf("the city has %d from %q on, want the newest %d", len(got), got[0], n-lost)
		}
		for _, city := range []zone.Group{"cz-sh-a", "cz-hz-a"} {
			if got := w.sites[city].received("member-watch", "member"); !slices.Equal(got, numbered(0, n)) {
				t.Fatalf("%s has %d of %d", city, len(got), n)
			}
		}
		time.Sleep(time.Second)
		if back := from.to("shenzhen", "cz-sz-a"); back.Untold != 0 || back.Lost != away.Lost || back.Cursor != n || back.BacklogBytes != 0 {
			t.Fatalf("after the return %+v", back)
		}
		wantSlots(t, sz.station)
		r := readLandings(t, sz, wire.Want{Subscription: "member-cache", Topic: "member", Credit: wire.Credit{Number: 1000, Bytes: 1 << 30}})
		e := r.envelope()
		if e.Outcome != record.OutcomeGap || e.Reason != record.ReasonBudget || e.Number != 1 || e.Through < 50 {
			t.Fatalf("a reader of landings is told %+v, want a gap from number 1 to the end of its lineage", e)
		}
		r.end()
	})
}

// TestGapSparesOtherTopics: topics share a flow; what one of them gives up takes
// nothing from the others, and other destinations lose nothing.
func TestGapSparesOtherTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topo := sample(t, "    class: bulk\n    route: {shard: {property: userId}}",
			"    class: bulk\n    budget: 64KiB\n    at_budget: gap\n    max_body: 32KiB\n    route: {shard: {property: userId}}")
		w := newWorld(t, topo, testLimits(), "rz02-a-1")
		defer w.close() // rz03 is down
		from := w.sites["rz02-a"]
		var kept []string
		for i := range 300 {
			m := from.message("transfer", fmt.Sprint("t", i), "userId", "50")
			m.Body = make([]byte, 1<<10)
			d := from.message("directed", fmt.Sprint("d", i), "destination", "rz03")
			from.publish(m, d)
			kept = append(kept, d.ID)
			if i%50 == 0 {
				time.Sleep(time.Second)
			}
		}
		time.Sleep(3 * time.Second)
		var lost uint64
		for _, o := range from.Status().Outgoing {
			lost += o.Lost
		}
		if lost < 200 {
			t.Fatalf("%d records are lost, want most of 300", lost)
		}
		from.bounce()
		to := w.late("rz03-a-1", topo, testLimits())
		w.settled()
		wantOnce(t, to.drain("directed-worker", "directed"), kept)
		if got := to.drain("transfer-credit", "transfer"); len(got) != 300-int(lost) {
			t.Fatalf("%d transfers came, want %d", len(got), 300-lost)
		}
	})
}

// TestGivenUpRecordsFreeTheLog: what was declared lost holds no segment back,
// and the destination is told of it all the same, with the reason.
func TestGivenUpRecordsFreeTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topo := memberAt(t, "gap")
		limits := testLimits()
		limits.SegmentBytes, limits.SnapshotBytes, limits.TrimEvery = 64<<10, 64<<10, time.Minute
		w := newWorld(t, topo, limits, "rz02-a-1", "cz-sh-a-1", "cz-hz-a-1")
		defer w.close()
		from := w.sites["rz02-a"]
		const n = 600
		for i := range n {
			m := from.message("member", fmt.Sprint(i))
			m.Body = make([]byte, 1<<10)
			from.publish(m)
			time.Sleep(20 * time.Second)
		}
		if st := from.Status().Log; st.Begin == 0 {
			t.Fatalf("nothing was trimmed: %+v", st)
		}
		from.bounce()
		away := from.to("shenzhen", "cz-sz-a")
		sz := w.late("cz-sz-a-1", topo, limits)
		w.settled()
		if got := sz.received("member-watch", "member"); !slices.Equal(got, numbered(int(away.Lost), n)) {
			t.Fatalf("the city has %d, want the newest %d", len(got), n-int(away.Lost))
		}
		r := readLandings(t, sz, wire.Want{Subscription: "member-cache", Topic: "member", Credit: wire.Credit{Number: 1000, Bytes: 1 << 30}})
		if e := r.envelope(); e.Reason != record.ReasonBudget || e.Through != away.Lost {
			t.Fatalf("told %+v, want a gap of %d for the budget", e, away.Lost)
		}
		r.end()
	})
}
