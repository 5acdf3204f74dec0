package flow

import (
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// receiving returns a receiver of the lineage 0xa that expects next.
func receiving(lim *Limits, next uint64, b *budget) *receiver {
	have := SinkState{Known: true, Settled: next - 1, History: []Have{{Lineage: 0xa, Epoch: 1, Last: next - 1}}}
	window, _ := b.open(epoch0, 0)
	rx := &receiver{}
	rx.begin(epoch0, lim, &wire.Open{Lineage: table(0xa, 1, 0xb, 1001), Head: 2000}, &have, resumption{next: next}, window)
	rx.regrant(epoch0, b, false)
	return rx
}

func TestReceiverTakesWhatComesNext(t *testing.T) {
	lim := Limits{NumberWindow: 100, MinWindow: 1000, MemoryBytes: 10000}.withDefaults()
	for _, tc := range []struct {
		name           string
		first, through uint64
		bytes          int
		id             record.LineageID
		skip           uint64
		fresh          bool
		code           wire.Code
	}{
		{"the next", 11, 20, 100, 0xa, 0, true, 0},
		{"duplicates", 1, 10, 100, 0xa, 0, false, 0},
		{"partly duplicates", 8, 12, 100, 0xa, 3, true, 0},
		{"beyond the next", 12, 20, 100, 0xa, 0, false, wire.CodeMalformed},
		{"all bytes of the credit", 11, 20, 1000, 0xa, 0, true, 0},
		{"beyond the credit's bytes", 11, 20, 1001, 0xa, 0, false, wire.CodeMalformed},
		{"all numbers of the credit", 11, 110, 100, 0xa, 0, true, 0},
		{"beyond the credit's numbers", 11, 111, 100, 0xa, 0, false, wire.CodeMalformed},
		{"another lineage", 11, 20, 100, 0xb, 0, false, wire.CodeDiverged},
	} {
		rx := receiving(&lim, 11, newBudget(&lim))
		skip, fresh, err := rx.take(epoch0, tc.first, tc.through, tc.bytes, tc.id, 1)
		if code := codeOrOK(err); skip != tc.skip || fresh != tc.fresh || code != tc.code {
			t.Errorf("%s: skip %d, fresh %v, %v; want %d, %v, %v", tc.name, skip, fresh, code, tc.skip, tc.fresh, tc.code)
		}
	}
}

func TestReceiverTakesNoBatchOfTwoLineages(t *testing.T) {
	lim := Limits{}.withDefaults()
	rx := receiving(&lim, 996, newBudget(&lim))
	if _, _, err := rx.take(epoch0, 996, 1003, 10, 0xa, 1); codeOrOK(err) != wire.CodeDiverged {
		t.Errorf("a batch across the lineage's end: %v", err)
	}
}

func TestReceiverLandsTheFirstOfALineageAlone(t *testing.T) {
	lim := Limits{}.withDefaults()
	rx := receiving(&lim, 1000, newBudget(&lim))
	for _, n := range []uint64{1000, 1001, 1002, 1003} {
		id, epoch := record.LineageID(0xa), uint64(1)
		if n > 1000 {
			id, epoch = 0xb, 3
		}
		if _, _, err := rx.take(epoch0, n, n, 10, id, epoch); err != nil {
			t.Fatal(err)
		}
		rx.push(Landing{First: n, Through: n, Lineage: id}, 10)
	}
	hand := func() (n int) {
		for rx.ready() != nil {
			rx.handed()
			n++
		}
		return n
	}
	if n := hand(); n != 1 {
		t.Errorf("%d landings at once, want the last of the known lineage", n)
	}
	rx.landed()
	if n := hand(); n != 1 {
		t.Errorf("%d landings at once, want the first of the new lineage", n)
	}
	rx.landed()
	if n := hand(); n != 2 {
		t.Errorf("%d landings at once, want the rest", n)
	}
}

func TestReceiverCreditIsBackedByTheBudget(t *testing.T) {
	lim := Limits{MinWindow: 1000, MaxWindow: 8000, MemoryBytes: 40000, NumberWindow: 1 << 20}.withDefaults()
	b := newBudget(&lim)
	rx := receiving(&lim, 1, b)
	now, n := epoch0, uint64(1)
	use := func(bytes int) {
		if _, _, err := rx.take(now, n, n, bytes, 0xa, 1); err != nil {
			t.Fatal(err)
		}
		rx.push(Landing{First: n, Through: n, Lineage: 0xa}, bytes)
		n++
		for rx.ready() != nil {
			rx.handed()
		}
	}
	for range 100 {
		use(500)
		now = now.Add(time.Millisecond)
		rx.landed()
		rx.regrant(now, b, false)
		if out := int64(rx.credit.Bytes - rx.released); out > rx.reserved || rx.reserved > b.inUse() {
			t.Fatalf("%d bytes promised, %d reserved, %d in use", out, rx.reserved, b.inUse())
		}
	}
	if rx.window != 8000 {
		t.Errorf("window %d of a busy flow, want 8000", rx.window)
	}
	credit := rx.credit
	use(500)
	rx.landed()
	rx.regrant(now, b, true)
	if rx.credit != credit {
		t.Errorf("a held destination raised the credit")
	}
	for range 7 { // others grow as well: the share falls
		w, ok := b.open(now, 2000)
		if !ok {
			t.Fatal("no memory for a new session")
		}
		b.grow(w)
	}
	for range 100 {
		use(200)
		rx.landed()
		rx.regrant(now, b, false)
	}
	if rx.window > 40000*3/4/7 {
		t.Errorf("window %d does not fall to its share", rx.window)
	}
	if out := int64(rx.credit.Bytes - rx.released); rx.reserved != rx.window || out != rx.window {
		t.Errorf("%d promised, %d reserved, window %d", out, rx.reserved, rx.window)
	}
}

func TestOutcomesAreToldInPieces(t *testing.T) {
	var list []Outcome
	for n := range uint64(5000) {
		list = append(list, Outcome{First: 3 * n, Through: 3 * n, Outcome: record.OutcomeParked})
	}
	from, told := uint64(300), 0
	for from < 15000 {
		picked, cut := outcomes(list, from, 15000)
		if len(picked) > wire.MaxOutcomes || cut <= from {
			t.Fatalf("%d outcomes up to %d", len(picked), cut)
		}
		for _, o := range picked {
			if o.First <= from || o.Through > cut {
				t.Fatalf("%+v is not in %d to %d", o, from, cut)
			}
		}
		told, from = told+len(picked), cut
	}
	if told != 5000-101 {
		t.Errorf("%d outcomes told, want %d", told, 5000-101)
	}
	if got, cut := outcomes([]Outcome{{First: 5, Through: 50, Outcome: record.OutcomeGap}}, 30, 20); got != nil || cut != 20 {
		t.Errorf("outcomes before the cursor of a destination that lost numbers: %+v, %d", got, cut)
	}
}
