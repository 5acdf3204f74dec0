package commitlog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
)

// model is what a log should be: a list of acknowledged entries, and how many
// of the oldest may have been trimmed.
type model struct {
	t       *testing.T
	rng     *rand.Rand
	mem     *disk.Mem
	log     *harness
	entries []Entry // acknowledged; entry i has number first+i
	first   int     // number of entries[0]
	lives   uint64
	trimmed record.Position // highest position given to Trim
}

func (m *model) next() int { return m.first + len(m.entries) }

func TestLogEqualsItsModel(t *testing.T) {
	for _, seed := range seeds(5) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			m := &model{t: t, rng: rand.New(rand.NewPCG(seed, 4)), mem: disk.NewMem(), first: 1}
			m.open()
			ops := []func(){m.append, m.append, m.append, m.append, m.read, m.read, m.read, m.scan, m.scan, m.trim, m.restart, m.crash}
			for range 250 {
				ops[m.rng.IntN(len(ops))]()
				if t.Failed() {
					t.Fatalf("replay with -seed=%d", seed)
				}
			}
		})
	}
}

func (m *model) open() {
	m.lives++
	o := testOptions(m.mem, m.lives)
	o.TailBytes = []int64{-1, 1 << 10, 64 << 10}[m.rng.IntN(3)]
	m.log = open(m.t, o)
	got := scan(m.t, m.log.Log, 0)
	m.forget(got)
	if !slices.Equal(got, sequence(m.first, m.next()-1)) {
		m.t.Fatalf("after open: %v, want %d to %d", got, m.first, m.next()-1)
	}
	m.log.Start()
}

// forget drops what a trim removed from the model; only whole segments below
// what was asked for may be gone.
func (m *model) forget(got []int) {
	for len(m.entries) > 0 && (len(got) == 0 || m.first < got[0]) && m.entries[0].Position < m.log.Begin() {
		if m.entries[0].Position >= m.trimmed {
			m.t.Fatalf("entry %d at %d was trimmed, asked for %d", m.first, m.entries[0].Position, m.trimmed)
		}
		m.entries = m.entries[1:]
		m.first++
	}
}

func (m *model) batch() *Batch {
	b := &Batch{Buffered: m.rng.IntN(4) == 0, Reserved: m.rng.IntN(4) == 0}
	for range 1 + m.rng.IntN(4) {
		n := m.next() + len(b.Entries)
		if m.rng.IntN(3) == 0 {
			b.Entries = append(b.Entries, landed(n, m.rng.IntN(500), m.rng.IntN(2) == 0))
		} else {
			b.Entries = append(b.Entries, numbered(n, m.rng.IntN(500)))
		}
	}
	return b
}

func (m *model) append() {
	b := m.batch()
	out, err := m.log.send(b)
	if err == nil {
		err = <-out
	}
	if err != nil {
		m.t.Fatal(err)
	}
	for i, e := range b.Entries {
		if i > 0 && e.Position != b.Entries[i-1].Position+record.Position(b.Entries[i-1].Size) {
			m.t.Fatalf("entries of a batch are not neighbours: %d, %d", b.Entries[i-1].Position, e.Position)
		}
		if n := len(m.entries); n > 0 && e.Position <= m.entries[n-1].Position {
			m.t.Fatalf("position %d after %d", e.Position, m.entries[n-1].Position)
		}
		m.entries = append(m.entries, e)
	}
	if b.Buffered { // acknowledged early: wait until it counts
		b = &Batch{Entries: []Entry{numbered(m.next(), 1)}}
		out, err := m.log.send(b)
		if err == nil {
			err = <-out
		}
		if err != nil {
			m.t.Fatal(err)
		}
		m.entries = append(m.entries, b.Entries[0])
	}
}

func (m *model) read() {
	if len(m.entries) == 0 {
		return
	}
	i := m.rng.IntN(len(m.entries))
	want := m.entries[i]
	got, err := m.log.ReadAt(want.Position, []int{0, want.Size, 1}[m.rng.IntN(3)])
	if err != nil || got.Size != want.Size || numberOf(m.t, got, m.log.Incarnation()) != m.first+i {
		m.t.Fatalf("read of %d at %d: %+v, %v", m.first+i, want.Position, got, err)
	}
	// The log's own frames (a lineage's start, an idle mark) may move the end
	// meanwhile; a read is beyond it only when it stayed.
	end := m.log.Committed()
	if _, err := m.log.ReadAt(end+record.Position(8*m.rng.IntN(100)), 0); !errors.Is(err, ErrBeyondEnd) && m.log.Committed() == end {
		m.t.Fatalf("read beyond the end: %v", err)
	}
	if begin := m.log.Begin(); begin > 0 {
		if _, err := m.log.ReadAt(begin-8, 0); !errors.Is(err, ErrTrimmed) {
			m.t.Fatalf("read of the trimmed: %v", err)
		}
	}
}

func (m *model) scan() {
	if len(m.entries) == 0 {
		return
	}
	i := m.rng.IntN(len(m.entries))
	j := i + m.rng.IntN(len(m.entries)-i)
	var got []int
	err := m.log.Scan(context.Background(), m.entries[i].Position, m.entries[j].Position, func(e Entry) error {
		if n := numberOf(m.t, e, m.log.Incarnation()); n > 0 {
			got = append(got, n)
		}
		return nil
	})
	if err != nil || !slices.Equal(got, sequence(m.first+i, m.first+j-1)) {
		m.t.Fatalf("scan of %d to %d: %v, %v", m.first+i, m.first+j, got, err)
	}
}

func (m *model) trim() {
	if len(m.entries) == 0 {
		return
	}
	before := m.entries[m.rng.IntN(len(m.entries))].Position
	m.trimmed = max(m.trimmed, before)
	begin, err := m.log.Trim(before)
	if err != nil || begin != m.log.Begin() || begin > m.trimmed {
		m.t.Fatalf("trim before %d: %d, %v", before, begin, err)
	}
	m.forget(nil)
}

func (m *model) restart() {
	if err := m.log.Close(); err != nil {
		m.t.Fatal(err)
	}
	m.open()
}

// crash cuts the power while batches are under way: of those, a prefix of the
// entries may be found.
func (m *model) crash() {
	acked := len(m.entries)
	var outs []<-chan error
	for range m.rng.IntN(3) {
		b := m.batch()
		b.Buffered = false
		under := slices.Clone(b.Entries)
		out, err := m.log.send(b)
		if err != nil {
			m.t.Fatal(err)
		}
		outs = append(outs, out)
		m.entries = append(m.entries, under...)
	}
	image := m.mem.Crash(m.rng)
	for _, out := range outs {
		if err := <-out; err != nil {
			m.t.Fatal(err)
		}
	}
	m.log.Close()
	m.mem = image

	// Learn from the log which of the unacknowledged survived, and where.
	var found []Entry
	look, err := tryOpen(m.t, testOptions(m.mem.Crash(keepAll()), m.lives+1000))
	if err != nil {
		m.t.Fatal(err)
	}
	err = look.Scan(context.Background(), 0, look.Committed(), func(e Entry) error {
		if n := numberOf(m.t, e, look.Incarnation()); n >= m.first+acked {
			found = append(found, Entry{Kind: e.Kind, Position: e.Position, Size: e.Size})
		}
		return nil
	})
	look.Close()
	if err != nil || len(found) > len(m.entries)-acked {
		m.t.Fatalf("after the crash: %d unacknowledged entries, %v", len(found), err)
	}
	m.entries = append(m.entries[:acked], found...)
	m.open()
}
