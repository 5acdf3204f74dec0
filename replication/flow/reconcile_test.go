package flow

import (
	"testing"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
)

func table(rows ...uint64) (marks []wire.Mark) {
	for i := 0; i < len(rows); i += 2 {
		marks = append(marks, wire.Mark{Epoch: uint64(i + 1), ID: record.LineageID(rows[i]), First: rows[i+1]})
	}
	return marks
}

func TestReconcileFindsTheLastCommonNumber(t *testing.T) {
	const a, b, c = 0xa, 0xb, 0xc
	have := func(settled uint64, rows ...uint64) SinkState {
		s := SinkState{Known: true, Settled: settled}
		for i := 0; i < len(rows); i += 2 {
			s.History = append(s.History, Have{Lineage: record.LineageID(rows[i]), Epoch: uint64(i + 1), Last: rows[i+1]})
		}
		return s
	}
	last := func(s SinkState, lineage record.LineageID, n uint64) SinkState {
		s.Last = Fingerprint{Lineage: lineage, Number: n, Checksum: 9}
		return s
	}
	print := func(lineage record.LineageID, n uint64) wire.Fingerprint {
		return wire.Fingerprint{Lineage: lineage, Number: n, Checksum: 9}
	}
	for _, tc := range []struct {
		name  string
		table []wire.Mark
		head  uint64
		have  SinkState
		want  resumption
		code  wire.Code
	}{
		{"new flow", table(a, 1), 10, SinkState{}, resumption{next: 1}, 0},
		{"empty flow", nil, 0, SinkState{}, resumption{next: 1}, 0},
		{"goes on", table(a, 1), 100, last(have(40, a, 40), a, 40), resumption{next: 41, last: print(a, 40)}, 0},
		{"last without a record", table(a, 1), 100, last(have(40, a, 40), a, 38), resumption{next: 41, last: print(a, 38)}, 0},
		{"origin started again", table(a, 1, b, 51), 60, last(have(50, a, 50), a, 50), resumption{next: 51, last: print(a, 50)}, 0},
		{"several starts", table(a, 1, b, 51, c, 51), 60, have(50, a, 50), resumption{next: 51}, 0},
		{"origin from an old copy", table(a, 1, b, 31), 40, last(have(50, a, 50), a, 50), resumption{next: 31, orphans: wire.Range{First: 31, Through: 50}}, 0},
		{"old copy, nothing new yet", table(a, 1), 30, have(50, a, 50), resumption{}, wire.CodeDiverged},
		{"old copy, new lineage without a number", table(a, 1, b, 31), 30, have(50, a, 50), resumption{next: 31, orphans: wire.Range{First: 31, Through: 50}}, 0},
		{"orphans were reported", table(a, 1, b, 31), 60, last(have(45, a, 50, b, 45), b, 45), resumption{next: 46, last: print(b, 45)}, 0},
		{"copy of a copy", table(a, 1, c, 21), 40, have(45, a, 50, b, 45), resumption{next: 21, orphans: wire.Range{First: 21, Through: 45}}, 0},
		{"the first store is back", table(a, 1, c, 61), 70, last(have(45, a, 50, b, 45), b, 45), resumption{next: 51}, 0},
		{"nothing in common", table(b, 1), 10, have(50, a, 50), resumption{next: 1, orphans: wire.Range{First: 1, Through: 50}}, 0},
		{"nothing in common, table shortened", table(b, 90), 100, have(50, a, 50), resumption{}, wire.CodeDiverged},
		{"same lineage, smaller head", table(a, 1), 40, have(41, a, 41), resumption{}, wire.CodeDiverged},
		{"no lineage for a head", nil, 5, SinkState{}, resumption{}, wire.CodeMalformed},
		{"lineage beyond the head", table(a, 1, b, 9), 5, SinkState{}, resumption{}, wire.CodeMalformed},
		{"table does not ascend", table(a, 9, b, 1), 10, SinkState{}, resumption{}, wire.CodeMalformed},
		{"empty row", table(0, 1), 10, SinkState{}, resumption{}, wire.CodeMalformed},
	} {
		o := wire.Open{Lineage: tc.table, Head: tc.head, Oldest: 1}
		got, err := reconcile(&o, &tc.have, o.Role == wire.OpenHolder)
		if code := codeOrOK(err); got != tc.want || code != tc.code {
			t.Errorf("%s: %+v, %v; want %+v, %v", tc.name, got, code, tc.want, tc.code)
		}
	}
}

func codeOrOK(err *RefusedError) wire.Code {
	if err == nil {
		return wire.CodeOK
	}
	return err.Code
}

func TestVerifyTrustsOnlyWhatItKnows(t *testing.T) {
	const a, b = 0xa, 0xb
	own := map[uint64]Fingerprint{48: {a, 48, 480}, 52: {b, 52, 520}}
	o := origin{
		state:  OriginState{Oldest: 48, Head: 60, Lineage: []Mark{{1, a, 1}, {2, b, 51}}},
		cursor: 40, at: Fingerprint{a, 40, 400},
		lookup: func(n uint64) (Fingerprint, bool) { f, ok := own[n]; return f, ok },
	}
	for _, tc := range []struct {
		name string
		next uint64
		last wire.Fingerprint
		want wire.Code
	}{
		{"nothing there", 1, wire.Fingerprint{}, wire.CodeOK},
		{"everything there", 61, wire.Fingerprint{}, wire.CodeOK},
		{"beyond the head", 62, wire.Fingerprint{}, wire.CodeDiverged},
		{"expects 0", 0, wire.Fingerprint{}, wire.CodeMalformed},
		{"same record", 53, wire.Fingerprint{Lineage: b, Number: 52, Checksum: 520}, wire.CodeOK},
		{"other record", 53, wire.Fingerprint{Lineage: b, Number: 52, Checksum: 521}, wire.CodeDiverged},
		{"other lineage", 53, wire.Fingerprint{Lineage: a, Number: 52, Checksum: 520}, wire.CodeDiverged},
		{"unknown lineage", 49, wire.Fingerprint{Lineage: 0xc, Number: 48, Checksum: 480}, wire.CodeDiverged},
		{"trimmed, at the cursor", 41, wire.Fingerprint{Lineage: a, Number: 40, Checksum: 400}, wire.CodeOK},
		{"trimmed, other record at the cursor", 41, wire.Fingerprint{Lineage: a, Number: 40, Checksum: 401}, wire.CodeDiverged},
		{"trimmed, unknown", 31, wire.Fingerprint{Lineage: a, Number: 30, Checksum: 1}, wire.CodeOK},
		{"fingerprint of what is expected", 48, wire.Fingerprint{Lineage: a, Number: 48, Checksum: 480}, wire.CodeMalformed},
		{"fingerprint of 0", 48, wire.Fingerprint{Lineage: a, Checksum: 480}, wire.CodeMalformed},
	} {
		if got := codeOrOK(o.verify(&wire.Accept{Next: tc.next, Last: tc.last})); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// TestHeadOfAnOpenMayBeOld: what holders brought was numbered after the origin
// wrote its Open. The origin judges by the head that it has by then.
func TestHeadOfAnOpenMayBeOld(t *testing.T) {
	o := wire.Open{Head: 5, Oldest: 1, Lineage: []wire.Mark{{Epoch: 1, ID: 7, First: 1}}}
	have := SinkState{Known: true, Settled: 9, History: []Have{{Lineage: 7, Epoch: 1, Last: 9}}}
	if r, err := reconcile(&o, &have, true); err != nil || r.next != 10 {
		t.Errorf("with holders: next %d, %v", r.next, err)
	}
	if _, err := reconcile(&o, &have, false); err == nil || err.Code != wire.CodeDiverged {
		t.Errorf("without: %v", err)
	}
	own := origin{state: OriginState{Head: 5, Oldest: 1, Lineage: []Mark{{Epoch: 1, ID: 7, First: 1}}}}
	if err := own.verify(&wire.Accept{Next: 10}); err == nil || err.Code != wire.CodeDiverged {
		t.Errorf("the origin with that head: %v", err)
	}
	own.state.Head = 9
	if err := own.verify(&wire.Accept{Next: 10}); err != nil {
		t.Errorf("the origin with its present head: %v", err)
	}
}
