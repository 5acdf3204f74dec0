package flow

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
)

var epoch0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(d time.Duration) time.Time { return epoch0.Add(d) }

// opened returns a sender whose destination expects next, with the credit.
func opened(t *testing.T, lim *Limits, head, cursor, next uint64, c wire.Credit, outcomes ...wire.Outcome) *sender {
	t.Helper()
	*lim = lim.withDefaults()
	s := &sender{}
	s.start(epoch0, lim, head, cursor)
	if _, err := s.accept(epoch0, &wire.Accept{Next: next, Credit: c, Outcomes: outcomes}); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSenderRoomIsCutByBoundaryAndCredit(t *testing.T) {
	for _, tc := range []struct {
		name         string
		head, next   uint64
		credit       wire.Credit
		count, bytes int
	}{
		{"to the boundary", 2000, 1, wire.Credit{Number: 9999, Bytes: 1 << 30}, 511, 512 << 10},
		{"a whole batch", 2000, 512, wire.Credit{Number: 9999, Bytes: 1 << 30}, 512, 512 << 10},
		{"to the head", 520, 512, wire.Credit{Number: 9999, Bytes: 1 << 30}, 9, 512 << 10},
		{"nothing left", 511, 512, wire.Credit{Number: 9999, Bytes: 1 << 30}, 0, 0},
		{"to the credit's number", 2000, 512, wire.Credit{Number: 514, Bytes: 1 << 30}, 3, 512 << 10},
		{"no number", 2000, 512, wire.Credit{Number: 511, Bytes: 1 << 30}, 0, 0},
		{"to the credit's bytes", 2000, 512, wire.Credit{Number: 9999, Bytes: 100}, 512, 100},
		{"no bytes", 2000, 512, wire.Credit{Number: 9999}, 0, 0},
	} {
		s := opened(t, &Limits{}, tc.head, 0, tc.next, tc.credit)
		if count, bytes := s.room(); count != tc.count || bytes != tc.bytes {
			t.Errorf("%s: %d numbers, %d bytes; want %d, %d", tc.name, count, bytes, tc.count, tc.bytes)
		}
	}
}

func TestSenderPacksMoreWhenManySmallBatchesFly(t *testing.T) {
	s := opened(t, &Limits{InFlight: 1}, 4, 0, 1, wire.Credit{Number: 9999, Bytes: 1 << 30})
	for n := range uint64(4) {
		if s.crowded() != (n > 0) {
			t.Errorf("%d batches in flight: the next one waits for more: %v", n, s.crowded())
		}
		s.sent(epoch0, n+1, 10)
	}
	s.grown(epoch0, 10)
	if count, _ := s.room(); count != 0 {
		t.Errorf("%d numbers may go in a small batch, four are in flight", count)
	}
	s.grown(epoch0, 600)
	if count, _ := s.room(); count != 507 {
		t.Errorf("%d numbers may go in a full batch, want 507", count)
	}
	s.grown(epoch0, 10)
	if err := s.ack(epoch0, &wire.Ack{Through: 1}); err != nil {
		t.Fatal(err)
	}
	if count, _ := s.room(); count == 0 {
		t.Errorf("nothing may go although one came back")
	}
}

func TestSenderBoundaryFollowsTheSizeOfRecords(t *testing.T) {
	for size, want := range map[int]uint64{10: 512, 1000: 512, 1030: 256, 20 << 10: 16, 600 << 10: 1} {
		s := opened(t, &Limits{}, 1<<20, 0, 512, wire.Credit{Number: 1 << 20, Bytes: 1 << 40})
		for range 30 {
			count, _ := s.room()
			s.sent(epoch0, s.next+uint64(count)-1, count*size)
		}
		if s.step != want {
			t.Errorf("records of %d bytes: boundary %d, want %d", size, s.step, want)
		}
		if count, _ := s.room(); uint64(count) != want || s.next%want != 0 {
			t.Errorf("records of %d bytes: batch of %d at %d", size, count, s.next)
		}
	}
}

func TestSenderCreditNeverFalls(t *testing.T) {
	s := opened(t, &Limits{}, 100, 0, 1, wire.Credit{Number: 50, Bytes: 1000})
	s.sent(epoch0, 10, 100)
	_ = s.ack(epoch0, &wire.Ack{Through: 5, Credit: wire.Credit{Number: 40, Bytes: 900}})
	if s.credit != (wire.Credit{Number: 50, Bytes: 1000}) {
		t.Errorf("credit %+v after a lower one", s.credit)
	}
}

func TestSenderSettlesOnlyWhatItSent(t *testing.T) {
	parked := func(first, through uint64) wire.Outcome {
		return wire.Outcome{First: first, Through: through, Outcome: record.OutcomeParked, Reason: record.ReasonDenied}
	}
	for _, tc := range []struct {
		name string
		ack  wire.Ack
		code wire.Code
		want Settlement
	}{
		{"landed", wire.Ack{Through: 15}, wire.CodeOK, Settlement{Through: 15}},
		{"again", wire.Ack{Through: 10}, wire.CodeOK, Settlement{}},
		{"older", wire.Ack{Through: 3}, wire.CodeOK, Settlement{}},
		{"parked", wire.Ack{Through: 15, Outcomes: []wire.Outcome{parked(12, 12), parked(13, 14)}}, wire.CodeOK,
			Settlement{Through: 15, Outcomes: []Outcome{Outcome(parked(12, 14))}}},
		{"parked before the cursor", wire.Ack{Through: 15, Outcomes: []wire.Outcome{parked(9, 11)}}, wire.CodeOK,
			Settlement{Through: 15, Outcomes: []Outcome{Outcome(parked(11, 11))}}},
		{"parked long before the cursor", wire.Ack{Through: 15, Outcomes: []wire.Outcome{parked(3, 5)}}, wire.CodeOK, Settlement{Through: 15}},
		{"not sent", wire.Ack{Through: 21}, wire.CodeMalformed, Settlement{}},
		{"outcome beyond the prefix", wire.Ack{Through: 15, Outcomes: []wire.Outcome{parked(16, 16)}}, wire.CodeMalformed, Settlement{}},
		{"moved", wire.Ack{Through: 15, Outcomes: []wire.Outcome{{First: 12, Through: 12, Outcome: record.OutcomeMoved}}}, wire.CodeUnsupported, Settlement{}},
		{"unknown outcome", wire.Ack{Through: 15, Outcomes: []wire.Outcome{{First: 12, Through: 12, Outcome: 99}}}, wire.CodeUnsupported, Settlement{}},
	} {
		s := opened(t, &Limits{}, 100, 10, 11, wire.Credit{Number: 99, Bytes: 1000})
		s.sent(epoch0, 20, 100)
		err := s.ack(epoch0, &tc.ack)
		if code := codeOrOK(err); code != tc.code {
			t.Errorf("%s: %v, want %v", tc.name, code, tc.code)
		}
		if len(s.pending.Outcomes) == 0 {
			s.pending.Outcomes = nil
		}
		if err == nil && !reflect.DeepEqual(s.pending, tc.want) {
			t.Errorf("%s: pending %+v, want %+v", tc.name, s.pending, tc.want)
		}
	}
}

func TestSenderRewindsWithoutSettlingTwice(t *testing.T) {
	lim := Limits{}.withDefaults()
	s := &sender{}
	s.start(epoch0, &lim, 100, 50)
	rewound, err := s.accept(epoch0, &wire.Accept{Next: 31, Credit: wire.Credit{Number: 99, Bytes: 1000}})
	if err != nil || rewound != 20 || s.next != 31 || s.pending.Through != 0 {
		t.Fatalf("rewound %d, next %d, pending %+v, %v", rewound, s.next, s.pending, err)
	}
	s.sent(epoch0, 60, 10)
	bad := wire.Outcome{First: 45, Through: 52, Outcome: record.OutcomeParked}
	if err := s.ack(epoch0, &wire.Ack{Through: 55, Outcomes: []wire.Outcome{bad}}); err != nil {
		t.Fatal(err)
	}
	if o := s.pending.Outcomes; len(o) != 1 || o[0].First != 51 || o[0].Through != 52 {
		t.Errorf("outcomes %+v, want 51 to 52", o)
	}
}

func TestSenderAFullListOfOutcomesGoesOn(t *testing.T) {
	var list []wire.Outcome
	for n := range uint64(wire.MaxOutcomes) {
		list = append(list, wire.Outcome{First: 2*n + 1, Through: 2*n + 1, Outcome: record.OutcomeParked})
	}
	s := opened(t, &Limits{}, 20000, 0, 10001, wire.Credit{}, list...)
	if want := uint64(2*wire.MaxOutcomes - 1); s.acked != want || s.pending.Through != want {
		t.Errorf("settled %d, pending %d; want %d, the last outcome told", s.acked, s.pending.Through, want)
	}
}

func TestSenderHealthIsProgress(t *testing.T) {
	s := opened(t, &Limits{}, 10, 0, 1, wire.Credit{Number: 99, Bytes: 1000})
	s.sent(at(0), 10, 10)
	if probe, end := s.tick(at(499 * time.Millisecond)); probe || end != nil {
		t.Errorf("before a probe is due: %v, %v", probe, end)
	}
	if probe, end := s.tick(at(500 * time.Millisecond)); !probe || end != nil {
		t.Errorf("a probe is due: %v, %v", probe, end)
	}
	s.reply(at(4*time.Second), &wire.ProbeReply{Held: wire.CodeHeld, Text: "disk full"})
	if _, end := s.tick(at(5 * time.Second)); end != nil {
		t.Errorf("ended although held: %v", end)
	}
	if _, end := s.tick(at(6 * time.Second)); codeOrOK(end) != wire.CodeTimeout {
		t.Errorf("held 2 s ago excuses for ever: %v", end)
	}
	s.reply(at(6*time.Second), &wire.ProbeReply{})
	if _, end := s.tick(at(6 * time.Second)); codeOrOK(end) != wire.CodeTimeout {
		t.Errorf("a probe without progress is health: %v", end)
	}
	if err := s.ack(at(6*time.Second), &wire.Ack{Through: 10}); err != nil {
		t.Fatal(err)
	}
	if _, end := s.tick(at(35 * time.Second)); end != nil {
		t.Errorf("ended before it was idle for 30 s: %v", end)
	}
	if _, end := s.tick(at(36 * time.Second)); end == nil || end.Code != wire.CodeOK {
		t.Errorf("idle session stays: %v", end)
	}
}

func TestBackoffIsBoundedAndNeverEnds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	b := backoff{max: 500 * time.Millisecond}
	low, high := time.Hour, time.Duration(0)
	for range 10000 {
		d := b.next(rng, 0)
		low, high = min(low, d), max(high, d)
	}
	if high > 500*time.Millisecond || high < 490*time.Millisecond || low > 5*time.Millisecond {
		t.Errorf("waits from %v to %v, want full jitter under 500 ms", low, high)
	}
	if d := b.next(rng, time.Hour); d != 500*time.Millisecond {
		t.Errorf("a hint of an hour makes it %v", d)
	}
	b.good()
	if d := b.next(rng, 0); d > 10*time.Millisecond {
		t.Errorf("%v after a good attempt", d)
	}
}
