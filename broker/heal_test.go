package broker

import (
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
)

// healable is a broker whose log is trimmed and whose consumers still want what
// ids names.
func healable(t *testing.T) (s *station, mem *disk.Mem, ids []string) {
	t.Helper()
	mem = disk.NewMem()
	limits := testLimits()
	limits.SegmentBytes, limits.SnapshotEvery, limits.TrimEvery = 64<<10, time.Hour, 1000*time.Hour
	s = open(t, mem, "rz02-a-1", sample(t), limits)
	s.publishN("orders", "old", 400)
	s.drain("orders-billing", "orders")
	s.flushProgress(t.Context())
	for range 2 {
		s.publishN("orders", "between", 10)
		s.drain("orders-billing", "orders")
		s.flushProgress(t.Context())
		if err := s.snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.trim(time.Now().Add(1000 * time.Hour)); err != nil || s.log.Begin() == 0 {
		t.Fatalf("nothing was trimmed: %v", err)
	}
	ids = s.publishN("orders", "new", 500)
	for _, d := range s.receive("orders-billing", "orders", 5, time.Hour) {
		if err := s.DeadLetter(t.Context(), "orders-billing", "orders", d.Handle); err != nil {
			t.Fatal(err)
		}
		id := string(d.Record.MessageID())
		ids = slices.DeleteFunc(ids, func(x string) bool { return x == id })
	}
	return s, mem, ids
}

// wantSlots fails unless healing, told by nothing but the log and the state at
// its end, would put each record where the fold put it.
func wantSlots(t *testing.T, s *station) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	begin, c := s.log.Begin(), s.state.counts
	at := map[uint64]uint64{}
	indexes := map[uint64]*queue.Index{}
	for _, o := range s.state.indexPlaces() {
		first, _, err := (*o.index).Search(begin)
		if err != nil {
			t.Fatal(err)
		}
		indexes[o.id], at[o.id] = *o.index, first
	}
	err := s.log.Scan(t.Context(), begin, s.state.position, func(e commitlog.Entry) error {
		slots, err := s.state.slotsOf(&e, nil)
		if err != nil {
			return err
		}
		for _, p := range slots {
			got, err := indexes[p.index].Get(at[p.index])
			if err != nil || got != p.entry {
				if p.topic == nil && e.Kind == commitlog.KindLanding && c.Refused > 0 {
					continue // healing refuses these
				}
				if p.topic != nil && (p.topic.deadLetter && c.RepeatedDead+c.VoidProgress > 0 || c.Refused > 0) {
					continue // healing refuses these
				}
				return fmt.Errorf("index %s, number %d: the fold put %+v there, healing would put %+v: %w",
					indexName(p.index), at[p.index], got, p.entry, err)
			}
			at[p.index]++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for id, ix := range indexes {
		if at[id] != ix.Next() {
			t.Fatalf("index %s ends at %d, healing would end it at %d", indexName(id), ix.Next(), at[id])
		}
	}
}

// copyOf returns a disk as the one that a closed broker left.
func copyOf(t *testing.T, mem *disk.Mem) *disk.Mem {
	t.Helper()
	if err := mem.SyncDir("store"); err != nil { // what was removed stays so
		t.Fatal(err)
	}
	return mem.Crash(rand.New(rand.NewPCG(1, 2)))
}

// inLog returns the entries of every index that are in the log, by index and
// number. Numbers as they were are what healing owes.
func inLog(t *testing.T, s *station, begin record.Position) map[string]queue.Entry {
	t.Helper()
	got := map[string]queue.Entry{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.state.indexPlaces() {
		ix := *o.index
		first, _, err := ix.Search(begin)
		if err != nil {
			t.Fatal(err)
		}
		for n := first; n < ix.Next(); n++ {
			e, err := ix.Get(n)
			if err != nil {
				t.Fatal(err)
			}
			got[fmt.Sprintf("%s/%d", indexName(o.id), n)] = e
		}
	}
	return got
}

// wantEntries fails unless the indexes hold what they held, under the same numbers.
func wantEntries(t *testing.T, s *station, begin record.Position, want map[string]queue.Entry) {
	t.Helper()
	got := inLog(t, s, begin)
	for at, e := range want {
		if got[at] != e {
			t.Fatalf("%s is %+v, was %+v", at, got[at], e)
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%d entries, were %d", len(got), len(want))
	}
}

// spoil calls how for each file of an index.
func spoil(t *testing.T, fsys disk.FS, name string, how func(file string)) {
	t.Helper()
	files, err := fsys.List("store/index")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range files {
		if strings.HasPrefix(f, name) {
			how(path.Join("store/index", f))
			n++
		}
	}
	if n == 0 {
		t.Fatalf("index %q has no file", name)
	}
}

func remove(t *testing.T, fsys disk.FS) func(string) {
	return func(file string) {
		t.Helper()
		if err := fsys.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}

func resize(t *testing.T, fsys disk.FS, to func(size int64) int64) func(string) {
	return func(file string) {
		t.Helper()
		f, err := fsys.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		size, err := f.Size()
		if err == nil {
			err = f.Truncate(to(size))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestLostQueueIndexIsMadeAnew: the log was trimmed, so the fold cannot be made
// from its beginning; every message that is still wanted is in it nonetheless.
func TestLostQueueIndexIsMadeAnew(t *testing.T) {
	s, mem, ids := healable(t)
	begin := s.log.Begin()
	wantSlots(t, s)
	want := inLog(t, s, begin)
	q := indexName(s.state.topics["orders"].queues[0].id)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for name, how := range map[string]func(t *testing.T, fs disk.FS){
		"file lost":          func(t *testing.T, fs disk.FS) { spoil(t, fs, q, remove(t, fs)) },
		"all files lost":     func(t *testing.T, fs disk.FS) { spoil(t, fs, "", remove(t, fs)) },
		"short of a part":    func(t *testing.T, fs disk.FS) { spoil(t, fs, q, resize(t, fs, func(n int64) int64 { return n - 7 })) },
		"cut to half":        func(t *testing.T, fs disk.FS) { spoil(t, fs, q, resize(t, fs, func(n int64) int64 { return n / 2 })) },
		"cut to its header":  func(t *testing.T, fs disk.FS) { spoil(t, fs, q, resize(t, fs, func(int64) int64 { return 512 })) },
		"empty":              func(t *testing.T, fs disk.FS) { spoil(t, fs, q, resize(t, fs, func(int64) int64 { return 0 })) },
		"header damaged":     func(t *testing.T, fs disk.FS) { spoil(t, fs, q, func(f string) { damage(t, fs, f, 9) }) },
		"header of all":      func(t *testing.T, fs disk.FS) { spoil(t, fs, "", func(f string) { damage(t, fs, f, 9) }) },
		"all cut to headers": func(t *testing.T, fs disk.FS) { spoil(t, fs, "", resize(t, fs, func(int64) int64 { return 512 })) },
		"short of an entry":  func(t *testing.T, fs disk.FS) { spoil(t, fs, q, resize(t, fs, func(n int64) int64 { return n - 20 })) },
	} {
		t.Run(name, func(t *testing.T) {
			kept := copyOf(t, mem)
			how(t, kept)
			after := open(t, kept, s.node, s.topo, s.limits)
			// A short one may still go with the snapshot before.
			if after.healed == 0 && !strings.HasPrefix(name, "short") {
				t.Error("no index was counted as made anew")
			}
			wantEntries(t, after, begin, want)
			after.restart()
			if after.healed != 0 {
				t.Errorf("%d indexes were made anew a second time", after.healed)
			}
			wantEntries(t, after, begin, want)
			more := after.publishN("orders", "more", 20)
			wantOnce(t, after.drain("orders-billing", "orders"), append(slices.Clone(ids), more...))
			if got := after.drain("orders-billing", DeadLetterTopic("orders-billing")); len(got) != 5 {
				t.Errorf("%d dead letters, want 5", len(got))
			}
		})
	}
}

// TestLostFlowIndexIsMadeAnew: the flow goes on under its numbers, and what had
// landed but was not received is received, after both ends lost their indexes.
func TestLostFlowIndexIsMadeAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits()
		limits.SegmentBytes, limits.SnapshotBytes, limits.TrimEvery, limits.SnapshotEvery = 64<<10, 32<<10, time.Hour, time.Hour
		w := newWorld(t, sample(t, shortTransfer...), limits, "rz02-a-1", "rz03-a-1")
		defer w.close()
		from, to := w.sites["rz02-a"], w.sites["rz03-a"]
		send := func(prefix string, n, size int) (ids []string) {
			for i := range n {
				m := from.message("transfer", fmt.Sprintf("%s-%d", prefix, i), "userId", "50")
				m.Body = make([]byte, size)
				from.publish(m)
				ids = append(ids, m.ID)
			}
			return ids
		}
		send("old", 300, 1000)
		w.settled()
		to.drain("transfer-credit", "transfer")
		time.Sleep(5 * time.Hour) // beyond retention and horizon
		for i := range 4 {        // make both logs roll and take snapshots behind the old records
			send(fmt.Sprint("roll", i), 1, 200<<10)
			w.settled()
			to.drain("transfer-credit", "transfer")
			time.Sleep(3 * time.Hour)
		}
		ids := send("landed", 10, 10)
		w.settled()
		toBegin := to.log.Begin()
		wantSlots(t, to.station)
		wantTo := inLog(t, to.station, toBegin)
		to.down()
		ids = append(ids, send("waiting", 10, 10)...)
		fromBegin := from.log.Begin()
		if fromBegin == 0 || toBegin == 0 {
			t.Fatal("nothing was trimmed")
		}
		wantSlots(t, from.station)
		wantFrom := inLog(t, from.station, fromBegin)
		from.down()
		for _, s := range []*site{from, to} {
			spoil(t, s.fs, "", remove(t, s.fs))
		}
		from.up()
		wantEntries(t, from.station, fromBegin, wantFrom)
		to.start()
		wantEntries(t, to.station, toBegin, wantTo)
		if err := to.Close(); err != nil {
			t.Fatal(err)
		}
		to.up()
		ids = append(ids, send("after", 10, 10)...)
		w.settled()
		wantOnce(t, to.drain("transfer-credit", "transfer"), ids)
		if n := to.Status().Counts.Orphans + to.Status().Counts.Refused; n != 0 {
			t.Fatalf("%d orphans or refused landings", n)
		}
	})
}

// TestPowerCutWhileIndexesAreMadeAnew: whatever the disk kept, the next start
// makes them again or has them whole.
func TestPowerCutWhileIndexesAreMadeAnew(t *testing.T) {
	s, mem, ids := healable(t)
	begin := s.log.Begin()
	want := inLog(t, s, begin)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	kept := copyOf(t, mem)
	spoil(t, kept, "", remove(t, kept))
	var mu sync.Mutex
	var cuts []*disk.Mem
	rng := rand.New(rand.NewPCG(3, 4))
	kept.AfterOp(func(int) {
		mu.Lock()
		defer mu.Unlock()
		cuts = append(cuts, kept.Crash(rng))
	})
	healed := open(t, kept, s.node, s.topo, s.limits)
	kept.AfterOp(nil)
	if err := healed.Close(); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	t.Logf("%d power cuts", len(cuts))
	for i, cut := range cuts {
		after := open(t, cut, s.node, s.topo, s.limits)
		wantEntries(t, after, begin, want)
		if i%16 == 0 {
			wantOnce(t, after.drain("orders-billing", "orders"), ids)
		}
		if err := after.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestHealingRefusesWhatItCannotKnow: a number given anew would be worse than a
// broker that does not open.
func TestHealingRefusesWhatItCannotKnow(t *testing.T) {
	s, mem, _ := healable(t)
	first := indexName(s.state.topics["orders"].queues[0].id)
	dead := indexName(s.state.topics[DeadLetterTopic("orders-billing")].queues[0].id)
	end := s.log.Committed()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	refused := func(t *testing.T, kept disk.FS, what string) {
		t.Helper()
		c := &station{t: t, fs: kept, node: s.node, topo: s.topo, limits: s.limits}
		b, err := Open(t.Context(), c.options())
		if err == nil {
			b.Close()
			t.Fatal("opened")
		}
		if !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "the log begins at") {
			t.Fatalf("refused with %v, want %q", err, what)
		}
	}
	t.Run("log damaged", func(t *testing.T) {
		kept := copyOf(t, mem)
		spoil(t, kept, first, remove(t, kept))
		files, err := kept.List("store/log")
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(files, func(f string) bool { return strings.HasSuffix(f, ".log") })
		if i < 0 {
			t.Fatalf("no segment in %v", files)
		}
		damage(t, kept, path.Join("store/log", files[i]), 9000)
		refused(t, kept, "corrupt")
	})
	t.Run("dead letters were repeated", func(t *testing.T) {
		c := open(t, copyOf(t, mem), s.node, s.topo, s.limits)
		c.mu.Lock()
		c.state.counts.RepeatedDead++
		c.mu.Unlock()
		for range snapshotsKept {
			c.publishN("orders", "a snapshot is due", 1)
			c.restart()
		}
		c.Close()
		spoil(t, c.fs, dead, remove(t, c.fs))
		refused(t, c.fs, "repeated dead letters")
	})
	t.Run("numbers do not fit", func(t *testing.T) {
		c := open(t, copyOf(t, mem), s.node, s.topo, s.limits)
		b := c.Broker
		h := &healing{s: b.state, damaged: map[uint64]*queue.Index{}, next: map[uint64]uint64{}, count: map[uint64]uint64{},
			doubt: map[uint64]string{}, wrapped: map[*topic]bool{}}
		for _, o := range b.state.indexPlaces() {
			h.next[o.id] = (*o.index).Next()
		}
		err := b.log.Scan(t.Context(), b.log.Begin(), end, h.tally)
		if err != nil {
			t.Fatal(err)
		}
		q := b.state.topics["orders"].queues
		h.damaged[q[0].id] = q[0].index
		if err := h.prove(b.log.Begin()); err != nil {
			t.Fatalf("true counts are refused: %v", err)
		}
		h.count[q[0].id]--
		if h.prove(b.log.Begin()) == nil {
			t.Fatal("a count that the rest of the index contradicts is accepted")
		}
		h.count[q[0].id] = h.next[q[0].id] + 1
		if h.prove(b.log.Begin()) == nil {
			t.Fatal("more entries than numbers are accepted")
		}
		h.count[q[0].id] = h.next[q[0].id] - 1
		body := &topologyBody{topics: []topicBody{{name: "orders", queues: b.state.topics["orders"].want + 1}}}
		if h.compare(end, body.append(nil)) == nil {
			t.Fatal("another number of queues is accepted")
		}
		body.topics[0].queues--
		if err := h.compare(end, body.append(nil)); err != nil {
			t.Fatalf("the same number of queues is refused: %v", err)
		}
	})
}
