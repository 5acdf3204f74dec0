package broker

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/zone"
)

// model is what a consumer group may and must see: the simple truth that the
// broker is compared with.
type model struct {
	t         *testing.T
	rng       *rand.Rand
	mem       *disk.Mem
	s         *station
	next      int
	published map[string]bool // and not yet known to be settled
	hands     map[string]Delivery
	settled   map[string]bool // acknowledged, and durable by a good close
	unsure    map[string]bool // acknowledged lately: a crash may repeat these
	places    map[string]string
	dead      map[string]bool
}

func (m *model) step() {
	switch n := m.rng.IntN(100); {
	case n < 35:
		var msgs []Message
		for range 1 + m.rng.IntN(8) {
			m.next++
			msg := m.s.message("orders", fmt.Sprint(m.next))
			msg.Body = make([]byte, m.rng.IntN(500))
			msgs = append(msgs, msg)
		}
		m.s.publish(msgs...)
		for _, msg := range msgs {
			m.published[msg.ID] = true
		}
	case n < 60:
		m.receive()
	case n < 85:
		for id, d := range m.hands {
			delete(m.hands, id)
			err := m.s.Ack(m.t.Context(), "orders-billing", "orders", d.Handle)
			if err == nil {
				m.unsure[id] = true
			} else if KindOf(err) != KindHandle {
				m.t.Fatal(err)
			}
			if m.rng.IntN(3) == 0 {
				break
			}
		}
	case n < 88:
		for id, d := range m.hands {
			if err := m.s.DeadLetter(m.t.Context(), "orders-billing", "orders", d.Handle); err == nil {
				delete(m.hands, id)
				m.dead[id], m.settled[id] = true, true
			}
			break
		}
	case n < 94:
		time.Sleep(time.Duration(m.rng.IntN(40)) * time.Second)
	case n < 97:
		m.s.restart()
		for id := range m.unsure {
			m.settled[id] = true
		}
		clear(m.unsure)
	default:
		m.crash()
	}
}

func (m *model) receive() {
	m.t.Helper()
	for _, d := range m.s.receive("orders-billing", "orders", 1+m.rng.IntN(20), time.Duration(1+m.rng.IntN(30))*time.Second) {
		id := string(d.Record.MessageID())
		switch {
		case !m.published[id]:
			m.t.Fatalf("message %s was never published", id)
		case m.settled[id], m.unsure[id]:
			m.t.Fatalf("message %s was delivered after it was settled", id)
		}
		at := fmt.Sprintf("%d/%d", d.Queue, d.Offset)
		if old, ok := m.places[id]; ok && old != at {
			m.t.Fatalf("message %s at %s and %s", id, old, at)
		}
		m.places[id] = at
		m.hands[id] = d
	}
}

// crash cuts the power: what was acknowledged lately may come again.
func (m *model) crash() {
	kept := m.mem.Crash(m.rng)
	if err := m.s.Close(); err != nil {
		m.t.Fatal(err)
	}
	m.mem, m.s.fs = kept, kept
	m.s.start()
	clear(m.unsure)
}

func (m *model) finish() {
	m.t.Helper()
	for range 200 {
		time.Sleep(time.Minute)
		list := m.s.receive("orders-billing", "orders", 1000, time.Minute)
		for _, d := range list {
			id := string(d.Record.MessageID())
			if !m.published[id] || m.settled[id] || m.unsure[id] {
				m.t.Fatalf("message %s: unknown or settled, delivered at the end", id)
			}
			m.unsure[id] = true
		}
		m.s.ack("orders-billing", list...)
		if len(list) == 0 {
			break
		}
	}
	for id := range m.published {
		if !m.settled[id] && !m.unsure[id] {
			// It may have been settled just before a crash that kept it.
			if _, seen := m.places[id]; !seen {
				m.t.Errorf("message %s was never delivered", id)
			}
		}
	}
	wantSlots(m.t, m.s)
	dead := m.s.drain("orders-billing", DeadLetterTopic("orders-billing"))
	for id := range m.dead {
		if dead[id] != 1 {
			m.t.Errorf("message %s: %d dead letters, want 1", id, dead[id])
		}
	}
}

// TestBrokerAgreesWithAModel runs random calls, restarts and power cuts.
func TestBrokerAgreesWithAModel(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 99))
				mem := disk.NewMem()
				limits := testLimits()
				limits.SnapshotBytes = int64(4<<10 + rng.IntN(60<<10))
				limits.SegmentBytes = 64 << 10
				m := &model{t: t, rng: rng, mem: mem,
					s:         open(t, mem, "rz02-a-1", sample(t, "max_attempts: 16", "max_attempts: 1000"), limits),
					published: map[string]bool{}, hands: map[string]Delivery{}, settled: map[string]bool{},
					unsure: map[string]bool{}, places: map[string]string{}, dead: map[string]bool{}}
				for range 400 {
					m.step()
				}
				m.finish()
				m.s.Close()
			})
		})
	}
}

// fold returns the state's snapshot bytes.
func (s *station) fold() []byte {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.indexes.Flush(); err != nil {
		s.t.Fatal(err)
	}
	return s.state.encode()
}

// TestFoldFromScratchEqualsSnapshotAndTail: whatever the log holds, folding it
// all gives the very bytes that snapshot and tail give.
func TestFoldFromScratchEqualsSnapshotAndTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits()
		limits.SnapshotBytes = 10 << 10
		w := newWorld(t, sample(t), limits, "rz02-a-1", "rz03-a-1", "cz-sh-a-1", "cz-hz-a-1", "cz-sz-a-1")
		defer w.close()
		from, to := w.sites["rz02-a"], w.sites["rz03-a"]
		for round := range 6 {
			for i := range 20 {
				id := fmt.Sprintf("%d-%d", round, i)
				from.publish(from.message("transfer", id, "userId", "50"), from.message("member", id), from.message("orders", id))
			}
			from.drain("orders-billing", "orders")
			to.receive("transfer-credit", "transfer", 7, time.Second)
			time.Sleep(10 * time.Second)
			if list := to.receive("transfer-credit", "transfer", 7, time.Second); len(list) > 2 {
				to.ack("transfer-credit", list[1:]...)
				if err := to.DeadLetter(t.Context(), "transfer-credit", "transfer", list[0].Handle); err != nil {
					t.Fatal(err)
				}
			}
			w.sites[[]zone.Group{"rz02-a", "rz03-a", "cz-sh-a"}[round%3]].bounce()
		}
		w.settled()
		for _, s := range w.sites {
			s.down()
			kept := s.mem.Crash(rand.New(rand.NewPCG(1, 1)))
			a := open(t, s.mem, s.node, s.topo, limits)
			want := a.fold()
			removeSnapshots(t, kept)
			b := open(t, kept, s.node, s.topo, limits)
			got := b.fold()
			// The two differ in the lineage that each start begins.
			if !bytes.Equal(scrub(t, a, want), scrub(t, b, got)) {
				t.Errorf("%s: fold from scratch differs from snapshot and tail", s.node)
			}
			a.Close()
			b.Close()
			s.mem, s.fs = s.mem.Crash(rand.New(rand.NewPCG(1, 1))), nil
			s.fs = s.mem
			s.up()
		}
	})
}

// scrub gives the state a fixed lineage and position and encodes it again.
func scrub(t *testing.T, s *station, _ []byte) []byte {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	saved, pos := s.state.lineage, s.state.position
	s.state.lineage, s.state.position = 1, 1
	defer func() { s.state.lineage, s.state.position = saved, pos }()
	return s.state.encode()
}

func removeSnapshots(t *testing.T, fsys disk.FS) {
	t.Helper()
	names, err := fsys.List("store")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if strings.HasPrefix(n, snapshotPrefix) {
			if err := fsys.Remove(path.Join("store", n)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// damage flips a byte of a file.
func damage(t *testing.T, fsys disk.FS, name string, at int64) {
	t.Helper()
	f, err := fsys.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x40
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

func TestDamagedSnapshotFallsBack(t *testing.T) {
	mem := disk.NewMem()
	limits := testLimits()
	s := open(t, mem, "rz02-a-1", sample(t), limits)
	ids := s.publishN("orders", "a", 50)
	s.restart()
	ids = append(ids, s.publishN("orders", "b", 50)...)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := s.snapshotNames()
	if err != nil || len(names) != snapshotsKept {
		t.Fatalf("snapshots %v, %v; want %d", names, err, snapshotsKept)
	}
	damage(t, mem, path.Join("store", names[0]), 60)
	s.start()
	if at := fmt.Sprintf("%s%020d", snapshotPrefix, s.snapAt); s.snapAt == 0 || at == names[0] {
		t.Fatalf("restored from %s, want the snapshot before %s", at, names[0])
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if names, err = s.snapshotNames(); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		damage(t, mem, path.Join("store", name), 60)
	}
	s.start()
	wantOnce(t, s.drain("orders-billing", "orders"), ids)
}

func TestSnapshotOfAnotherStoreIsRefused(t *testing.T) {
	one, two := disk.NewMem(), disk.NewMem()
	a := open(t, one, "rz02-a-1", sample(t), testLimits())
	b := open(t, two, "rz02-a-1", sample(t), testLimits())
	a.publishN("orders", "a", 5)
	ids := b.publishN("orders", "b", 9)
	a.Close()
	b.Close()
	removeSnapshots(t, two)
	names, err := a.snapshotNames()
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	data, err := a.readFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := b.writeFile(names[0], data); err != nil {
		t.Fatal(err)
	}
	_, err = b.emptyState().decode(names[0], data)
	var se *SnapshotError
	if !errors.As(err, &se) || !strings.Contains(err.Error(), "incarnation") {
		t.Fatalf("decode: %v", err)
	}
	b.start()
	wantOnce(t, b.drain("orders-billing", "orders"), ids)
}

func TestTrimmedLogWithoutSnapshotIsRefused(t *testing.T) {
	mem := disk.NewMem()
	limits := testLimits()
	limits.SegmentBytes = 64 << 10
	s := open(t, mem, "rz02-a-1", sample(t), limits)
	for range 3 {
		m := s.message("orders", "m")
		m.Body = make([]byte, 100<<10)
		s.publish(m)
		s.drain("orders-billing", "orders")
		s.flushProgress(t.Context())
		s.publish(s.message("orders", "x"))
		if err := s.snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.drain("orders-billing", "orders")
	s.restart()
	s.publish(s.message("orders", "x"))
	s.restart()
	s.publish(s.message("orders", "x"))
	if err := s.snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.drain("orders-billing", "orders")
	s.flushProgress(t.Context())
	s.publish(s.message("orders", "y"))
	if err := s.trim(time.Now().Add(1000 * time.Hour)); err != nil {
		t.Fatal(err)
	}
	if s.log.Begin() == 0 {
		t.Fatalf("nothing trimmed: %+v", s.Status().Log)
	}
	s.Close()
	removeSnapshots(t, mem)
	_, err := Open(t.Context(), s.options())
	var se *SnapshotError
	if !errors.As(err, &se) {
		t.Fatalf("open: %v, want a snapshot error", err)
	}
}
