package broker

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/bounds"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/zone"
)

// window is that of the idempotent topics of the tests.
const window = 10 * time.Minute

// onceSample is the sample with idempotent topics: orders stays in the zone,
// transfer may leave it.
func onceSample(t testing.TB) *zone.Topology {
	t.Helper()
	return sample(t, "  - name: orders\n", "  - name: orders\n    idempotent: 10m\n", "  - name: transfer\n", "  - name: transfer\n    idempotent: 10m\n")
}

// send publishes one message and returns its result.
func (s *station) send(m Message) PublishResult {
	s.t.Helper()
	out := make([]PublishResult, 1)
	if err := s.Publish(s.t.Context(), []Message{m}, out); err != nil {
		s.t.Fatal(err)
	}
	return out[0]
}

// where is what a publisher learns of where a message went.
func where(r PublishResult) string {
	place := fmt.Sprintf("%s %d/%d", r.Level, r.Queue, r.Offset)
	if r.Destination.Group != nil {
		place += " " + string(r.Destination.Group.Name)
	}
	return place
}

// The window runs from the first copy: a sender that repeats itself does not make
// it longer, and neither do restarts. Copies at half the window are by turns the
// same message and a new one.
func TestC3_WindowRunsFromTheFirstCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, rng := disk.NewMem(), rand.New(rand.NewPCG(1, 2))
		s := open(t, mem, "rz02-a-1", onceSample(t), testLimits())
		defer func() { s.Close() }()
		began, places, last := time.Now(), map[string]bool{}, ""
		for i := range 10 {
			r := s.send(s.message("orders", "again"))
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			if fresh := i%2 == 0; fresh == (where(r) == last) || fresh && places[where(r)] {
				t.Errorf("copy %d at %v went to %s, the one before to %s", i, time.Duration(i)*window/2, where(r), last)
			}
			last = where(r)
			places[last] = true
			switch i % 3 {
			case 0:
				s.restart()
			case 1:
				mem = mem.Crash(rng)
				s.Close()
				s.fs = mem
				s.start()
			}
			time.Sleep(time.Until(began.Add(time.Duration(i+1) * window / 2)))
		}
		if got := s.drain(billing, "orders"); got["again"] != 5 {
			t.Errorf("the message was delivered %d times in five windows", got["again"])
		}
	})
}

// onceModel is what was stored, by topic and id.
type onceModel struct {
	t      *testing.T
	rng    *rand.Rand
	mem    *disk.Mem
	s      *station
	first  map[string]storedOnce // by topic and id
	stored map[string]int        // orders: how often each id was stored
	saw    map[string]int        // kinds of answers
}

type storedOnce struct {
	at    time.Time
	body  string
	place string
}

func (m *onceModel) message() Message {
	topic, id := zone.Topic("orders"), fmt.Sprint(m.rng.IntN(60))
	if m.rng.IntN(3) == 0 {
		topic = "transfer"
	}
	msg := m.s.message(topic, id, "userId", "1065") // of another zone
	msg.Body = []byte("body of " + id)
	if m.rng.IntN(25) == 0 {
		msg.Body = []byte("another body")
	}
	return msg
}

// sendAll sends copies of a message at once, some in one batch, and judges every
// answer.
func (m *onceModel) sendAll(msg Message, copies int) {
	m.t.Helper()
	results := make([]PublishResult, 2*copies)
	var wg sync.WaitGroup
	for i := range copies {
		n := 1 + m.rng.IntN(2)
		wg.Go(func() {
			if err := m.s.Publish(m.t.Context(), []Message{msg, msg}[:n], results[2*i:2*i+n]); err != nil {
				m.t.Error(err)
			}
		})
	}
	wg.Wait()
	key := string(msg.Topic.Name) + " " + msg.ID
	first, known := m.first[key]
	known = known && time.Since(first.at) < window
	for _, r := range results {
		switch {
		case r == PublishResult{}: // the second of a batch of one
		case known && first.body != string(msg.Body):
			m.saw["conflict"]++
			if KindOf(r.Err) != KindConflict {
				m.t.Fatalf("%s with another body: %+v, want a conflict", key, r)
			}
		case r.Err != nil:
			m.t.Fatalf("%s: %v", key, r.Err)
		case !known:
			m.saw["new"]++
			first, known = storedOnce{time.Now(), string(msg.Body), where(r)}, true
			m.first[key] = first
			if msg.Topic.Name == "orders" {
				m.stored[msg.ID]++
			}
		default:
			m.saw["again"]++
			if where(r) != first.place {
				m.t.Fatalf("%s went to %s, and its copy to %s", key, first.place, where(r))
			}
		}
	}
}

func (m *onceModel) step() {
	switch n := m.rng.IntN(100); {
	case n < 60:
		m.sendAll(m.message(), 1)
	case n < 80:
		m.sendAll(m.message(), 2+m.rng.IntN(6))
	case n < 92:
		time.Sleep(time.Duration(m.rng.Int64N(int64(window / 3))))
	case n < 96:
		m.s.restart()
	default:
		kept := m.mem.Crash(m.rng)
		m.s.Close()
		m.mem, m.s.fs = kept, kept
		m.s.start()
	}
}

// TestSendsCountOnce compares random sends, repeated, at once, with other bodies,
// over time, restarts and power cuts, with a list of what was stored.
func TestSendsCountOnce(t *testing.T) {
	total := map[string]int{}
	for seed := range uint64(12) {
		synctest.Test(t, func(t *testing.T) {
			mem := disk.NewMem()
			limits := testLimits()
			limits.SnapshotBytes = 4 << 10
			m := &onceModel{t: t, rng: rand.New(rand.NewPCG(seed, 3)), mem: mem, s: open(t, mem, "rz02-a-1", onceSample(t), limits),
				first: map[string]storedOnce{}, stored: map[string]int{}, saw: total}
			defer func() { m.s.Close() }()
			for range 250 {
				m.step()
			}
			got := m.s.drain(billing, "orders")
			for id, n := range m.stored {
				if got[id] != n {
					t.Errorf("message %s was stored %d times and delivered %d times", id, n, got[id])
				}
			}
			for _, o := range m.s.Status().Outgoing {
				var numbers int64
				for key, first := range m.first {
					if strings.HasPrefix(key, "transfer") {
						var at int64
						if _, err := fmt.Sscanf(first.place, "origin %d/%d", new(int), &at); err != nil {
							t.Fatal(err)
						}
						numbers = max(numbers, at)
					}
				}
				if int64(o.Head) != numbers {
					t.Errorf("the flow has %d numbers, the newest told is %d", o.Head, numbers)
				}
			}
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if total["new"] < 500 || total["again"] < 500 || total["conflict"] < 20 {
		t.Errorf("the test shows little: %v", total)
	}
}

// What a snapshot holds is what the log folds to.
func TestWindowsAreTheSameFromSnapshotAndLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := disk.NewMem()
		s := open(t, mem, "rz02-a-1", onceSample(t), testLimits())
		defer func() { s.Close() }()
		for i := range 300 {
			s.send(s.message("orders", fmt.Sprint(i%250)))
			s.send(s.message("transfer", fmt.Sprint(i%250), "userId", "1065"))
			if i%50 == 0 {
				time.Sleep(window / 4)
			}
		}
		table := func() []byte {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.state.once.Append(nil)
		}
		want := table()
		s.restart()
		if !bytes.Equal(table(), want) {
			t.Error("the snapshot restores another table")
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		names, err := s.snapshotNames()
		if err != nil || len(names) == 0 {
			t.Fatalf("snapshots %v, %v", names, err)
		}
		for _, n := range names {
			if err := mem.Remove(path.Join("store", n)); err != nil {
				t.Fatal(err)
			}
		}
		s.start()
		if !bytes.Equal(table(), want) {
			t.Error("the log folds to another table")
		}
	})
}

// A full window refuses what is new rather than to forget early, answers what it
// knows, and goes on when windows end.
func TestFullWindowRefusesNewSends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits()
		limits.MaxTopicIDs, limits.MaxIDs = 20, 30
		s := open(t, disk.NewMem(), "rz02-a-1", onceSample(t), limits)
		defer s.Close()
		var msgs []Message
		for i := range 50 {
			msgs = append(msgs, s.message("orders", fmt.Sprint(i)))
		}
		results := make([]PublishResult, len(msgs))
		if err := s.Publish(t.Context(), msgs, results); err != nil { // all at once: none slips past the bound
			t.Fatal(err)
		}
		stored := map[int]string{}
		for i, r := range results {
			switch {
			case r.Err == nil:
				stored[i] = where(r)
			case KindOf(r.Err) != KindBusy:
				t.Fatal(r.Err)
			}
		}
		if len(stored) != 20 {
			t.Fatalf("%d ids were taken, the limit is 20", len(stored))
		}
		if r := s.send(s.message("orders", "one more")); KindOf(r.Err) != KindBusy || !strings.Contains(r.Err.Error(), "limit of a topic is 20") {
			t.Errorf("above the topic's limit: %+v", r)
		}
		for i, place := range stored {
			if r := s.send(s.message("orders", fmt.Sprint(i))); r.Err != nil || where(r) != place {
				t.Errorf("a known id at the limit: %+v, want %s", r, place)
			}
		}
		for i := range 10 {
			if r := s.send(s.message("transfer", fmt.Sprint(i), "userId", "1065")); r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		if r := s.send(s.message("transfer", "one more", "userId", "1065")); KindOf(r.Err) != KindBusy {
			t.Errorf("above the broker's limit: %+v", r)
		}
		usage := s.Usage()
		if u := usage[slices.IndexFunc(usage, func(u bounds.Usage) bool { return u.Name == "broker.ids" })]; u.Depth != 30 || u.Limit != 30 || u.Full == 0 {
			t.Errorf("usage %+v", u)
		}
		time.Sleep(window)
		for i := range 20 {
			if r := s.send(s.message("orders", fmt.Sprint("later ", i))); r.Err != nil {
				t.Fatalf("id %d after the windows ended: %v", i, r.Err)
			}
		}
		if n := s.oncePending.Load(); n != 0 {
			t.Errorf("%d places are still taken", n)
		}
	})
}

// Topics without a window store every copy, and their records are as before.
func TestOtherTopicsStoreEveryCopy(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	a, b := s.publish(s.message("orders", "m"))[0], s.publish(s.message("orders", "m"))[0]
	if where(a) == where(b) || s.drain(billing, "orders")["m"] != 2 {
		t.Errorf("both copies went to %s and %s", where(a), where(b))
	}
	if w := s.Status().Windows; len(w) != 0 {
		t.Errorf("windows %+v", w)
	}
}

// Indexes that are made anew from a trimmed log leave out the copies that the fold
// has ignored, or are refused when the log no longer tells which those are.
func TestHealedIndexesHaveNoCopies(t *testing.T) {
	mem := disk.NewMem()
	limits := testLimits()
	limits.SegmentBytes, limits.SnapshotEvery, limits.TrimEvery = 64<<10, time.Hour, 1000*time.Hour
	s := open(t, mem, "rz02-a-1", onceSample(t), limits)
	s.publishN("orders", "old", 400)
	for i := range 3 {
		s.publishN("orders", fmt.Sprint("between", i), 10)
		s.drain(billing, "orders")
		s.flushProgress(t.Context())
		if err := s.snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.trim(time.Now().Add(1000 * time.Hour)); err != nil || s.log.Begin() == 0 {
		t.Fatalf("nothing was trimmed: %v", err)
	}
	var ids []string
	for i := range 100 {
		id := fmt.Sprint("new", i)
		ids = append(ids, id)
		m := s.message("orders", id)
		s.publish(m, m, m) // at once: the fold tells them apart
	}
	if n := s.Status().Counts.RepeatedSends; n != 200 {
		t.Fatalf("%d copies were ignored, want 200", n)
	}
	want := inLog(t, s, s.log.Begin())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	kept := copyOf(t, mem)
	spoil(t, kept, "", remove(t, kept))
	after := open(t, kept, s.node, s.topo, s.limits)
	if after.healed == 0 {
		t.Error("no index was counted as made anew")
	}
	wantEntries(t, after, after.log.Begin(), want)
	wantOnce(t, after.drain(billing, "orders"), ids)
}

// A copy of a delayed message gets a handle of the first one, before and after it is
// due, recalled or restarted.
func TestCopyOfADelayedMessageIsTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topo := sample(t, "  - name: orders\n", "  - name: orders\n    idempotent: 10m\n    kind: delay\n")
		s := open(t, disk.NewMem(), "rz02-a-1", topo, testLimits())
		defer func() { s.Close() }()
		delayed := func(id string, after time.Duration) Message {
			m := s.message("orders", id)
			m.DeliverAt = time.Now().Add(after)
			return m
		}
		kept, recalled, now := delayed("kept", time.Minute), delayed("recalled", time.Minute), delayed("now", -time.Minute)
		for _, m := range []Message{kept, recalled, now} {
			if r := s.send(m); r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		s.restart()
		r := s.send(recalled)
		if id, err := s.Recall(t.Context(), "orders", r.Recall); err != nil || id != "recalled" {
			t.Fatalf("recall by the handle of a copy: %q, %v", id, err)
		}
		for range 3 {
			for _, m := range []Message{kept, recalled, now} {
				if r := s.send(m); r.Err != nil || (r.Recall == "") != (m.ID == "now") {
					t.Errorf("copy of %s: %+v", m.ID, r)
				}
			}
			time.Sleep(time.Minute)
		}
		wantOnce(t, s.drain(billing, "orders"), []string{"kept", "now"})
		later := kept
		later.DeliverAt = later.DeliverAt.Add(time.Second)
		if r := s.send(later); KindOf(r.Err) != KindConflict {
			t.Errorf("a copy with another delivery time: %+v", r)
		}
	})
}

// A copy of a half message gets an id by which the first one is decided, also in a
// later lineage, and none once it is decided makes it come again.
func TestCopyOfAHalfMessageIsTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topo := sample(t, "  - name: orders\n", "  - name: orders\n    idempotent: 10m\n    kind: transaction\n")
		s := open(t, disk.NewMem(), "rz02-a-1", topo, testLimits())
		defer func() { s.Close() }()
		out := make([]PublishResult, 2)
		m := s.message("orders", "m")
		if err := s.Publish(t.Context(), []Message{m, m}, out); err != nil || out[0].Level != LevelHalf || out[1].Level != LevelHalf {
			t.Fatalf("%+v, %v", out, err)
		}
		for range 2 {
			s.restart()
			r := s.send(m)
			if r.Err != nil || r.Level != LevelHalf {
				t.Fatalf("a copy: %+v", r)
			}
			if err := s.EndTransaction(t.Context(), "orders", r.TransactionID, ResolutionCommit); err != nil {
				t.Fatalf("commit by the id of a copy: %v", err)
			}
		}
		if n := len(s.Status().Transactions); n != 0 {
			t.Errorf("%d topics have half messages that nobody will decide", n)
		}
		wantOnce(t, s.drain(billing, "orders"), []string{"m"})
	})
}
