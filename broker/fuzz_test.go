package broker

import (
	"bytes"
	"context"
	"errors"
	"math"
	"testing"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// FuzzFold folds a real log and behind it a record of any type, cause and body,
// or a landing of any envelope. The fold takes it or refuses it with a
// *FoldError, and does the same both times.
func FuzzFold(f *testing.F) {
	s := open(f, disk.NewMem(), "rz02-a-1", sample(f), testLimits())
	s.publish(s.message("orders", "a"), s.message("transfer", "b", "userId", "50"))
	var entries []commitlog.Entry
	err := s.log.Scan(context.Background(), 0, math.MaxUint64, func(e commitlog.Entry) error {
		e.Record, e.Envelope = bytes.Clone(e.Record), bytes.Clone(e.Envelope)
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range entries {
		if v, err := record.Parse(e.Record); err == nil {
			f.Add(uint8(v.Type()), string(v.Topic()), string(v.Target()), v.Cause(), v.Body(), []byte{})
		}
	}
	orders := s.state.topics["orders"]
	for _, c := range []Cause{
		{Kind: CauseConsumer, Topic: "orders", Offset: 0, TopicIncarnation: orders.first, Group: "orders-billing", Attempts: 3},
		{Kind: CauseConsumer, Topic: "orders", Queue: 1 << 30, Offset: math.MaxUint64, TopicIncarnation: orders.first, Group: "orders-billing"},
		{Kind: CauseReplay, Topic: "%DLQ%orders-billing", Offset: math.MaxUint64},
		{Kind: CauseLeg, Number: math.MaxUint64},
		{Kind: CauseDue, Bucket: math.MaxUint64, Offset: math.MaxUint64},
		{Kind: 200},
	} {
		f.Add(uint8(record.TypeDeadLetter), "%DLQ%orders-billing", "", appendCause(nil, &c), []byte("x"), []byte{})
		f.Add(uint8(record.TypeMessage), "orders", "", appendCause(nil, &c), []byte("x"), []byte{})
	}
	for _, b := range bodies {
		for kind := record.TypeProgress; kind < record.TypeProgress+8; kind++ {
			f.Add(uint8(kind), "", "", []byte{}, b.write(), []byte{})
		}
		f.Add(uint8(record.TypeRecall), "orders", "", []byte{}, b.write(), []byte{})
	}
	env, err := record.AppendEnvelope(nil, &record.Envelope{Flow: record.FlowID{Origin: "rz01-a", Incarnation: 7, Target: "rz02-a", Class: zone.ClassBulk},
		Lineage: 1, LineageEpoch: 1, Number: 1, Through: 1, Outcome: record.OutcomeLanded})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint8(record.TypeMessage), "orders", "", []byte{}, []byte("x"), env)
	f.Fuzz(func(t *testing.T, kind uint8, topic, target string, cause, body, envelope []byte) {
		r := record.Record{Type: record.Type(kind), Topic: zone.Topic(topic), Target: target, Shard: record.NoShard, Cause: cause, Body: body}
		r.Identity.Group = "rz02-a"
		b, err := record.AppendRecord(nil, &r)
		if err != nil {
			return
		}
		last := entries[len(entries)-1]
		e := commitlog.Entry{Kind: commitlog.KindOwn, Record: b, Position: last.Position + record.Position(last.Size), Size: len(b) + 64}
		if len(envelope) > 0 {
			e.Kind, e.Envelope = commitlog.KindLanding, envelope
		}
		var folded [2][]byte
		var failed [2]string
		for i := range folded {
			folded[i], failed[i] = foldOnce(t, s, append(entries[:len(entries):len(entries)], e))
		}
		if !bytes.Equal(folded[0], folded[1]) || failed[0] != failed[1] {
			t.Errorf("two folds differ: %q, %q", failed[0], failed[1])
		}
	})
}

// foldOnce folds the entries into a new state, and returns its snapshot, or why
// it refused the last one.
func foldOnce(t *testing.T, s *station, entries []commitlog.Entry) ([]byte, string) {
	t.Helper()
	indexes, err := queue.Open(queue.Options{FS: disk.NewMem(), Dir: "index"})
	if err != nil {
		t.Fatal(err)
	}
	defer indexes.Close()
	st := newState("rz02-a", s.state.store, indexes)
	for i := range entries {
		_, err := st.apply(&entries[i])
		var refused *FoldError
		switch {
		case err == nil:
		case !errors.As(err, &refused) || i < len(entries)-1:
			t.Fatalf("entry %d: %v", i, err)
		default:
			return nil, err.Error()
		}
	}
	if err := indexes.Flush(); err != nil {
		t.Fatal(err)
	}
	return st.encode(), ""
}
