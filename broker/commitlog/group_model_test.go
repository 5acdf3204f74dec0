package commitlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
)

// groupModel is a group of members with a coordinator that is never wrong: what
// is between the logs of a group when networks, elections and in-sync sets are
// somebody else's business.
type groupModel struct {
	t       *testing.T
	rng     *rand.Rand
	disks   []*disk.Mem
	logs    []*harness // nil: down
	inSync  []bool
	master  int
	epoch   uint64
	seed    uint64
	next    int                     // number of the next entry
	acked   map[int]record.Position // entries that were acknowledged as committed
	waiting []sent
	total   *atomic.Int64 // entries acknowledged with all seeds
}

// sent is an entry whose Done did not come yet.
type sent struct {
	number int
	batch  *Batch
	out    <-chan error
}

func TestWhatAGroupCommitsIsTheSameInAllMembers(t *testing.T) {
	var total atomic.Int64
	t.Cleanup(func() { // when all seeds are through
		if total.Load() == 0 {
			t.Error("nothing was acknowledged")
		}
	})
	for _, seed := range seeds(25) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			m := &groupModel{t: t, rng: rand.New(rand.NewPCG(seed, 55)), seed: seed, next: 1, acked: map[int]record.Position{}, total: &total}
			m.begin()
			ops := []func(){m.publish, m.publish, m.publish, m.ship, m.ship, m.ship, m.commit, m.commit, m.join, m.tellReplica,
				m.powerCut, m.handOver, m.trim, m.returns, m.returns}
			for range 300 {
				ops[m.rng.IntN(len(ops))]()
				if t.Failed() {
					t.Fatalf("replay with -seed=%d", seed)
				}
			}
			m.heal()
		})
	}
}

func (m *groupModel) begin() {
	for i := range 3 {
		m.disks = append(m.disks, disk.NewMem())
		m.logs, m.inSync = append(m.logs, nil), append(m.inSync, i == 0)
	}
	m.logs[0] = m.open(0)
	m.promote(0)
	m.logs[0].settle()
	for i := 1; i < 3; i++ {
		adopt(m.t, m.disks[i], m.logs[0])
		m.logs[i] = m.open(i)
	}
}

func (m *groupModel) open(i int) *harness {
	m.seed++
	o := followOptions(m.disks[i], m.seed)
	o.TailBytes = []int64{-1, 1 << 10, 64 << 10}[m.rng.IntN(3)]
	o.SegmentBytes = int64(4<<10) + int64(m.rng.IntN(3))<<10
	h := open(m.t, o)
	h.end = h.Committed() // delivery begins there
	h.Start()
	return h
}

func (m *groupModel) promote(i int) {
	m.epoch += 1 + uint64(m.rng.IntN(2))
	m.master = i
	m.logs[i].promote(m.epoch, record.LineageID(m.rng.Uint64()|1))
}

// up returns the master's log, nil when there is none.
func (m *groupModel) up() *harness {
	if m.master < 0 {
		return nil
	}
	return m.logs[m.master]
}

func (m *groupModel) publish() {
	h := m.up()
	if h == nil || h.End()-h.Committed() > 40<<10 {
		return
	}
	for range 1 + m.rng.IntN(4) {
		b := &Batch{Entries: []Entry{numbered(m.next, m.rng.IntN(900))}, Ack: Ack(m.rng.IntN(3))}
		early := b.Ack != AckCommitted
		out, err := h.send(b)
		if err != nil {
			m.t.Fatal(err)
		}
		if !early {
			m.waiting = append(m.waiting, sent{m.next, b, out})
		}
		m.next++
	}
	if m.rng.IntN(3) > 0 {
		h.settle()
	}
}

// replica picks a member that is up and no master.
func (m *groupModel) replica() (int, *harness) {
	i := m.rng.IntN(3)
	if i == m.master || m.logs[i] == nil || m.up() == nil {
		return 0, nil
	}
	return i, m.logs[i]
}

func (m *groupModel) ship() {
	i, h := m.replica()
	if h == nil {
		return
	}
	h = m.follows(i)
	for range m.rng.IntN(6) {
		if more, err := ship1(m.t, m.up(), h, 200+m.rng.IntN(4000)); err != nil {
			m.t.Fatalf("ship: %v", err)
		} else if !more {
			break
		}
		if m.rng.IntN(3) == 0 {
			m.sync(h)
		}
	}
}

func (m *groupModel) sync(h *harness) {
	if _, err := h.Sync(context.Background()); err != nil {
		m.t.Fatal(err)
	}
}

// follows cuts a member back to what it has in common with the master. Nothing
// that was committed may be in the way, ever. One that lags behind what the master
// keeps begins anew.
func (m *groupModel) follows(i int) *harness {
	if !align(m.t, m.up(), m.logs[i]) {
		m.t.Fatalf("member %d has committed what master %d does not have", i, m.master)
	}
	if m.logs[i].End() < m.up().Begin() {
		m.logs[i].Close()
		m.disks[i] = disk.NewMem()
		adopt(m.t, m.disks[i], m.up())
		m.logs[i], m.inSync[i] = m.open(i), false
	}
	return m.logs[i]
}

// join takes a replica that has everything into the set.
func (m *groupModel) join() {
	i, h := m.replica()
	if h == nil {
		return
	}
	h = m.follows(i)
	m.up().settle()
	shipAll(m.t, m.up(), h)
	m.inSync[i] = true
}

// commit raises the commit position to what every member of the set has.
func (m *groupModel) commit() {
	h := m.up()
	if h == nil {
		return
	}
	p := h.Synced()
	for i, l := range m.logs {
		if !m.inSync[i] || l == nil {
			if m.inSync[i] {
				return // a member is down: the set must shrink first
			}
			continue
		}
		if !slices.Equal(l.Lineage(), h.Lineage()) {
			return // it does not follow this master yet: what it has does not count
		}
		p = min(p, l.Synced())
	}
	h.Commit(p)
	m.check(h)
	m.learn()
}

// check compares what is committed with what ever was.
func (m *groupModel) check(h *harness) {
	for i, l := range m.logs {
		if l == nil || l == h {
			continue
		}
		to := min(l.Committed(), h.Committed())
		from := max(l.Begin(), h.Begin())
		if to <= from {
			continue
		}
		if !bytes.Equal(between(m.t, l, from, to), between(m.t, h, from, to)) {
			m.t.Fatalf("member %d and master %d differ below %d", i, m.master, to)
		}
	}
}

func between(t testing.TB, h *harness, from, to record.Position) []byte {
	t.Helper()
	var all []byte
	for from < to {
		s, err := h.readRaw(context.Background(), from, to, 4<<10, nil)
		if err != nil || len(s.Frames) == 0 {
			t.Fatalf("raw bytes at %d of %d: %d, %v", from, to, len(s.Frames), err)
		}
		all, from = append(all, s.Frames...), s.Next
	}
	return all
}

// learn notes what was acknowledged.
func (m *groupModel) learn() {
	left := m.waiting[:0]
	for _, s := range m.waiting {
		select {
		case err := <-s.out:
			if err == nil {
				m.acked[s.number] = s.batch.Entries[0].Position
			} else if !errors.Is(err, ErrStopped) {
				m.t.Fatalf("entry %d: %v", s.number, err)
			}
		default:
			left = append(left, s)
		}
	}
	m.waiting = left
}

func (m *groupModel) tellReplica() {
	if i, h := m.replica(); h != nil && slices.Equal(h.Lineage(), m.up().Lineage()) {
		h.Commit(m.up().Committed())
		_ = i
	}
}

func (m *groupModel) trim() {
	for _, h := range m.logs {
		if h != nil && m.rng.IntN(3) == 0 {
			if _, err := h.Trim(h.Begin() + (h.Committed()-h.Begin())/2); err != nil {
				m.t.Fatal(err)
			}
		}
	}
}

// powerCut takes a member down at any moment.
func (m *groupModel) powerCut() {
	i := m.rng.IntN(3)
	if m.logs[i] == nil {
		return
	}
	image := m.disks[i].Crash(m.rng)
	m.down(i, image)
}

func (m *groupModel) down(i int, image *disk.Mem) {
	m.logs[i].Close()
	m.disks[i], m.logs[i] = image, nil
	m.learn()
	if i == m.master {
		m.elect()
	} else if up := m.up(); up != nil {
		m.inSync[i] = false
	}
}

// handOver closes the master in good order.
func (m *groupModel) handOver() {
	if m.up() == nil || m.rng.IntN(3) > 0 {
		return
	}
	m.logs[m.master].Close()
	m.logs[m.master] = nil
	m.learn()
	m.elect()
}

// elect promotes the member of the set with the longest log, if one is up.
func (m *groupModel) elect() {
	best := -1
	m.master = -1
	for i, h := range m.logs {
		if h == nil || !m.inSync[i] {
			continue
		}
		if best < 0 || longer(h, m.logs[best]) {
			best = i
		}
	}
	if best < 0 {
		return // until one returns
	}
	m.promote(best)
	for i := range m.inSync {
		m.inSync[i] = i == best || (m.inSync[i] && m.logs[i] != nil)
	}
}

func longer(a, b *harness) bool {
	if x, y := a.Present().Epoch, b.Present().Epoch; x != y {
		return x > y
	}
	return a.End() > b.End()
}

// returns starts a member that is down.
func (m *groupModel) returns() {
	i := m.rng.IntN(3)
	if m.logs[i] != nil {
		return
	}
	m.logs[i] = m.open(i)
	if m.up() == nil {
		m.elect()
	}
}

// heal brings everybody up and finds every acknowledged entry in each log.
func (m *groupModel) heal() {
	for i := range m.logs {
		if m.logs[i] == nil {
			m.logs[i] = m.open(i)
		}
	}
	if m.up() == nil {
		m.elect()
	}
	up := m.up()
	for first := true; first || len(m.waiting) > 0 || up.Committed() < up.End(); first = false {
		up.settle()
		for i, h := range m.logs {
			if h != up {
				shipAll(m.t, up, m.follows(i))
				m.inSync[i] = true
			}
		}
		m.commit()
		runtime.Gosched() // the log's own goroutines have something to do
	}
	for i, h := range m.logs {
		h.Commit(up.Committed())
		if h.Committed() < up.Present().First {
			m.t.Errorf("member %d: %d is committed", i, h.Committed())
		}
		at := map[record.Position]int{}
		if err := h.Scan(context.Background(), 0, h.Committed(), func(e Entry) error {
			at[e.Position] = numberOf(m.t, e, h.Incarnation())
			return nil
		}); err != nil {
			m.t.Fatal(err)
		}
		for number, pos := range m.acked {
			if pos >= h.Begin() && at[pos] != number {
				m.t.Fatalf("member %d lost entry %d, which was acknowledged at %d", i, number, pos)
			}
		}
	}
	m.total.Add(int64(len(m.acked)))
	m.check(up)
}
