package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sample parses the sample deployment after the edits, pairs of old and new
// text.
func sample(t testing.TB, edits ...string) *zone.Topology {
	t.Helper()
	data, err := os.ReadFile("../zone/sample/sample.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for i := 0; i+1 < len(edits); i += 2 {
		if !strings.Contains(text, edits[i]) {
			t.Fatalf("the sample does not contain %q", edits[i])
		}
		text = strings.Replace(text, edits[i], edits[i+1], 1)
	}
	topo, err := zone.Parse([]byte(text), "sample.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

// Edits of the sample that keep what was consumed of a topic for an hour, so that a
// test need not let days go by. Edits that open a topic come first.
var (
	shortTransfer = []string{"    queues: 8\n", "    queues: 8\n    retention: 1h\n"}
	shortOrders   = []string{"  - name: orders\n", "  - name: orders\n    retention: 1h\n"}
)

// epoch edits the sample to be epoch 1.n.
func epoch(n int) [2]string {
	return [2]string{"number: 1}", fmt.Sprintf("number: %d}", n)}
}

// station is a broker on a disk that can be restarted and crashed.
type station struct {
	*Broker
	t      testing.TB
	fs     disk.FS
	node   zone.Node
	topo   *zone.Topology
	limits Limits
	tracer trace.Tracer     // nil: no spans
	wall   func() time.Time // nil: the system clock
	tap    *tapLog          // nil: none
	member *Member          // nil: alone
	meter  metric.Meter     // nil: nothing is measured
	hasty  atomic.Bool      // the log of the model delays nothing more
}

func testLimits() Limits { return Limits{SegmentBytes: 1 << 20} }

func open(t testing.TB, fs disk.FS, node zone.Node, topo *zone.Topology, limits Limits) *station {
	t.Helper()
	return begin(&station{t: t, fs: fs, node: node, topo: topo, limits: limits})
}

// openTapped opens a broker whose reads of its log a test can see.
func openTapped(t testing.TB, fs disk.FS, node zone.Node, topo *zone.Topology, limits Limits) (*station, *tapLog) {
	t.Helper()
	tap := &tapLog{}
	return begin(&station{t: t, fs: fs, node: node, topo: topo, limits: limits, tap: tap}), tap
}

func begin(s *station) *station {
	s.t.Helper()
	s.start()
	s.t.Cleanup(func() { s.Close() })
	return s
}

var errTaken = errors.New("the test has taken it")

// tapLog counts reads of single entries of a log, and may have something happen
// before one.
type tapLog struct {
	groupLog
	reads  atomic.Int64
	before atomic.Pointer[func() error] // of the next read only, which fails with its error
	// appending is called before an append, which fails with its error; after errTaken
	// it is the test that tells what became of the batch.
	appending atomic.Pointer[func(*commitlog.Batch) error]
	appended  atomic.Pointer[func(*commitlog.Batch) func()] // what it says of an append is called after it, before its caller goes on
}

func (l *tapLog) Append(ctx context.Context, b *commitlog.Batch) error {
	if f := l.appending.Load(); f != nil {
		if err := (*f)(b); errors.Is(err, errTaken) {
			return nil
		} else if err != nil {
			return err
		}
	}
	var after func()
	if f := l.appended.Load(); f != nil {
		after = (*f)(b)
	}
	err := l.groupLog.Append(ctx, b)
	if after != nil && err == nil {
		after()
	}
	return err
}

func (l *tapLog) ReadAt(pos record.Position, sizeHint int) (commitlog.Entry, error) {
	l.reads.Add(1)
	if f := l.before.Swap(nil); f != nil {
		if err := (*f)(); err != nil {
			return commitlog.Entry{}, err
		}
	}
	return l.groupLog.ReadAt(pos, sizeHint)
}

// options has the tap, if there is one, be the log of the broker that it opens.
func (s *station) options() Options {
	var tap func(groupLog) groupLog
	if s.tap != nil {
		tap = func(l groupLog) groupLog { s.tap.groupLog = l; return s.tap }
	}
	return Options{Member: s.member, Meter: s.meter, tap: tap, FS: s.fs, Dir: "store", Node: s.topo.FindNode(s.node), Topology: s.topo, Limits: s.limits, Tracer: s.tracer, Wall: s.wall,
		Logger: slog.New(slog.NewTextHandler(testWriter{s.t}, nil))}
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Helper()
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

func (s *station) start() {
	s.t.Helper()
	b, err := Open(s.t.Context(), s.options())
	if err != nil {
		s.t.Fatal(err)
	}
	s.Broker = b
}

// restart closes in good order and opens again.
func (s *station) restart() {
	s.t.Helper()
	if err := s.Close(); err != nil {
		s.t.Fatal(err)
	}
	s.start()
}

// message makes a message of a topic.
func (s *station) message(topic zone.Topic, id string, properties ...string) Message {
	m := Message{Topic: s.Topology().FindTopic(topic), ID: id, Queue: AnyQueue, Body: []byte("body of " + id), Born: time.Unix(1e9, 0)}
	for i := 0; i+1 < len(properties); i += 2 {
		if m.Properties == nil {
			m.Properties = map[string]string{}
		}
		m.Properties[properties[i]] = properties[i+1]
	}
	return m
}

// publish stores the messages and fails the test unless all are stored.
func (s *station) publish(msgs ...Message) []PublishResult {
	s.t.Helper()
	out := make([]PublishResult, len(msgs))
	if err := s.Publish(s.t.Context(), msgs, out); err != nil {
		s.t.Fatal(err)
	}
	for i, r := range out {
		if r.Err != nil {
			s.t.Fatalf("message %s: %v", msgs[i].ID, r.Err)
		}
	}
	return out
}

// fill lets the disk be full, and publishes a message again and again until what was
// allocated ahead is used up.
func (s *station) fill(mem *disk.Mem, m Message) {
	s.t.Helper()
	mem.SetLimit(mem.Used())
	for range 20 {
		m.ID += "x"
		err := s.Publish(s.t.Context(), []Message{m}, make([]PublishResult, 1))
		switch {
		case KindOf(err) == KindDiskFull:
			return
		case err != nil:
			s.t.Fatalf("publish on a full disk: %v", err)
		}
	}
	s.t.Fatal("the disk does not become full")
}

// publishN stores n local messages with ids prefix-0 and on.
func (s *station) publishN(topic zone.Topic, prefix string, n int) []string {
	s.t.Helper()
	var msgs []Message
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprintf("%s-%d", prefix, i))
		msgs = append(msgs, s.message(topic, ids[i]))
	}
	for len(msgs) > 0 {
		k := min(len(msgs), 100)
		s.publish(msgs[:k]...)
		msgs = msgs[k:]
	}
	return ids
}

func (s *station) receive(g zone.ConsumerGroup, topic zone.Topic, n int, invisible time.Duration) []Delivery {
	s.t.Helper()
	list, err := s.Receive(s.t.Context(), ReceiveRequest{Group: g, Topic: topic, Filter: Filter{All: true}, Max: n, Invisible: invisible})
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

func (s *station) ack(g zone.ConsumerGroup, list ...Delivery) {
	s.t.Helper()
	for _, d := range list {
		if err := s.Ack(context.Background(), g, d.Topic, d.Handle); err != nil {
			s.t.Fatal(err)
		}
	}
}

// drain receives and acknowledges until nothing comes, and returns the ids.
func (s *station) drain(g zone.ConsumerGroup, topic zone.Topic) map[string]int {
	s.t.Helper()
	got := map[string]int{}
	for {
		list := s.receive(g, topic, 100, time.Minute)
		if len(list) == 0 {
			return got
		}
		for _, d := range list {
			got[string(d.Record.MessageID())]++
		}
		s.ack(g, list...)
	}
}

// wantOnce fails unless got has each id exactly once and nothing else.
func wantOnce(t testing.TB, got map[string]int, ids []string) {
	t.Helper()
	for _, id := range ids {
		if got[id] != 1 {
			t.Errorf("message %s was delivered %d times, want once", id, got[id])
		}
	}
	if len(got) != len(ids) {
		t.Errorf("%d different messages were delivered, want %d", len(got), len(ids))
	}
}
