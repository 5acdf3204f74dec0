package transaction

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

func half(pos int, topic zone.Topic) Half {
	return Half{Key: Key{Epoch: 1, Position: record.Position(pos)}, Position: record.Position(pos), Size: 100,
		Topic: topic, Stored: time.UnixMilli(int64(1000 * pos)), Immunity: 6 * time.Second}
}

func TestFirstDecisionCounts(t *testing.T) {
	table := NewTable()
	table.Add(half(8, "a"))
	table.Add(half(16, "a"))
	k := Key{1, 8}
	if !table.Decide(k, Committed) || table.Decide(k, RolledBack) || table.Decide(k, Committed) || table.Decide(k, Parked) {
		t.Error("not the first decision, and it alone, counted")
	}
	if o, ok := table.Outcome(k); !ok || o != Committed {
		t.Errorf("outcome %v, %v", o, ok)
	}
	if table.Len() != 1 || table.LenOf("a") != 1 || table.Get(k) != nil {
		t.Error("what is decided is still pending")
	}
	if table.Decide(Key{2, 16}, Committed) {
		t.Error("a half message of another lineage was decided")
	}
	if got := table.Totals(); got != (Totals{Committed: 1, Repeated: 4}) {
		t.Errorf("totals %+v", got)
	}
}

// The window of decisions is bounded, whatever comes; the newest are in it.
func TestRemembersTheNewestDecisions(t *testing.T) {
	table := NewTable()
	n := Remembered + 1000
	for i := 1; i <= n; i++ {
		table.Add(half(i, "a"))
		table.Decide(Key{1, record.Position(i)}, RolledBack)
		table.Changed(func(*Half) {})
	}
	if len(table.decided) != Remembered || len(table.recent) != Remembered {
		t.Fatalf("%d decisions are kept", len(table.decided))
	}
	again, err := Parse(table.Append(nil))
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= n; i++ {
		k := Key{1, record.Position(i)}
		_, one := table.Outcome(k)
		_, two := again.Outcome(k)
		if want := i > 1000; one != want || two != want {
			t.Fatalf("decision %d of %d: known %v, and %v after a restart, want %v", i, n, one, two, want)
		}
	}
	for _, x := range []*Table{table, again} { // both forget the same next
		x.Add(half(n+1, "a"))
		x.Decide(Key{1, record.Position(n + 1)}, Committed)
	}
	if !bytes.Equal(table.Append(nil), again.Append(nil)) {
		t.Error("the table and its copy differ")
	}
}

// A table follows from what is folded: its snapshot at any moment, and what follows
// folded on it, make the same table.
func TestSnapshotIsTheTable(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		table, copied := NewTable(), NewTable()
		for i := range 400 {
			step := func(x *Table, rng *rand.Rand) {
				pos := record.Position(1 + rng.IntN(i+1))
				k := Key{1, pos}
				switch rng.IntN(6) {
				case 0, 1, 2:
					x.Add(half(i+1, zone.Topic(fmt.Sprint("t", rng.IntN(4)))))
				case 3:
					x.Decide(k, Outcome(1+rng.IntN(3)))
				case 4:
					x.Checked(k, rng.IntN(5), rng.IntN(5), time.UnixMilli(7))
				default:
					x.Moved(k, pos+record.Position(1000+i), 77)
				}
			}
			draw := rng.Uint64()
			step(table, rand.New(rand.NewPCG(draw, 2)))
			step(copied, rand.New(rand.NewPCG(draw, 2)))
			if rng.IntN(10) == 0 {
				var err error
				if copied, err = Parse(copied.Append(nil)); err != nil {
					t.Fatalf("seed %d, step %d: %v", seed, i, err)
				}
			}
			if !bytes.Equal(table.Append(nil), copied.Append(nil)) {
				t.Fatalf("seed %d: the tables differ after step %d", seed, i)
			}
		}
		if len(table.Summaries()) != len(table.topics) {
			t.Errorf("seed %d: summaries %+v of topics %v", seed, table.Summaries(), table.topics)
		}
		sum := 0
		for _, s := range table.Summaries() {
			sum += s.Pending
		}
		list := table.Pending()
		for i := range list[1:] {
			if list[i].Position > list[i+1].Position {
				t.Fatalf("seed %d: pending half messages are out of order", seed)
			}
		}
		if sum != table.Len() || len(list) != sum {
			t.Errorf("seed %d: %d pending, by topic %d", seed, table.Len(), sum)
		}
	}
}

func TestAgendaIsInOrder(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		var a Agenda
		due := map[*Half]time.Duration{}
		all := make([]*Half, 50)
		for i := range all {
			h := half(i+1, "a")
			all[i] = &h
		}
		for range 2000 {
			h := all[rng.IntN(len(all))]
			switch rng.IntN(4) {
			case 0, 1:
				due[h] = time.Duration(rng.IntN(1000))
				a.Set(h, due[h])
			case 2:
				delete(due, h)
				a.Remove(h)
			default:
				now := time.Duration(rng.IntN(1000))
				got := a.Due(now)
				for o, at := range due {
					if got == nil && at <= now || got != nil && at < due[got] {
						t.Fatalf("seed %d: %v is due at %v and was not the next one", seed, o.Key, at)
					}
				}
				if got != nil && due[got] > now {
					t.Fatalf("seed %d: taken too early", seed)
				}
				delete(due, got)
			}
			if a.Len() != len(due) {
				t.Fatalf("seed %d: %d on the agenda, want %d", seed, a.Len(), len(due))
			}
		}
	}
}

// goldenTable has something of everything.
func goldenTable() *Table {
	table := NewTable()
	for i, topic := range []zone.Topic{"pay", "refund", "pay", "pay", "pay"} {
		table.Add(half(64*(i+1), topic))
	}
	table.Checked(Key{1, 128}, 3, 2, time.UnixMilli(7000))
	table.Moved(Key{1, 192}, 4096, 222)
	table.Decide(Key{1, 64}, Committed)
	table.Decide(Key{1, 256}, RolledBack)
	table.Decide(Key{1, 320}, Parked)
	table.Decide(Key{1, 320}, Committed)
	return table
}

// The bytes of snapshots never change.
func TestSnapshotGolden(t *testing.T) {
	got := fmt.Sprintf("%x", goldenTable().Append(nil))
	if got != goldenSnapshot {
		t.Errorf("snapshot\n%s, want\n%s", got, goldenSnapshot)
	}
	for version, text := range map[int]string{1: goldenSnapshot1, 2: goldenSnapshot2} {
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		old, err := Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		h, want := old.Get(Key{1, 128}), goldenTable()
		if h == nil || h.Last.IsZero() != (version == 1) || h.Checks != 3 || h.Forgiven != 0 {
			t.Fatalf("of version %d: %+v", version, h)
		}
		h.Last, h.Forgiven = want.Get(Key{1, 128}).Last, 2
		if !bytes.Equal(old.Append(nil), want.Append(nil)) {
			t.Errorf("a snapshot of version %d is another table", version)
		}
	}
}

const (
	goldenSnapshot  = "0301010101020370617906726566756e64028001018001640180e807f02e03d83602c001018020de010080dc0bf02e0000000340010180020102c0020103"
	goldenSnapshot2 = "0201010101020370617906726566756e64028001018001640180e807f02e03d836c001018020de010080dc0bf02e00000340010180020102c0020103"
	goldenSnapshot1 = "0101010101020370617906726566756e64028001018001640180e807f02e03c001018020de010080dc0bf02e000340010180020102c0020103"
)

// TestOrderForgetsWhatIsDecided adds and decides many, a few of them out of order: what
// is pending stays in order, and what is decided takes no memory for long.
func TestOrderForgetsWhatIsDecided(t *testing.T) {
	table := NewTable()
	add := func(n int) {
		table.Add(Half{Key: Key{Epoch: 1, Position: record.Position(n)}, Position: record.Position(n), Topic: "t"})
	}
	const all, kept = 20_000, 100
	for n := range all {
		if n%1000 != 7 {
			add(n)
		}
	}
	for n := 7; n < all; n += 1000 {
		add(n)
	}
	for n := range all {
		if n%(all/kept) != 7 && !table.Decide(Key{Epoch: 1, Position: record.Position(n)}, RolledBack) {
			t.Fatalf("%d was not pending", n)
		}
	}
	if n := len(table.order); n > 2*kept+minGone {
		t.Errorf("%d are in order, %d are pending", n, table.Len())
	}
	table.Moved(Key{Epoch: 1, Position: 7}, all, 1)
	list := table.Pending()
	if len(list) != kept || list[kept-1].Key.Position != 7 {
		t.Fatalf("%d are pending, want %d with the one that was moved last", len(list), kept)
	}
	again, err := Parse(table.Append(nil))
	if err != nil || !bytes.Equal(again.Append(nil), table.Append(nil)) || again.Len() != kept {
		t.Errorf("the snapshot is not that of the table: %v", err)
	}
}
