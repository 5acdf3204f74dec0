package commitlog

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	testGroup = zone.Group("g-test")
	testDir   = "/data/log"
)

// numbered makes an own entry that carries a number and a body derived from it.
func numbered(n, bodyLen int) Entry {
	b, err := record.AppendRecord(nil, &record.Record{
		Type:      record.TypeMessage,
		Identity:  record.Identity{Group: testGroup},
		Topic:     "t",
		Shard:     record.NoShard,
		MessageID: strconv.Itoa(n),
		Stored:    time.UnixMilli(int64(n)),
		Body:      bodyOf(n, bodyLen),
	})
	if err != nil {
		panic(err)
	}
	return Entry{Kind: KindOwn, Record: b}
}

// landed makes a landing entry with the number in the envelope.
func landed(n, bodyLen int, withRecord bool) Entry {
	env, err := record.AppendEnvelope(nil, &record.Envelope{
		Flow:    record.FlowID{Origin: "other", Incarnation: 9, Target: string(testGroup), Class: zone.ClassBulk},
		Lineage: 5, LineageEpoch: 1, Number: uint64(n), Through: uint64(n), Outcome: record.OutcomeLanded,
		Landed: time.UnixMilli(int64(n)),
	})
	if err != nil {
		panic(err)
	}
	e := Entry{Kind: KindLanding, Envelope: env}
	if withRecord {
		e.Record = numbered(n, bodyLen).Record
		record.Stamp(e.Record, 9, 1, 777)
	}
	return e
}

func bodyOf(n, length int) []byte {
	return bytes.Repeat([]byte{byte(n), byte(n >> 8), 0xA5}, length/3+1)[:length]
}

// numberOf reads the number of a test entry; 0 for the log's own entries. It
// fails the test when the entry is not intact.
func numberOf(t testing.TB, e Entry, inc record.Incarnation) int {
	t.Helper()
	if e.Kind == KindLanding {
		var env record.Envelope
		if n, err := record.ParseEnvelope(e.Envelope, &env); err != nil || n != len(e.Envelope) {
			t.Fatalf("envelope at %d: %d, %v", e.Position, n, err)
		}
		if e.Record != nil {
			if v, err := record.Parse(e.Record); err != nil || v.Position() != 777 || v.Verify() != nil {
				t.Fatalf("landed record at %d was changed: %v", e.Position, err)
			}
		}
		return int(env.Number)
	}
	v, err := record.Parse(e.Record)
	if err == nil {
		err = v.Verify()
	}
	if err != nil {
		t.Fatalf("record at %d: %v", e.Position, err)
	}
	if v.Position() != e.Position || v.Incarnation() != inc || string(v.Group()) != string(testGroup) {
		t.Fatalf("record at %d is stamped %+v", e.Position, v.Identity())
	}
	if v.Type() == record.TypeLineageStart {
		if _, err := ParseLineageStart(v.Body()); err != nil {
			t.Fatal(err)
		}
		return 0
	}
	n, err := strconv.Atoi(string(v.MessageID()))
	if err != nil || !bytes.Equal(v.Body(), bodyOf(n, len(v.Body()))) {
		t.Fatalf("record at %d is not what was appended: number %d, %v", e.Position, n, err)
	}
	return n
}

// harness is an open log with what it delivered.
type harness struct {
	*Log
	t testing.TB

	mu        sync.Mutex
	delivered []int           // guarded by mu; numbers in order
	end       record.Position // guarded by mu; of the last delivery
	gate      func()          // called in Deliver; may block
}

func testOptions(fsys disk.FS, seed uint64) Options {
	return Options{
		FS: fsys, Dir: testDir, Group: testGroup,
		SegmentBytes: 4 << 10, MaxBatchBytes: 4 << 10, QueueBytes: 16 << 10, TailBytes: 2 << 10,
		Rand: rand.New(rand.NewPCG(seed, 77)),
	}
}

func tryOpen(t testing.TB, o Options) (*harness, error) {
	h := &harness{t: t}
	o.Deliver = h.deliver
	l, err := Open(context.Background(), o)
	h.Log = l
	return h, err
}

func open(t testing.TB, o Options) *harness {
	t.Helper()
	h, err := tryOpen(t, o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

func (h *harness) deliver(c *Committed) {
	if h.gate != nil {
		h.gate()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range c.Entries {
		if e.Position < h.end || e.Position+record.Position(e.Size) > c.End {
			h.t.Errorf("delivery at %d is out of order (after %d, end %d)", e.Position, h.end, c.End)
		}
		if h.Committed() < c.End {
			h.t.Errorf("delivered to %d, committed is %d", c.End, h.Committed())
		}
		h.end = e.Position + record.Position(e.Size)
		if n := numberOf(h.t, e, h.Incarnation()); n != 0 {
			h.delivered = append(h.delivered, n)
		}
	}
	in := 0
	for _, b := range c.Batches {
		in += len(b.Entries)
		b.Result = c.End
	}
	if in != len(c.Entries) && in+1 != len(c.Entries) && (in > 0 || !h.gated) {
		h.t.Errorf("%d entries of batches in %d entries", in, len(c.Entries))
	}
}

func (h *harness) numbers() []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]int(nil), h.delivered...)
}

// send appends and returns a channel that takes the outcome.
func (h *harness) send(b *Batch) (<-chan error, error) {
	out := make(chan error, 2) // room to notice a second call
	b.Done = func(_ *Batch, err error) { out <- err }
	return out, h.Append(context.Background(), b)
}

func (h *harness) append(entries ...Entry) error {
	out, err := h.send(&Batch{Entries: entries})
	if err != nil {
		return err
	}
	return <-out
}

func (h *harness) mustAppend(entries ...Entry) {
	h.t.Helper()
	if err := h.append(entries...); err != nil {
		h.t.Fatalf("append: %v", err)
	}
}

// scan returns the numbers of all entries and checks ReadAt for each.
func scan(t testing.TB, l *Log, from record.Position) []int {
	t.Helper()
	var numbers []int
	last := record.Position(0)
	err := l.Scan(context.Background(), from, math.MaxUint64, func(e Entry) error {
		if e.Position < last {
			return fmt.Errorf("position %d after %d", e.Position, last)
		}
		last = e.Position + record.Position(e.Size)
		if n := numberOf(t, e, l.Incarnation()); n != 0 {
			numbers = append(numbers, n)
		}
		for _, hint := range []int{0, e.Size, 40} {
			got, err := l.ReadAt(e.Position, hint)
			if err != nil || got.Kind != e.Kind || got.Size != e.Size || !bytes.Equal(got.Record, e.Record) || !bytes.Equal(got.Envelope, e.Envelope) {
				return fmt.Errorf("ReadAt(%d, %d) differs from the scan: %w", e.Position, hint, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("scan: %v", err)
	}
	return numbers
}

func sequence(from, to int) []int {
	var s []int
	for ; from <= to; from++ {
		s = append(s, from)
	}
	return s
}

// keepAll drives Mem.Crash so that everything written is kept: the process was
// killed, the power was not.
func keepAll() *rand.Rand { return rand.New(keepSource{}) }

// keepSource makes IntN(4) return 1 ("everything").
type keepSource struct{}

func (keepSource) Uint64() uint64 { return 1<<32 | 1 }
