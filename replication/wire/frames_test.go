package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/golden.txt anew; commit it only when the format was meant to change")

// payload is what every frame's struct can do.
type payload interface{ Append([]byte) []byte }

// sample is a frame with every field set, and its parser.
type sample struct {
	name  string
	typ   Type
	value payload
	parse func([]byte) (payload, error)
}

func parser[T any, P interface {
	*T
	payload
}](parse func([]byte) (T, error)) func([]byte) (payload, error) {
	return func(b []byte) (payload, error) {
		v, err := parse(b)
		return P(&v), err
	}
}

func samples() []sample {
	flow := record.FlowID{Origin: "sh-a-1", Incarnation: 0x1122334455667788, Target: "bj-r-1", Class: zone.ClassBulk, Lane: 3}
	channel := record.FlowID{Origin: "sh-c-1", Incarnation: 7, Target: "member", Channel: true, Class: zone.ClassUrgent}
	outcomes := []Outcome{
		{First: 5, Through: 5, Outcome: record.OutcomeParked, Reason: record.ReasonTooLarge},
		{First: 9, Through: 12, Outcome: record.OutcomeGap, Reason: record.ReasonTrimmed},
	}
	credit := Credit{Number: 4096, Bytes: 8 << 20}
	hello := Hello{
		VersionMin: 1, VersionMax: 2, Features: 5, Deployment: "bank", Role: zone.RoleBroker,
		City: "shanghai", Zone: "sh-a", Group: "sh-a-1", Node: "sh-a-1-0", Incarnation: 99,
		MaxFrame: MaxPayload, MaxSessions: 64, Epoch: zone.Epoch{Term: 1, Number: 17},
		DestinationCity: "beijing", Class: zone.ClassBulk,
	}
	for i := range hello.Digest {
		hello.Digest[i] = byte(i)
	}
	corrected := hello
	corrected.Features, corrected.Correction = FeatureCorrection, 0x01020304
	extra := hello
	extra.Role, extra.Features, extra.Extra, extra.Extras = zone.RoleRouter, FeatureExtras, 3, 4
	sides := extra
	sides.Features, sides.Sides = FeatureExtras|FeatureSides, 16
	return []sample{
		{"hello", TypeHello, &hello, parser(ParseHello)},
		{"hello-correction", TypeHello, &corrected, parser(ParseHello)},
		{"hello-extras", TypeHello, &extra, parser(ParseHello)},
		{"hello-sides", TypeHello, &sides, parser(ParseHello)},
		{"open", TypeOpen, &Open{
			Flow: flow, City: "beijing", Group: "bj-r-1", OriginCity: "shanghai",
			Lineage: []Mark{{Epoch: 1, ID: 11, First: 1}, {Epoch: 2, ID: 12, First: 400}},
			Cursor:  410, Oldest: 100, Head: 500, RouteEpoch: zone.Epoch{Term: 1, Number: 17},
			Residency: []zone.City{"shanghai", "beijing"}, MaxRecord: 4 << 20,
		}, parser(ParseOpen)},
		{"open-channel", TypeOpen, &Open{Flow: channel, City: "beijing", Group: "bj-c-1", OriginCity: "shanghai"}, parser(ParseOpen)},
		{"open-pull", TypeOpen, &Open{
			Flow: flow, City: "beijing", Group: "bj-c-1", OriginCity: "shanghai", Oldest: 411, Residency: []zone.City{"shanghai", "beijing"},
			Role: OpenPull, Want: channel,
		}, parser(ParseOpen)},
		{"open-holder", TypeOpen, &Open{Flow: channel, City: "beijing", Group: "bj-c-1", OriginCity: "shanghai", Role: OpenHolder}, parser(ParseOpen)},
		{"accept", TypeAccept, &Accept{
			Group: "bj-r-1", Incarnation: 3, Epoch: 4, Next: 411,
			Last: Fingerprint{Lineage: 12, Number: 410, Checksum: 0xdeadbeef}, Orphans: Range{First: 405, Through: 410},
			Outcomes: outcomes, Credit: credit,
		}, parser(ParseAccept)},
		{"batch", TypeBatch, &Batch{
			First: 411, Count: 2, Cursor: 410, Lineage: 12, LineageEpoch: 2, Path: []zone.City{"shanghai"},
			Residency: []zone.City{"shanghai", "beijing"}, RawSize: 13, Data: AppendItem(AppendItem(nil, []byte("one")), []byte("tw")),
		}, parser(ParseBatch)},
		{"batch-zstd", TypeBatch, &Batch{First: 1, Count: MaxCount, Lineage: 1, Codec: CodecZstd, RawSize: 900, Data: []byte("compressed")}, parser(ParseBatch)},
		{"batch-dictionary", TypeBatch, &Batch{First: 1, Count: 2, Lineage: 1, Codec: CodecZstd, Dictionary: 0x8001, RawSize: 900, Data: []byte("compressed")}, parser(ParseBatch)},
		{"dictionary", TypeDictionary, &Dictionary{ID: 0x8001, Content: []byte{0x37, 0xa4, 0x30, 0xec, 1, 0x80, 0, 0, 'a', 'b'}}, parser(ParseDictionary)},
		{"accept-dictionaries", TypeAccept, &Accept{Group: "bj-r-1", Incarnation: 3, Epoch: 4, Next: 1, Credit: credit, Dictionaries: 4}, parser(ParseAccept)},
		{"ack", TypeAck, &Ack{Through: 412, Outcomes: outcomes, Credit: credit}, parser(ParseAck)},
		{"skip", TypeSkip, &Skip{First: 5, Through: 8, Reason: record.ReasonExcluded, Lineage: 12, LineageEpoch: 2, Cursor: 4}, parser(ParseSkip)},
		{"gap", TypeGap, &Gap{First: 5, Through: 8, Reason: record.ReasonTrimmed, Lineage: 12, LineageEpoch: 2, Cursor: 4}, parser(ParseGap)},
		{"seal", TypeSeal, &Seal{Flow: flow}, parser(ParseSeal)},
		{"sealed", TypeSealed, &Sealed{Through: 412}, parser(ParseSealed)},
		{"refuse", TypeRefuse, &Refuse{Code: CodeNotMaster, RetryAfter: 250 * time.Millisecond, Master: "bj-r-1-1", Text: "moved"}, parser(ParseRefuse)},
		{"refuse-epoch", TypeRefuse, &Refuse{Code: CodeNotMaster, Master: "bj-r-1-1", Epoch: 9, Text: "moved"}, parser(ParseRefuse)},
		{"refuse-epoch", TypeRefuse, &Refuse{Code: CodeNotMaster, Master: "bj-r-1-1", Epoch: 5, Text: "moved"}, parser(ParseRefuse)},
		{"drain", TypeDrain, &Drain{Deadline: 5 * time.Second}, parser(ParseDrain)},
		{"probe", TypeProbe, &Probe{Nonce: 1, SentAt: 2, Head: 3, Cursor: 4}, parser(ParseProbe)},
		{"probe-reply", TypeProbeReply, &ProbeReply{Nonce: 1, SentAt: 2, Settled: 3, Credit: credit, Held: CodeHeld, Text: "disk full"}, parser(ParseProbeReply)},
		{"end", TypeEnd, &End{Code: CodeSlowPeer, Text: "1 s"}, parser(ParseEnd)},
		{"want", TypeWant, &Want{Subscription: "cache", Topic: "member-data", Incarnation: 3, Offset: 77, Credit: credit}, parser(ParseWant)},
		{"found", TypeFound, &Found{Group: "bj-c-1", Incarnation: 3, First: 10, Next: 77, Head: 99}, parser(ParseFound)},
		{"landed", TypeLanded, &Landed{First: 77, Count: 1, RawSize: 13, Data: AppendItem(AppendItem(nil, []byte("env")), []byte("re"))}, parser(ParseLanded)},
		{"applied", TypeApplied, &Applied{Offset: 78, Credit: credit}, parser(ParseApplied)},
		{"via", TypeVia, &Via{Path: []zone.City{"shanghai", "shenzhen"}}, parser(ParseVia)},
		{"reach", TypeReach, &Reach{Cities: []Reached{{City: "beijing", RTT: 31 * time.Millisecond}, {City: "hangzhou"}}}, parser(ParseReach)},
		{"call", TypeCall, &Call{Kind: 1, Time: 2500 * time.Millisecond, Body: []byte("please")}, parser(ParseCall)},
		{"reply", TypeReply, &Reply{Body: []byte("done")}, parser(ParseReply)},
		{"follow", TypeFollow, &Follow{
			Group: "sh-a-1", Node: "sh-a-1-2", Incarnation: 99, Epoch: 4, Begin: 1 << 20, End: 3 << 20, Synced: 3<<20 - 32,
			Committed: 2 << 20, Lineage: []record.LineageStart{{Epoch: 1, ID: 11, First: 64}, {Epoch: 4, ID: 12, First: 2 << 20}},
		}, parser(ParseFollow)},
		{"lead", TypeLead, &Lead{
			Incarnation: 99, Epoch: 5, From: 3 << 20, Begin: 1 << 20, Committed: 2 << 20,
			HasLast: true, Last: LogFingerprint{Position: 3<<20 - 256, Checksum: 0xdeadbeef},
			Lineage: []record.LineageStart{{Epoch: 1, ID: 11, First: 64}, {Epoch: 5, ID: 13, First: 3 << 20}},
		}, parser(ParseLead)},
		{"ship", TypeShip, &Ship{Committed: 2 << 20, Base: true, From: 3 << 20, Next: 3<<20 + 64 + 40, Size: 40, Offset: 8, Data: []byte("frames of a log on the way")}, parser(ParseShip)},
		{"ship-beat", TypeShip, &Ship{Committed: 2 << 20, From: 3 << 20, Next: 3 << 20}, parser(ParseShip)},
		{"ship-begin", TypeShip, &Ship{Committed: 2 << 20, From: 3 << 20, Next: 3 << 20, Begin: 1 << 20}, parser(ParseShip)},
		{"ship-ack", TypeShipAck, &ShipAck{Written: 3 << 20, Synced: 2 << 20, Credit: 8 << 20}, parser(ParseShipAck)},
		{"seed", TypeSeed, &Seed{
			Incarnation: 99, Epoch: 5, Lanes: 4, Begin: 1 << 20, Lineage: []record.LineageStart{{Epoch: 1, ID: 11, First: 64}},
			Files: []SeedFile{{Size: 32, Name: "handle.key"}, {Size: 1 << 30, Name: "snapshot-0000000000100000"}},
		}, parser(ParseSeed)},
		{"part", TypePart, &Part{File: 1, Offset: 1 << 20, Data: []byte("bytes of a file")}, parser(ParsePart)},
		{"fetch", TypeFetch, &Fetch{Group: "sh-a-1", Incarnation: 99, From: 1 << 20, To: 2 << 20, Limit: 1 << 18}, parser(ParseFetch)},
		{"aside", TypeAside, &Aside{Stream: 14, Last: true}, parser(ParseAside)},
		{"reply-fault", TypeReply, &Reply{Fault: 12, Text: "disk full"}, parser(ParseReply)},
	}
}

func (s *sample) frame() Frame {
	return Frame{Type: s.typ, Session: 0x0102030405060708, Class: zone.ClassBulk, Hops: 1, Payload: s.value.Append(nil)}
}

func TestGoldenBytesNeverChange(t *testing.T) {
	const file = "testdata/golden.txt"
	var got strings.Builder
	for _, s := range samples() {
		f := s.frame()
		b, err := AppendFrame(nil, &f)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&got, "%s %s\n", s.name, hex.EncodeToString(b))
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	wantLines, gotLines := strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")
	if len(wantLines) != len(gotLines) {
		t.Fatalf("%d frames, golden file has %d", len(gotLines), len(wantLines))
	}
	for i := range wantLines {
		if wantLines[i] != gotLines[i] {
			t.Errorf("bytes changed\n got %s\nwant %s", gotLines[i], wantLines[i])
		}
	}
}

func TestEveryTypeHasASample(t *testing.T) {
	seen := map[Type]bool{}
	for _, s := range samples() {
		seen[s.typ] = true
	}
	for typ := Type(1); typ < typeEnd; typ++ {
		if !seen[typ] {
			t.Errorf("%s has no sample", typ)
		}
		if typ.String() == "" {
			t.Errorf("type %d has no name", typ)
		}
	}
	if Type(0).Known() || typeEnd.Known() || typeEnd.String() != fmt.Sprintf("type-%d", typeEnd) {
		t.Error("an unknown type passes for a known one")
	}
}

func TestFramesSurviveTheRoundTrip(t *testing.T) {
	for _, s := range samples() {
		t.Run(s.name, func(t *testing.T) {
			b := s.value.Append([]byte("before"))
			if !bytes.HasPrefix(b, []byte("before")) {
				t.Fatal("Append does not append")
			}
			b = b[len("before"):]
			got, err := s.parse(b)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(normal(got), normal(s.value)) {
				t.Errorf("got %+v\nwant %+v", got, s.value)
			}
			if s.name == "refuse" || s.name == "ship-beat" || s.name == "accept" {
				return // what follows the older form is the newer one's field
			}
			longer, err := s.parse(append(b[:len(b):len(b)], "field of a later version"...))
			if err != nil || !reflect.DeepEqual(normal(longer), normal(s.value)) {
				t.Errorf("bytes of a later version: %+v, %v", longer, err)
			}
		})
	}
}

// normal makes empty and nil slices alike.
func normal(p payload) string { return fmt.Sprintf("%+v", p) }

// roleAt returns where the role of an OpenPull stands.
func roleAt(b []byte) int {
	o, err := ParseOpen(b)
	if err != nil {
		return -1
	}
	o.Role = OpenOrigin
	return len(o.Append(nil))
}

func TestEveryTruncationIsRefused(t *testing.T) {
	for _, s := range samples() {
		t.Run(s.name, func(t *testing.T) {
			b := s.value.Append(nil)
			for n := range b {
				if s.name == "open-pull" && n == roleAt(b) || (s.name == "open-holder" || s.name == "accept-dictionaries") && n == len(b)-1 || (s.name == "refuse-epoch" || s.name == "ship-begin") && n == len(b)-8 {
					continue // the form without the last field, which is older
				}
				_, err := s.parse(b[:n:n])
				var fe *FrameError
				if !errors.As(err, &fe) {
					t.Fatalf("%d of %d bytes: error %v, want *FrameError", n, len(b), err)
				}
				if fe.Type != s.typ || fe.Code != CodeMalformed || fe.Field == "" {
					t.Fatalf("%d of %d bytes: %+v", n, len(b), fe)
				}
			}
		})
	}
}

func TestFieldsOutOfBoundsAreRefused(t *testing.T) {
	long := strings.Repeat("x", MaxName+1)
	manyCities := make([]zone.City, MaxCities+1)
	cases := []struct {
		name  string
		value payload
		parse func([]byte) (payload, error)
		code  Code
	}{
		{"empty path", &Via{}, parser(ParseVia), CodeMalformed},
		{"endless path", &Via{Path: manyCities[:MaxPath+1]}, parser(ParseVia), CodeMalformed},
		{"long name", &Hello{VersionMin: 1, VersionMax: 1, Deployment: long}, parser(ParseHello), CodeMalformed},
		{"no version", &Hello{}, parser(ParseHello), CodeMalformed},
		{"versions reversed", &Hello{VersionMin: 2, VersionMax: 1}, parser(ParseHello), CodeMalformed},
		{"many marks", &Open{Lineage: make([]Mark, MaxMarks+1)}, parser(ParseOpen), CodeMalformed},
		{"many cities", &Open{Residency: manyCities}, parser(ParseOpen), CodeMalformed},
		{"long path", &Batch{First: 1, Count: 1, Path: manyCities[:MaxPath+1]}, parser(ParseBatch), CodeMalformed},
		{"empty batch", &Batch{First: 1}, parser(ParseBatch), CodeMalformed},
		{"number 0", &Batch{Count: 1}, parser(ParseBatch), CodeMalformed},
		{"many records", &Batch{First: 1, Count: MaxCount + 1}, parser(ParseBatch), CodeMalformed},
		{"numbers wrap", &Batch{First: 1<<64 - 1, Count: 2}, parser(ParseBatch), CodeMalformed},
		{"unknown codec", &Batch{First: 1, Count: 1, Codec: codecEnd}, parser(ParseBatch), CodeUnsupported},
		{"dictionary for raw data", &Batch{First: 1, Count: 1, Dictionary: 1}, parser(ParseBatch), CodeUnsupported},
		{"no dictionary", &Dictionary{ID: 1, Content: []byte{1, 2, 3, 4, 1, 0, 0}}, parser(ParseDictionary), CodeMalformed},
		{"dictionary 0", &Dictionary{Content: make([]byte, 8)}, parser(ParseDictionary), CodeMalformed},
		{"another dictionary's id", &Dictionary{ID: 1, Content: []byte{1, 2, 3, 4, 2, 0, 0, 0}}, parser(ParseDictionary), CodeMalformed},
		{"large dictionary", &Dictionary{ID: 1, Content: append([]byte{1, 2, 3, 4, 1}, make([]byte, MaxDictionary)...)}, parser(ParseDictionary), CodeMalformed},
		{"large when decompressed", &Batch{First: 1, Count: 1, Codec: CodecZstd, RawSize: MaxRawSize + 1}, parser(ParseBatch), CodeMalformed},
		{"raw size lies", &Batch{First: 1, Count: 1, RawSize: 2, Data: []byte{1}}, parser(ParseBatch), CodeMalformed},
		{"empty landed", &Landed{}, parser(ParseLanded), CodeMalformed},
		{"offsets wrap", &Landed{First: 1<<64 - 1, Count: 2}, parser(ParseLanded), CodeMalformed},
		{"outcome reversed", &Ack{Outcomes: []Outcome{{First: 2, Through: 1}}}, parser(ParseAck), CodeMalformed},
		{"outcomes overlap", &Ack{Outcomes: []Outcome{{First: 1, Through: 3}, {First: 3, Through: 4}}}, parser(ParseAck), CodeMalformed},
		{"many outcomes", &Ack{Outcomes: make([]Outcome, MaxOutcomes+1)}, parser(ParseAck), CodeMalformed},
		{"orphans reversed", &Accept{Orphans: Range{First: 2, Through: 1}}, parser(ParseAccept), CodeMalformed},
		{"skip reversed", &Skip{First: 2, Through: 1}, parser(ParseSkip), CodeMalformed},
		{"gap from 0", &Gap{Through: 1}, parser(ParseGap), CodeMalformed},
		{"replica commits beyond its disk", &Follow{End: 9, Synced: 3, Committed: 4}, parser(ParseFollow), CodeMalformed},
		{"lineages out of order", &Follow{Lineage: []record.LineageStart{{Epoch: 2, First: 1}, {Epoch: 1, First: 2}}}, parser(ParseFollow), CodeMalformed},
		{"lineages that go back", &Follow{Lineage: []record.LineageStart{{Epoch: 1, First: 2}, {Epoch: 2, First: 1}}}, parser(ParseFollow), CodeMalformed},
		{"lead of no store", &Lead{From: 1}, parser(ParseLead), CodeMalformed},
		{"lead from what is trimmed", &Lead{Incarnation: 1, From: 1, Begin: 2}, parser(ParseLead), CodeMalformed},
		{"large stretch", &Ship{Next: MaxStretch + 1, Size: MaxStretch + 1, Data: []byte{1}}, parser(ParseShip), CodeMalformed},
		{"stretch without data", &Ship{Next: 1, Size: 1}, parser(ParseShip), CodeMalformed},
		{"data beyond its stretch", &Ship{Next: 2, Size: 2, Offset: 1, Data: []byte{1, 2}}, parser(ParseShip), CodeMalformed},
		{"offsets of a stretch wrap", &Ship{Next: 2, Size: 2, Offset: 1<<32 - 1, Data: []byte{1, 2}}, parser(ParseShip), CodeMalformed},
		{"stretch shorter than its bytes", &Ship{From: 5, Next: 6, Size: 2, Data: []byte{1, 2}}, parser(ParseShip), CodeMalformed},
		{"stretch reversed", &Ship{From: 5, Next: 4}, parser(ParseShip), CodeMalformed},
		{"durable beyond written", &ShipAck{Written: 1, Synced: 2}, parser(ParseShipAck), CodeMalformed},
		{"seed of no store", &Seed{Lanes: 1}, parser(ParseSeed), CodeMalformed},
		{"seed with many files", &Seed{Incarnation: 1, Lanes: 1, Files: make([]SeedFile, MaxSeedFiles+1)}, parser(ParseSeed), CodeMalformed},
		{"seed above its folder", &Seed{Incarnation: 1, Lanes: 1, Files: []SeedFile{{Name: "../x"}}}, parser(ParseSeed), CodeMalformed},
		{"seed with a hidden file", &Seed{Incarnation: 1, Lanes: 1, Files: []SeedFile{{Name: ".x"}}}, parser(ParseSeed), CodeMalformed},
		{"file of negative size", &Seed{Incarnation: 1, Lanes: 1, Files: []SeedFile{{Name: "x", Size: 1 << 63}}}, parser(ParseSeed), CodeMalformed},
		{"fetch of no store", &Fetch{From: 1, To: 2, Limit: 1}, parser(ParseFetch), CodeMalformed},
		{"fetch of nothing", &Fetch{Incarnation: 1, From: 2, To: 2, Limit: 1}, parser(ParseFetch), CodeMalformed},
		{"fetch without a limit", &Fetch{Incarnation: 1, From: 1, To: 2}, parser(ParseFetch), CodeMalformed},
		{"fetch of too much", &Fetch{Incarnation: 1, From: 1, To: 2, Limit: MaxStretch + 1}, parser(ParseFetch), CodeMalformed},
		{"empty part", &Part{File: 1}, parser(ParsePart), CodeMalformed},
		{"part of no file", &Part{File: MaxSeedFiles, Data: []byte{1}}, parser(ParsePart), CodeMalformed},
		{"call of no kind", &Call{Time: time.Second}, parser(ParseCall), CodeMalformed},
		{"large call", &Call{Kind: 1, Body: make([]byte, MaxCall+1)}, parser(ParseCall), CodeMalformed},
		{"large reply", &Reply{Body: make([]byte, MaxCall+1)}, parser(ParseReply), CodeMalformed},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := c.parse(c.value.Append(nil))
			var fe *FrameError
			if !errors.As(err, &fe) || fe.Code != c.code {
				t.Errorf("error %v, want *FrameError with %s", err, c.code)
			}
		})
	}
}

func TestProseIsCutNotRefused(t *testing.T) {
	b := (&End{Code: CodeInternal, Text: strings.Repeat("x", 2*MaxText)}).Append(nil)
	e, err := ParseEnd(b)
	if err != nil || len(e.Text) != MaxText {
		t.Errorf("text of %d bytes, %v", len(e.Text), err)
	}
}

func TestSteadyFramesDecodeWithoutAllocation(t *testing.T) {
	batch := (&Batch{
		First: 1, Count: 2, Path: []zone.City{"shanghai"}, Residency: []zone.City{"shanghai", "beijing"},
		RawSize: 4, Data: []byte("data"),
	}).Append(nil)
	ack := (&Ack{Through: 1, Outcomes: []Outcome{{First: 1, Through: 1, Outcome: record.OutcomeParked}}}).Append(nil)
	var x Batch
	var a Ack
	buf := make([]byte, 0, 4096)
	frame := Frame{Type: TypeBatch, Session: 1, Payload: batch}
	n := testing.AllocsPerRun(100, func() {
		if x.Decode(batch) != nil || a.Decode(ack) != nil {
			t.Fatal("valid frame refused")
		}
		var err error
		if buf, err = AppendFrame(buf[:0], &frame); err != nil {
			t.Fatal(err)
		}
		h, err := ParseHeader(buf)
		if err != nil || h.Check(buf[HeaderSize:]) != nil {
			t.Fatal("valid header refused")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations for a batch and an ack, want none", n)
	}
}

func TestItemsAreTakenApart(t *testing.T) {
	items := []string{"", "one", strings.Repeat("x", 300)}
	var data []byte
	size := 0
	for _, s := range items {
		data = AppendItem(data, []byte(s))
		size += ItemSize(len(s))
	}
	if len(data) != size {
		t.Errorf("%d bytes, ItemSize says %d", len(data), size)
	}
	rest := data
	for _, want := range items {
		item, after, err := NextItem(rest)
		if err != nil || string(item) != want {
			t.Fatalf("item %q, %v, want %q", item, err, want)
		}
		rest = after
	}
	if len(rest) != 0 {
		t.Errorf("%d bytes left", len(rest))
	}
	for n := 1; n < ItemSize(3); n++ {
		if _, _, err := NextItem(AppendItem(nil, []byte("one"))[:n]); err == nil {
			t.Errorf("item of %d bytes accepted", n)
		}
	}
}
