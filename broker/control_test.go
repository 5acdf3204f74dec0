package broker

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/broker/transaction"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

var rewrite = flag.Bool("rewrite", false, "record the golden files anew")

func goldenFlow() record.FlowID {
	return record.FlowID{Origin: "rz01-a", Incarnation: 0x1122334455667788, Target: "rz02-a", Class: zone.ClassBulk, Lane: 3}
}

func goldenTopology() *topologyBody {
	t := &topologyBody{epoch: zone.Epoch{Term: 1, Number: 300}}
	for i := range t.digest {
		t.digest[i] = byte(i)
	}
	t.topics = []topicBody{{name: "orders", queues: 4, retention: 72 * time.Hour}, {name: "member", queues: 1, broadcast: true}}
	t.groups = []groupBody{{name: "g", topics: []zone.Topic{"orders"}}, {name: "c", cache: true, topics: []zone.Topic{"member"}}}
	t.channels = []channelBody{{name: "all", legs: []legKey{{"sh", "cz-sh-a"}, {"hz", "cz-hz-a"}}}}
	t.owners = []ownerBody{{"rz01", 0x0102030405060708}, {"", 5}}
	return t
}

func goldenCause() *Cause {
	return &Cause{
		Kind: CauseLeg, Topic: "transfer", Queue: 2, Offset: 7, TopicIncarnation: 9, Group: "g", Attempts: 16,
		Flow: goldenFlow(), City: "hz", Destination: "rz02-a", Number: 37, Outcome: record.OutcomeParked, Reason: record.ReasonTooLarge,
		Original: record.Identity{Group: "rz01-a", Incarnation: 5, Epoch: 6, Position: 4096},
	}
}

func goldenGiveUp() *giveUp {
	return &giveUp{leg: flow.Leg{Flow: goldenFlow(), City: "hz", Group: "rz02-a"}, kind: giveGap, ranges: []numberRange{{3, 3}, {5, 300}, {1 << 40, 1<<40 + 7}}}
}

func goldenCarried() carriedBody {
	return carriedBody{topic: "%DLQ%g", incarnation: 128, offset: 300, hash: 0x01020304, dead: time.UnixMilli(1e12), record: []byte("record")}
}

func goldenDelta() *consumer.Delta {
	return &consumer.Delta{Groups: []consumer.GroupDelta{{Group: "g", Topic: "orders",
		Queues: []consumer.QueueDelta{{Queue: 1, Acked: []consumer.Range{{From: 3, To: 9}}}}}}}
}

// bodies are the control record bodies: how each is written, and how it is read
// into something to compare.
func goldenDue() Cause {
	return Cause{Kind: CauseDue, Bucket: 7, Offset: 300, Original: record.Identity{Group: "rz01-a", Incarnation: 5, Epoch: 2, Position: 4096}}
}

func goldenStranded() Cause {
	c := goldenDue()
	c.Kind, c.Topic, c.Reason = CauseStranded, "reminders", record.ReasonUnknownTopic
	return c
}

func goldenOrdered() Cause {
	c := goldenDue()
	c.Kind, c.Topic, c.Bucket, c.Offset, c.Order = CauseCommit, "payments", 0, 0, goldenOrder()
	return c
}

func goldenOrder() Order { return Order{By: "alice at 10.0.0.1:9", Why: "ticket 42"} }

func goldenCarriedTimer() carriedBody {
	return carriedBody{bucket: 7, number: 300, origin: 12, due: 946684800123, record: []byte("record")}
}

func goldenChecked() []checkedItem {
	return []checkedItem{{transaction.Key{Epoch: 7, Position: 4096}, 3, 0}, {transaction.Key{Epoch: 8, Position: 64}, 15, 5}}
}

var bodies = []struct {
	name  string
	write func() []byte
	read  func([]byte) (any, error)
	want  any
}{
	{"topology", func() []byte { return goldenTopology().append(nil) },
		func(b []byte) (any, error) { return parseTopologyBody(b) }, goldenTopology()},
	{"cause", func() []byte { return appendCause(nil, goldenCause()) },
		func(b []byte) (any, error) { return ParseCause(b) }, *goldenCause()},
	{"settle", func() []byte {
		return appendSettleBody(nil, []settleItem{{flow.Leg{Flow: goldenFlow(), City: "hz", Group: "rz02-a"}, settled{300, 7}}})
	},
		func(b []byte) (any, error) { return parseSettleBody(b) }, []settleItem{{flow.Leg{Flow: goldenFlow(), City: "hz", Group: "rz02-a"}, settled{300, 7}}}},
	{"seal", func() []byte { return appendSealBody(nil, goldenFlow()) },
		func(b []byte) (any, error) { return parseSealBody(b) }, goldenFlow()},
	{"give-up", func() []byte { return goldenGiveUp().append(nil) },
		func(b []byte) (any, error) { return parseGiveUp(b) }, goldenGiveUp()},
	{"carried", func() []byte { c := goldenCarried(); return c.append(nil) },
		func(b []byte) (any, error) { return parseCarried(b) }, goldenCarried()},
	{"cause-due", func() []byte { c := goldenDue(); return appendCause(nil, &c) },
		func(b []byte) (any, error) { return ParseCause(b) }, goldenDue()},
	{"cause-stranded", func() []byte { c := goldenStranded(); return appendCause(nil, &c) },
		func(b []byte) (any, error) { return ParseCause(b) }, goldenStranded()},
	{"cause-ordered", func() []byte { c := goldenOrdered(); return appendCause(nil, &c) },
		func(b []byte) (any, error) { return ParseCause(b) }, goldenOrdered()},
	{"order", func() []byte { return goldenOrder().append(nil) },
		func(b []byte) (any, error) { return parseOrder(b) }, goldenOrder()},
	{"carried-timer", func() []byte { c := goldenCarriedTimer(); return c.append(nil) },
		func(b []byte) (any, error) { return parseCarried(b) }, goldenCarriedTimer()},
	{"recall", func() []byte { return recallBody{bucket: 7, number: 300}.append(nil) },
		func(b []byte) (any, error) { return parseRecall(b) }, recallBody{bucket: 7, number: 300}},
	{"half-terms", func() []byte { x := halfTerms{6 * time.Second}; return x.append(nil) },
		func(b []byte) (any, error) { return parseHalfTerms(b) }, halfTerms{6 * time.Second}},
	{"rollback", func() []byte { x := rollbackBody{transaction.Key{Epoch: 7, Position: 4096}}; return x.append(nil) },
		func(b []byte) (any, error) { return parseRollback(b) }, rollbackBody{transaction.Key{Epoch: 7, Position: 4096}}},
	{"checked", func() []byte { return appendChecked(nil, goldenChecked()) },
		func(b []byte) (any, error) { return parseChecked(b) }, goldenChecked()},
	{"progress", func() []byte {
		return appendProgressBody(nil, map[zone.Topic]record.Position{"orders": 128}, goldenDelta())
	}, func(b []byte) (any, error) {
		inc, d, err := parseProgressBody(b)
		if err != nil {
			return nil, err
		}
		return []any{inc, d.Append(nil)}, nil
	}, []any{map[zone.Topic]record.Position{"orders": 128}, goldenDelta().Append(nil)}},
}

func TestControlBodiesKeepTheirBytes(t *testing.T) {
	for _, c := range bodies {
		file := filepath.Join("testdata", c.name+".hex")
		got := hex.EncodeToString(c.write())
		if *rewrite {
			if err := os.WriteFile(file, []byte(got+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(string(want)) != got {
			t.Errorf("%s: %s, golden %s", c.name, got, want)
		}
		back, err := c.read(c.write())
		if err != nil || !reflect.DeepEqual(back, c.want) {
			t.Errorf("%s: read back %+v, %v", c.name, back, err)
		}
	}
}

func TestControlBodiesRefuseDamage(t *testing.T) {
	for _, c := range bodies {
		good := c.write()
		for n := range good {
			if _, err := c.read(good[:n]); err == nil {
				t.Errorf("%s cut to %d bytes is accepted", c.name, n)
			}
		}
		if _, err := c.read(append(bytes.Clone(good), 0)); err == nil {
			t.Errorf("%s with a byte too many is accepted", c.name)
		}
		newer := bytes.Clone(good)
		newer[0]++
		var be *BodyError
		if _, err := c.read(newer); !errors.As(err, &be) {
			t.Errorf("%s of a newer version: %v", c.name, err)
		}
	}
}

func FuzzControlBodies(f *testing.F) {
	for _, c := range bodies {
		f.Add(c.write())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, c := range bodies {
			_, _ = c.read(b)
		}
	})
}

// A record of checks without what is forgiven is read as one that forgives nothing.
func TestChecksOfVersion1AreRead(t *testing.T) {
	b, err := hex.DecodeString("01020780200308400f")
	if err != nil {
		t.Fatal(err)
	}
	want := goldenChecked()
	for i := range want {
		want[i].forgiven = 0
	}
	if got, err := parseChecked(b); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}
