package consumer

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
)

var exampleDelta = Delta{Groups: []GroupDelta{
	{Group: "billing", Topic: "orders", Queues: []QueueDelta{
		{Queue: 0, Created: true, Start: 1000, Acked: []Range{{1000, 1003}, {1005, 1006}}},
		{Queue: 7, Retries: []Retry{{Offset: 3, Attempts: 2, Visible: time.UnixMilli(1_790_000_000_123)}, {Offset: 300, Attempts: 1, Attempt: 300}}},
	}},
	{Group: "audit", Topic: "orders", Queues: []QueueDelta{{Queue: 65535, Acked: []Range{{0, 1 << 40}}}}},
}}

func TestDeltaBytesNeverChange(t *testing.T) {
	const golden = "02020762696c6c696e67066f72646572730200" + "01e80702e80703020100" +
		"070000020302f6b183c5986800a9020100ac02" + "05617564697406" + "6f726465727301ffff03000100808080808020" + "00"
	got := hex.EncodeToString(exampleDelta.Append(nil))
	if got != golden {
		t.Errorf("delta is\n%s, want\n%s", got, golden)
	}
}

func TestDeltaIsReadBack(t *testing.T) {
	for _, d := range []Delta{{}, exampleDelta} {
		got, err := ParseDelta(d.Append(nil))
		if err != nil || !reflect.DeepEqual(got, d) {
			t.Errorf("%+v became %+v, %v", d, got, err)
		}
	}
}

func TestDeltaRefusesEveryTruncation(t *testing.T) {
	b := exampleDelta.Append(nil)
	var format *FormatError
	for n := range b {
		if _, err := ParseDelta(b[:n]); !errors.As(err, &format) {
			t.Errorf("%d of %d bytes: %v", n, len(b), err)
		}
	}
	for _, bad := range [][]byte{append(bytes.Clone(b), 0), {1, 0}, {2, 1, 0, 0, 1, 0, 2, 0, 0}, bytes.Repeat([]byte{0xff}, 40)} {
		if _, err := ParseDelta(bad); !errors.As(err, &format) {
			t.Errorf("%x: %v", bad, err)
		}
	}
}

func FuzzDelta(f *testing.F) {
	f.Add(exampleDelta.Append(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := ParseDelta(b)
		if err != nil {
			return
		}
		again, err := ParseDelta(d.Append(nil))
		if err != nil || !reflect.DeepEqual(d, again) {
			t.Errorf("%+v became %+v, %v", d, again, err)
		}
		p := NewProgress()
		p.Apply(d)
	})
}

func FuzzSnapshot(f *testing.F) {
	p := NewProgress()
	p.Apply(exampleDelta)
	f.Add(p.AppendSnapshot(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParseSnapshot(b)
		if err != nil {
			return
		}
		one := p.AppendSnapshot(nil)
		again, err := ParseSnapshot(one)
		if err != nil || !bytes.Equal(one, again.AppendSnapshot(nil)) {
			t.Errorf("%x became %x, %v", b, one, err)
		}
	})
}

func TestApplyTwiceChangesNothing(t *testing.T) {
	p := NewProgress()
	p.Apply(exampleDelta)
	once := p.AppendSnapshot(nil)
	p.Apply(exampleDelta)
	if !bytes.Equal(once, p.AppendSnapshot(nil)) {
		t.Error("the second time changed something")
	}
	q, err := ParseSnapshot(once)
	if err != nil || !bytes.Equal(once, q.AppendSnapshot(nil)) {
		t.Errorf("snapshot is not read back: %v", err)
	}
}

func TestProgressCountsWhatIsSettled(t *testing.T) {
	p := NewProgress()
	if !p.Create("g", "t", 2, 100) || p.Create("g", "t", 2, 50) {
		t.Fatal("a group is created once")
	}
	p.Apply(Delta{Groups: []GroupDelta{{Group: "g", Topic: "t", Queues: []QueueDelta{{Queue: 2,
		Acked:   []Range{{90, 103}, {105, 110}},
		Retries: []Retry{{Offset: 101, Attempts: 1}, {Offset: 104, Attempts: 3, Visible: time.UnixMilli(5000)}}}}}}})
	want := []QueueState{{Queue: 2, Floor: 103, Acked: []Range{{105, 110}}, Retries: []Retry{{Offset: 104, Attempts: 3, Visible: time.UnixMilli(5000)}}}}
	if got := p.State("g", "t"); !reflect.DeepEqual(got, want) {
		t.Fatalf("state is %+v", got)
	}
	for end, lag := range map[uint64]uint64{90: 0, 103: 0, 104: 1, 105: 2, 107: 2, 110: 2, 120: 12} {
		if got := p.Lag("g", "t", 2, end); got != lag {
			t.Errorf("lag below %d is %d, want %d", end, got, lag)
		}
	}
	for offset, settled := range map[uint64]bool{0: true, 102: true, 103: false, 104: false, 105: true, 109: true, 110: false} {
		if got := p.Settled("g", "t", 2, offset); got != settled {
			t.Errorf("offset %d is settled: %v, want %v", offset, got, settled)
		}
	}
	if p.Settled("g", "t", 3, 0) || p.Settled("nobody", "t", 2, 0) {
		t.Error("what nobody has is settled")
	}
	p.Create("late", "t", 2, 200)
	floors := map[uint16]uint64{}
	p.Floors("g", "t", func(queue uint16, floor uint64) { floors[queue] = floor })
	p.Floors("nobody", "t", func(uint16, uint64) { t.Error("nobody has a queue") })
	if len(floors) != 1 || floors[2] != 103 {
		t.Errorf("floors are %v", floors)
	}
	p.Settle("g", "t", 2, 104)
	p.Settle("g", "t", 2, 103)
	if got := p.State("g", "t"); got[0].Floor != 110 || len(got[0].Acked)+len(got[0].Retries) != 0 {
		t.Errorf("state is %+v", got)
	}
	p.Drop("g", "t")
	if p.State("g", "t") != nil || p.State("late", "t") == nil {
		t.Error("drop forgot the wrong group")
	}
}

// TestProgressIsASet runs random deltas against a plain set of offsets.
func TestProgressIsASet(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		p := NewProgress()
		settled, retries := make(map[uint64]bool), make(map[uint64]uint32)
		const end = 300
		for range 200 {
			q := QueueDelta{}
			o := uint64(0)
			for range rng.IntN(6) {
				o += rng.Uint64N(40)
				r := Range{From: o, To: o + 1 + rng.Uint64N(12)}
				q.Acked = append(q.Acked, r)
				o = r.To
			}
			o = 0
			for range rng.IntN(6) {
				o += 1 + rng.Uint64N(40)
				q.Retries = append(q.Retries, Retry{Offset: o, Attempts: rng.Uint32N(5)})
			}
			d, err := ParseDelta((&Delta{Groups: []GroupDelta{{Group: "g", Topic: "t", Queues: []QueueDelta{q}}}}).Append(nil))
			if err != nil {
				t.Fatal(err)
			}
			p.Apply(d)
			for _, r := range q.Acked {
				for o := r.From; o < r.To; o++ {
					settled[o] = true
					delete(retries, o)
				}
			}
			for _, r := range q.Retries {
				if !settled[r.Offset] {
					retries[r.Offset] = r.Attempts
				}
			}
			if p, err = ParseSnapshot(p.AppendSnapshot(nil)); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			lag := uint64(0)
			for o := range uint64(end) {
				if !settled[o] {
					lag++
				}
			}
			if got := p.Lag("g", "t", 0, end); got != lag {
				t.Fatalf("seed %d: lag %d, want %d", seed, got, lag)
			}
			state := p.State("g", "t")[0]
			if len(state.Retries) != len(retries) {
				t.Fatalf("seed %d: %d retries, want %d", seed, len(state.Retries), len(retries))
			}
			for _, r := range state.Retries {
				if n, ok := retries[r.Offset]; !ok || n != r.Attempts {
					t.Fatalf("seed %d: retry %+v, want %d attempts", seed, r, n)
				}
			}
		}
	}
}
