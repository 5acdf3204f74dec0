package broker

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/policy"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// landing makes a landing of records from another group.
func landing(t *testing.T, first uint64, records ...*record.Record) flow.Landing {
	t.Helper()
	l := flow.Landing{
		Flow:    record.FlowID{Origin: "rz03-a", Incarnation: 9, Target: "rz02-a", Class: zone.ClassBulk},
		Lineage: 7, LineageEpoch: 1, First: first, Through: first + uint64(len(records)) - 1, Hops: 1, Path: []zone.City{"hangzhou"},
	}
	for _, r := range records {
		b, err := record.AppendRecord(nil, r)
		if err != nil {
			t.Fatal(err)
		}
		l.Records = append(l.Records, b)
	}
	return l
}

func incoming(id string, change ...func(*record.Record)) *record.Record {
	r := &record.Record{
		Type: record.TypeMessage, Identity: record.Identity{Group: "rz03-a", Incarnation: 9, Epoch: 1, Position: 64},
		Topic: "transfer", Kind: zone.KindNormal, Class: zone.ClassBulk, Durability: zone.DurabilityAllInSync, Shard: 20,
		Target: "rz02-a", RouteEpoch: zone.Epoch{Term: 1, Number: 1}, MessageID: id, Body: []byte("x"),
	}
	for _, c := range change {
		c(r)
	}
	return r
}

// land lands and waits.
func land(t *testing.T, s *station, l flow.Landing) error {
	t.Helper()
	done := make(chan error, 1)
	if err := s.Sink().Land(l, func(err error) { done <- err }); err != nil {
		return err
	}
	return <-done
}

func TestEachLandedRecordIsJudged(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	l := landing(t, 1,
		incoming("good"),
		incoming("unknown", func(r *record.Record) { r.Topic = "nothing" }),
		incoming("elsewhere", func(r *record.Record) { r.Topic = "ledger" }),
		incoming("forbidden", func(r *record.Record) { r.Residency = []zone.City{"hangzhou"} }),
		incoming("large", func(r *record.Record) { r.Body = make([]byte, 5<<20) }),
		incoming("half", func(r *record.Record) { r.Type = record.TypeHalf }),
		incoming("damaged"),
		incoming("also good"),
	)
	l.Records[6][len(l.Records[6])-1] ^= 1
	if err := land(t, s, l); err != nil {
		t.Fatal(err)
	}
	st := s.Sink().Resume(l.Flow)
	want := []record.Reason{record.ReasonUnknownTopic, record.ReasonUnknownTopic, record.ReasonResidency,
		record.ReasonTooLarge, record.ReasonUnsupported, record.ReasonCorrupt}
	var got []record.Reason
	for _, o := range st.Outcomes {
		for range o.Through - o.First + 1 {
			got = append(got, o.Reason)
		}
	}
	if st.Settled != 8 || st.Last.Number != 8 || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("state %+v; reasons %v, want %v", st, got, want)
	}
	far := landing(t, 9, incoming("far"))
	far.Hops = policy.HopLimit + 1
	far.OriginCursor = 8 // outcomes that the origin has acted on are forgotten
	if err := land(t, s, far); err != nil {
		t.Fatal(err)
	}
	if st = s.Sink().Resume(l.Flow); len(st.Outcomes) != 1 || st.Outcomes[0].Reason != record.ReasonHops {
		t.Fatalf("outcomes %+v", st.Outcomes)
	}
	wantOnce(t, s.drain("transfer-credit", "transfer"), []string{"good", "also good"})
}

func TestLandingSettlesEachNumberOnce(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	if err := land(t, s, landing(t, 1, incoming("1"), incoming("2"))); err != nil {
		t.Fatal(err)
	}
	for name, first := range map[string]uint64{"duplicate": 2, "hole": 4, "zero": 0} {
		if err := land(t, s, landing(t, first, incoming("again"))); !errors.Is(err, errNotNext) {
			t.Errorf("%s: %v", name, err)
		}
	}
	skip := landing(t, 3)
	skip.Through, skip.Outcome, skip.Reason = 5, record.OutcomeGap, record.ReasonTrimmed
	if err := land(t, s, skip); err != nil {
		t.Fatal(err)
	}
	s.restart()
	if err := land(t, s, landing(t, 6, incoming("6"))); err != nil {
		t.Fatal(err)
	}
	settled, err := s.Sink().Seal(t.Context(), skip.Flow)
	if err != nil || settled != 6 {
		t.Fatalf("sealed through %d, %v", settled, err)
	}
	s.restart()
	if err := land(t, s, landing(t, 7, incoming("7"))); !errors.Is(err, errNotNext) || !s.Sink().Resume(skip.Flow).Sealed {
		t.Fatalf("landing on a sealed flow: %v", err)
	}
	wantOnce(t, s.drain("transfer-credit", "transfer"), []string{"1", "2", "6"})
}

func TestLandingOfANewerRouteIsHeld(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	err := land(t, s, landing(t, 1, incoming("1", func(r *record.Record) { r.RouteEpoch.Number = 2 })))
	var held *flow.HeldError
	if !errors.As(err, &held) || held.Code != wire.CodeTopologyBehind {
		t.Fatalf("%v, want held", err)
	}
	if s.Sink().Resume(landing(t, 1).Flow).Known {
		t.Fatal("something was settled")
	}
}

// TestCacheSubscriptionHoldsItsBudget: a reader of landings holds records back,
// and no more than the topic's budget; one that stayed away longer is told.
func TestCacheSubscriptionHoldsItsBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits()
		limits.SegmentBytes, limits.SnapshotBytes, limits.TrimEvery, limits.SnapshotEvery = 64<<10, 16<<10, time.Hour, time.Hour
		w := newWorld(t, sample(t, "budget: 256MiB", "retention: 1h\n    budget: 512KiB", "max_body: 1MiB", "max_body: 256KiB"), limits,
			"rz02-a-1", "cz-sh-a-1", "cz-hz-a-1", "cz-sz-a-1")
		defer w.close()
		from, here := w.sites["rz02-a"], w.sites["cz-sh-a"]
		publish := func(n int) {
			for range n {
				m := from.message("member", "m")
				m.Body = make([]byte, 30<<10)
				from.publish(m)
				w.settled()
				here.drain("member-watch", "member")
			}
			time.Sleep(5 * time.Hour)                    // beyond every retention
			from.publish(from.message("member", "tick")) // for one more snapshot
			w.settled()
			here.drain("member-watch", "member")
			time.Sleep(3 * time.Hour)
		}
		publish(10)
		if at := here.log.Begin(); at != 0 {
			t.Fatalf("log begins at %d: within the budget nothing may go", at)
		}
		publish(20)
		if here.log.Begin() == 0 {
			t.Fatalf("beyond the budget the subscription still holds everything: %+v", here.Status().Log)
		}
		r := readLandings(t, here, wire.Want{Subscription: "member-cache", Topic: "member", Credit: wire.Credit{Number: 1000, Bytes: 1 << 30}})
		if r.found.First == 0 || r.found.Next != r.found.First {
			t.Fatalf("found %+v; want to be told of the gap", r.found)
		}
		r.end()
	})
}

func TestMetricsAreReported(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	s := &station{t: t, fs: disk.NewMem(), node: "rz02-a-1", topo: sample(t), limits: testLimits()}
	o := s.options()
	o.Meter = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test")
	b, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	s.Broker = b
	defer s.Close()
	s.publish(s.message("orders", "m"), s.message("transfer", "n", "userId", "50"))
	var rm metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &rm); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			names[m.Name] = true
		}
	}
	for _, want := range []string{"mqrouter.broker.publishes", "mqrouter.broker.publish.duration", "mqrouter.flow.backlog", "mqrouter.group.lag"} {
		if !names[want] {
			t.Errorf("no metric %s in %v", want, names)
		}
	}
}

func TestSubscriptionsMadeByAskingAreBounded(t *testing.T) {
	limits := testLimits()
	limits.MaxUndeclared = 3
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t, "unknown_groups: refuse", "unknown_groups: newest"), limits)
	ask := func(g zone.ConsumerGroup, topic zone.Topic) Kind {
		_, err := s.Receive(t.Context(), ReceiveRequest{Group: g, Topic: topic, Filter: Filter{All: true}, Max: 1})
		return KindOf(err)
	}
	if k := ask("a", DeadLetterTopic("nobody")); k != KindTopicUnknown {
		t.Errorf("dead letters of nobody: %s", k)
	}
	for i := range 3 {
		if k := ask(zone.ConsumerGroup(fmt.Sprint("g", i)), "orders"); k != 0 {
			t.Fatalf("group %d: %s", i, k)
		}
	}
	if k := ask("one-more", "orders"); k != KindBusy {
		t.Errorf("one more: %s", k)
	}
}
