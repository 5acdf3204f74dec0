package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// site is a broker with its outbox and inbox, as a node would run them.
type site struct {
	*station
	world  *world
	mem    *disk.Mem
	inbox  *flow.Inbox
	outbox *flow.Outbox
	ctx    context.Context
	stop   context.CancelFunc
	wg     sync.WaitGroup
}

// world is several sites of one deployment, connected by pipes.
type world struct {
	t     testing.TB
	rng   *rand.Rand
	mu    sync.Mutex
	sites map[zone.Group]*site // guarded by mu
	links links
}

func newWorld(t testing.TB, topo *zone.Topology, limits Limits, nodes ...zone.Node) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(7, 8)), sites: map[zone.Group]*site{}}
	for _, n := range nodes {
		mem := disk.NewMem()
		s := &site{station: &station{t: t, fs: mem, node: n, topo: topo, limits: limits}, world: w, mem: mem}
		s.up()
	}
	return w
}

func (w *world) close() {
	for _, s := range w.sites {
		s.down()
	}
}

// caller opens streams for one site.
type caller struct{ from *site }

// Open implements flow.Dialer.
func (c caller) Open(ctx context.Context, leg flow.Leg, session uint64) (wire.Stream, error) {
	w := c.from.world
	from := c.from.Zone().City.Name
	if err := w.links.dial(ctx, from, leg.City); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.sites[leg.Group]
	if s == nil || s.ctx.Err() != nil {
		return nil, errors.New("no route")
	}
	a, b := w.links.pipe(from, leg.City)
	s.wg.Go(func() { s.serve(b) })
	return a, nil
}

func (s *site) up() {
	s.t.Helper()
	s.start()
	var err error
	seed := s.world.rng.Uint64()
	group := s.Group().Name
	city := s.Zone().City.Name
	if s.inbox, err = flow.NewInbox(flow.InboxOptions{Sink: s.Sink(), City: city, Pull: s.pullOptions(seed)}); err != nil {
		s.t.Fatal(err)
	}
	s.outbox, err = flow.NewOutbox(flow.OutboxOptions{Source: s.Broker, Idle: s.IdleLegs, Dialer: caller{s}, City: city, Rand: rand.New(rand.NewPCG(seed, 1)), Tracer: s.tracer})
	if err != nil {
		s.t.Fatal(err)
	}
	s.world.mu.Lock()
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.world.sites[group] = s
	s.world.mu.Unlock()
	outbox, inbox, ctx := s.outbox, s.inbox, s.ctx
	s.wg.Go(func() { _ = inbox.Run(ctx) })
	s.wg.Go(func() { _ = outbox.Run(ctx) })
}

// down stops in good order.
func (s *site) down() {
	s.stop()
	s.wg.Wait()
	if err := s.Close(); err != nil {
		s.t.Error(err)
	}
}

// crash cuts the power and starts again from what the disk kept.
func (s *site) crash() {
	kept := s.mem.Crash(s.world.rng)
	s.down()
	s.mem, s.fs = kept, kept
	s.up()
}

func (s *site) bounce() {
	s.down()
	s.up()
}

// settled waits until no site has anything to send.
func (w *world) settled() {
	w.t.Helper()
	for range 10_000 {
		synctest.Wait()
		left := 0
		for _, s := range w.sites {
			left += len(s.Legs())
		}
		if left == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	for _, s := range w.sites {
		for _, o := range s.Status().Outgoing {
			w.t.Logf("%s to %s: %d of %d", s.node, o.Group, o.Cursor, o.Head)
		}
	}
	w.t.Fatal("flows did not settle")
}

func TestRecordsCrossToTheZoneOfTheirRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sample(t), testLimits(), "rz02-a-1", "rz03-a-1", "gz01-a-1", "cz-hz-a-1")
		defer w.close()
		from := w.sites["rz02-a"]
		r := from.publish(
			from.message("transfer", "t-home", "userId", "1020"),
			from.message("transfer", "t-far", "userId", "1050"),
			from.message("directed", "d-zone", "destination", "rz03"),
			from.message("directed", "d-city", "destination", "hangzhou"),
			from.message("ledger", "l"),
		)
		if r[0].Level != LevelStored || r[1].Level != LevelOrigin || r[1].Destination.Group.Name != "rz03-a" {
			t.Fatalf("results %+v", r)
		}
		w.settled()
		wantOnce(t, from.drain("transfer-credit", "transfer"), []string{"t-home"})
		wantOnce(t, w.sites["rz03-a"].drain("transfer-credit", "transfer"), []string{"t-far"})
		wantOnce(t, w.sites["rz03-a"].drain("directed-worker", "directed"), []string{"d-zone"})
		wantOnce(t, w.sites["cz-hz-a"].drain("directed-worker", "directed"), []string{"d-city"})
		wantOnce(t, w.sites["gz01-a"].drain("ledger-book", "ledger"), []string{"l"})
		time.Sleep(time.Second) // for the acknowledgements to be logged
		found, err := w.sites["rz03-a"].FindMessage(t.Context(), "t-far")
		if err != nil || len(found) != 1 || !found[0].Landed || !found[0].Queued || found[0].Original.Group != "rz02-a" ||
			len(found[0].Groups) != 1 || !found[0].Groups[0].Settled {
			t.Fatalf("found %+v, %v", found, err)
		}
		found, err = from.FindMessage(t.Context(), "t-far")
		if err != nil || len(found) != 1 || found[0].Number != 1 || len(found[0].Legs) != 1 || !found[0].Legs[0].Settled {
			t.Fatalf("at the origin: %+v, %v", found, err)
		}
	})
}

func TestBroadcastLandsOnceInEveryCity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sample(t), testLimits(), "rz02-a-1", "cz-sh-a-1", "cz-hz-a-1", "cz-sz-a-1")
		defer w.close()
		var ids []string
		for _, g := range []zone.Group{"rz02-a", "cz-sh-a"} { // the second one lands in itself, too
			s := w.sites[g]
			for i := range 200 {
				id := fmt.Sprintf("%s-%d", g, i)
				ids = append(ids, id)
				if r := s.publish(s.message("member", id)); r[0].Level != LevelOrigin {
					t.Fatalf("level %s, want origin", r[0].Level)
				}
			}
		}
		w.settled()
		for _, g := range []zone.Group{"cz-sh-a", "cz-hz-a", "cz-sz-a"} {
			wantOnce(t, w.sites[g].drain("member-watch", "member"), ids)
		}
	})
}

// TestFlowsSurviveCrashes is invariants I1 to I3: through power cuts of both
// ends every acknowledged record lands exactly once and in order.
func TestFlowsSurviveCrashes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits()
		limits.SnapshotBytes = 30 << 10
		w := newWorld(t, sample(t), limits, "rz02-a-1", "rz03-a-1")
		defer w.close()
		from, to := w.sites["rz02-a"], w.sites["rz03-a"]
		var ids []string
		for round := range 30 {
			for i := range 1 + w.rng.IntN(40) {
				id := fmt.Sprintf("%d-%d", round, i)
				m := from.message("transfer", id, "userId", "50")
				m.Queue = 0
				from.publish(m)
				ids = append(ids, id)
			}
			time.Sleep(time.Duration(w.rng.IntN(200)) * time.Millisecond)
			switch w.rng.IntN(5) {
			case 0:
				from.crash()
			case 1:
				to.crash()
			case 2:
				to.bounce()
			case 3:
				from.bounce()
			}
		}
		w.settled()
		for _, s := range w.sites {
			wantSlots(t, s.station)
		}
		var got []string
		for {
			list := to.receive("transfer-credit", "transfer", 100, time.Minute)
			if len(list) == 0 {
				break
			}
			for _, d := range list {
				got = append(got, string(d.Record.MessageID()))
			}
			to.ack("transfer-credit", list...)
		}
		if !slices.Equal(got, ids) {
			t.Fatalf("landed %d records, published %d; order or number differs", len(got), len(ids))
		}
	})
}

// TestD5_OneBadRecordStopsNothing: number 37 is too large for its
// destination; it alone is parked, with what replaying it needs.
func TestD5_OneBadRecordStopsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sample(t), testLimits(), "rz02-a-1", "rz03-a-1")
		defer w.close()
		from, to := w.sites["rz02-a"], w.sites["rz03-a"]
		// The destination's copy of the topology allows less.
		to.down()
		to.topo = sample(t, "    class: bulk\n    route: {shard: {property: userId}}", "    class: bulk\n    max_body: 1KiB\n    route: {shard: {property: userId}}")
		fresh := disk.NewMem()
		to.mem, to.fs = fresh, fresh
		to.up()
		var ids []string
		for i := range 50 {
			m := from.message("transfer", fmt.Sprint(i), "userId", "50")
			if i == 36 {
				m.Body = make([]byte, 2<<10)
			} else {
				ids = append(ids, m.ID)
			}
			from.publish(m)
		}
		w.settled()
		wantOnce(t, to.drain("transfer-credit", "transfer"), ids)
		from.bounce()
		parked := from.receive("orders-billing", ParkedTopic, 10, time.Minute)
		if len(parked) != 1 {
			t.Fatalf("%d parked, want 1", len(parked))
		}
		c, err := ParseCause(parked[0].Record.Cause())
		if err != nil || c.Kind != CauseLeg || c.Number != 37 || c.Outcome != record.OutcomeParked || c.Reason != record.ReasonTooLarge ||
			c.Destination != "rz03-a" || c.Topic != "transfer" || len(parked[0].Record.Body()) != 2<<10 {
			t.Fatalf("cause %+v, %v", c, err)
		}
	})
}

// TestManyParkedRecordsAreAllCopied: a destination that accepts nothing of a
// topic stops nobody, and every record is kept once, through a power cut.
func TestManyParkedRecordsAreAllCopied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sample(t), testLimits(), "rz02-a-1", "rz03-a-1")
		defer w.close()
		from, to := w.sites["rz02-a"], w.sites["rz03-a"]
		to.down()
		to.topo = sample(t, "    class: bulk\n    route: {shard: {property: userId}}", "    class: bulk\n    max_body: 1KiB\n    route: {shard: {property: userId}}")
		fresh := disk.NewMem()
		to.mem, to.fs = fresh, fresh
		var ids []string
		var msgs []Message
		for i := range 3000 {
			m := from.message("transfer", fmt.Sprint(i), "userId", "50")
			m.Body = make([]byte, 1025)
			ids, msgs = append(ids, m.ID), append(msgs, m)
			if len(msgs) == 100 {
				from.publish(msgs...)
				msgs = nil
			}
		}
		to.up()
		time.Sleep(20 * time.Millisecond)
		from.crash()
		w.settled()
		wantOnce(t, from.drain("orders-billing", ParkedTopic), ids)
	})
}

// TestS3_NewStoreOfTheOriginStartsAnew: what the old store had numbered
// swallows nothing of the new one.
func TestS3_NewStoreOfTheOriginStartsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sample(t), testLimits(), "rz02-a-1", "rz03-a-1")
		defer w.close()
		from, to := w.sites["rz02-a"], w.sites["rz03-a"]
		for i := range 95 {
			from.publish(from.message("transfer", fmt.Sprintf("old-%d", i), "userId", "50"))
		}
		w.settled()
		to.drain("transfer-credit", "transfer")
		from.down()
		fresh := disk.NewMem()
		from.mem, from.fs = fresh, fresh
		from.up()
		var ids []string
		for i := range 80 {
			ids = append(ids, fmt.Sprintf("new-%d", i))
			from.publish(from.message("transfer", ids[i], "userId", "50"))
		}
		w.settled()
		wantOnce(t, to.drain("transfer-credit", "transfer"), ids)
	})
}

// TestD8_PrefixOutlivesTheRecords: what was landed is known although
// nothing of it is left in the destination's log.
func TestD8_PrefixOutlivesTheRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits()
		limits.SegmentBytes, limits.SnapshotBytes, limits.TrimEvery, limits.SnapshotEvery = 64<<10, 32<<10, time.Hour, time.Hour
		w := newWorld(t, sample(t, shortTransfer...), limits, "rz02-a-1", "rz03-a-1")
		defer w.close()
		from, to := w.sites["rz02-a"], w.sites["rz03-a"]
		for i := range 300 {
			m := from.message("transfer", fmt.Sprint(i), "userId", "50")
			m.Body = make([]byte, 1000)
			from.publish(m)
		}
		w.settled()
		to.drain("transfer-credit", "transfer")
		time.Sleep(5 * time.Hour) // beyond retention and horizon
		m := from.message("transfer", "x", "userId", "50")
		m.Body = make([]byte, 200<<10)
		for range 4 { // make both logs roll and take snapshots behind the old records
			from.publish(m)
			w.settled()
			to.drain("transfer-credit", "transfer")
			time.Sleep(3 * time.Hour)
		}
		for _, s := range []*site{from, to} {
			if s.log.Begin() == 0 {
				t.Fatalf("%s: nothing was trimmed: %+v", s.node, s.Status().Log)
			}
			s.bounce()
		}
		for _, o := range from.Status().Outgoing {
			cursor, at := from.Cursor(flow.Leg{Flow: o.Flow, City: o.City, Group: o.Group})
			if own, ok := from.FingerprintAt(o.Flow, cursor); cursor == 0 || at.Number != cursor || at.Lineage == 0 || !ok || own != at {
				t.Fatalf("cursor %d with fingerprint %+v", cursor, at)
			}
			if st, _ := from.Origin(o.Flow); st.Oldest <= 1 {
				t.Fatalf("oldest %d although the log was trimmed", st.Oldest)
			}
		}
		from.publish(from.message("transfer", "last", "userId", "50"))
		w.settled()
		wantOnce(t, to.drain("transfer-credit", "transfer"), []string{"last"})
		if n := to.Status().Counts.Orphans + to.Status().Counts.Refused; n != 0 {
			t.Fatalf("%d orphans or refused landings", n)
		}
	})
}

// TestS8_BudgetRefusesAndRecovers: a topic whose backlog for a city is full is
// refused, other topics and cities go on, and it is taken again once the city has
// drained it, with no publish between.
func TestS8_BudgetRefusesAndRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sample(t, "budget: 256MiB", "budget: 64KiB", "max_body: 1MiB", "max_body: 32KiB"), testLimits(), "rz02-a-1", "cz-sh-a-1", "cz-hz-a-1")
		defer w.close() // shenzhen is down
		from := w.sites["rz02-a"]
		m := from.message("member", "m")
		m.Body = make([]byte, 1<<10)
		var err error
		out := make([]PublishResult, 1)
		n := 0
		for ; n < 100 && err == nil; n++ {
			if perr := from.Publish(t.Context(), []Message{m}, out); perr != nil {
				t.Fatal(perr)
			}
			err = out[0].Err
		}
		if KindOf(err) != KindBudget || n < 10 {
			t.Fatalf("after %d messages: %v", n, err)
		}
		// Other topics and cities go on.
		from.publish(from.message("orders", "o"))
		time.Sleep(time.Second)
		if got := w.sites["cz-hz-a"].drain("member-watch", "member"); got["m"] != n-1 {
			t.Fatalf("hangzhou has %d of %d", got["m"], n-1)
		}
		mem := disk.NewMem()
		sz := &site{station: &station{t: t, fs: mem, node: "cz-sz-a-1", topo: from.topo, limits: from.limits}, world: w, mem: mem}
		sz.up()
		w.settled()
		from.publish(m)
	})
}

// TestW3_FullDiskHoldsTheFlow: a destination without space takes nothing, and
// everything once it has space, while the origin goes on publishing.
func TestW3_FullDiskHoldsTheFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits()
		limits.SegmentBytes = 64 << 10
		w := newWorld(t, sample(t), limits, "rz02-a-1", "rz03-a-1")
		defer w.close()
		from, to := w.sites["rz02-a"], w.sites["rz03-a"]
		to.mem.SetLimit(to.mem.Used())
		var ids []string
		for i := range 100 {
			ids = append(ids, fmt.Sprint(i))
			m := from.message("transfer", ids[i], "userId", "50")
			m.Body = make([]byte, 4<<10)
			from.publish(m)
		}
		time.Sleep(time.Minute)
		if len(from.Legs()) == 0 {
			t.Fatal("everything landed on a full disk")
		}
		to.mem.SetLimit(0)
		w.settled()
		wantOnce(t, to.drain("transfer-credit", "transfer"), ids)
	})
}

// TestRestoredOriginLeavesOrphans: an origin that comes back as an older copy
// of itself goes on in a new lineage; what the destination had beyond is kept
// and counted.
func TestRestoredOriginLeavesOrphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sample(t), testLimits(), "rz02-a-1", "rz03-a-1")
		defer w.close()
		from, to := w.sites["rz02-a"], w.sites["rz03-a"]
		publish := func(prefix string, n int) (ids []string) {
			for i := range n {
				ids = append(ids, fmt.Sprintf("%s-%d", prefix, i))
				from.publish(from.message("transfer", ids[i], "userId", "50"))
			}
			return ids
		}
		ids := publish("before", 20)
		w.settled()
		from.bounce()
		backup := from.mem.Crash(rand.New(rand.NewPCG(1, 1)))
		ids = append(ids, publish("lost", 10)...)
		w.settled()
		from.down()
		from.mem, from.fs = backup, backup
		from.up()
		ids = append(ids, publish("after", 15)...)
		w.settled()
		got := map[string]int{}
		maps.Copy(got, to.drain("transfer-credit", "transfer"))
		wantOnce(t, got, ids)
		if c := to.Status().Counts; c.Orphans != 10 {
			t.Fatalf("%d orphans, want 10", c.Orphans)
		}
	})
}

// beijing is a city to be added to the sample.
const beijing = `  - name: beijing
    routers:
      - name: rt-bj-1
        quic: 127.0.0.1:7091
        peer: 127.0.0.1:9091
        gossip: 127.0.0.1:6091
        wan: 127.0.0.1:6191
        admin: 127.0.0.1:5191
    zones:
      - name: cz-bj
        kind: CZone
        groups:
          - name: cz-bj-a
            nodes:
              - name: cz-bj-a-1
                client: 127.0.0.1:8092
                peer: 127.0.0.1:9092
                gossip: 127.0.0.1:6092
                admin: 127.0.0.1:5192

topics:
`

// TestNewCityGetsWhatComesAfter: a city that is declared later gets every
// broadcast from then on, through restarts; of what came before it may get what
// the origin still holds, and nothing twice.
func TestNewCityGetsWhatComesAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sample(t), testLimits(), "rz02-a-1", "cz-sh-a-1", "cz-hz-a-1", "cz-sz-a-1")
		defer w.close()
		from := w.sites["rz02-a"]
		for i := range 30 {
			from.publish(from.message("member", fmt.Sprintf("before-%d", i)))
		}
		w.settled()
		e2 := epoch(2)
		next := sample(t, e2[0], e2[1], "\ntopics:\n", "\n"+beijing)
		for _, s := range w.sites {
			if err := s.ApplyTopology(t.Context(), next); err != nil {
				t.Fatal(err)
			}
			s.topo = next
		}
		mem := disk.NewMem()
		bj := &site{station: &station{t: t, fs: mem, node: "cz-bj-a-1", topo: next, limits: from.limits}, world: w, mem: mem}
		bj.up()
		var ids []string
		for i := range 30 {
			ids = append(ids, fmt.Sprintf("after-%d", i))
			from.publish(from.message("member", ids[i]))
			if i == 15 {
				from.bounce()
			}
		}
		w.settled()
		for _, s := range w.sites {
			wantSlots(t, s.station)
		}
		got := bj.drain("member-watch", "member")
		for i := range 30 {
			if id := fmt.Sprintf("before-%d", i); got[id] < 2 {
				delete(got, id)
			}
		}
		wantOnce(t, got, ids)
		in := bj.Status().Incoming
		if len(in) != 1 || in[0].Settled != 60 {
			t.Fatalf("incoming %+v, want 60 settled", in)
		}
	})
}
