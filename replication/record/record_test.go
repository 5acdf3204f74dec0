package record

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew; they never change once released")

// full has every field set to a value of its own.
func full() *Record {
	return &Record{
		Type:     TypeMessage,
		Flags:    FlagMaybeDuplicate | FlagShadow,
		Identity: Identity{Group: "g-sh-r1-a", Incarnation: 0x1122334455667788, Epoch: 7, Position: 4096},
		Topic:    "payments", Queue: 5, Kind: zone.KindFIFO, Class: zone.ClassUrgent, Durability: zone.DurabilityBuffered,
		Shard: 42, Slot: 777, GroupHash: 0xCAFEBABE12345678,
		Target: "g-bj-r2-a", Channel: false, Lane: 3, RouteEpoch: zone.Epoch{Term: 2, Number: 19},
		Residency: []zone.City{"shanghai", "beijing"},
		Born:      time.UnixMicro(1700000000123456).UTC(), Stored: time.UnixMicro(1700000000200001).UTC(),
		DeliverAt: time.UnixMicro(1700000060000000).UTC(), ExpireAt: time.UnixMicro(1700086400000000).UTC(),
		MessageID: "01AABBCCDDEEFF00112233445566778899", Tag: "created", Keys: []string{"order-1", "", "订单"},
		MessageGroup: "user-1001", Attempt: 2, TraceContext: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		BornHost: "app-17", Encoding: 1, Digest: Digest{Type: 1, Checksum: "A1B2C3D4"}, Priority: -3,
		Properties: []Property{{"b", "2"}, {"a", ""}, {"", "empty key"}, {"b", "again"}},
		Cause:      []byte{9, 8, 7}, Body: []byte("body of the message"),
	}
}

// minimal has nothing that is not required.
func minimal() *Record { return &Record{Type: TypeTopologyApplied, Shard: NoShard} }

func broadcastRecord() *Record {
	return &Record{Type: TypeMessage, Identity: Identity{Group: "g"}, Topic: "members", Shard: NoShard,
		Target: "channel-1", Channel: true, Class: zone.ClassUrgent, Kind: zone.KindNormal,
		Durability: zone.DurabilityAllInSync, Properties: []Property{{"version", "7"}}, Body: make([]byte, 300)}
}

// onceRecord counts once in its window.
func onceRecord() *Record {
	r := full()
	r.Once = Once{Window: 10 * time.Minute, Key: [16]byte{1, 2, 3, 15: 16}, Content: 0x1122334455667788}
	return r
}

// againRecord was lost by its group and is stored again.
func againRecord() *Record {
	r := full()
	r.Again = Again{Lineage: 0x99aabbccddeeff00, Epoch: 7, Position: 1 << 33, After: 1<<33 - 800, Sent: 1<<33 + 5, Decides: true,
		Groups: []zone.ConsumerGroup{"billing", "audit"}}
	return r
}

func samples() map[string]*Record {
	return map[string]*Record{"full": full(), "minimal": minimal(), "broadcast": broadcastRecord(), "once": onceRecord(), "again": againRecord()}
}

func encode(t testing.TB, r *Record) []byte {
	t.Helper()
	b, err := AppendRecord(nil, r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// reseal makes the checksums of a changed record right again.
func reseal(b []byte) {
	header := int(binary.LittleEndian.Uint32(b[offHeader:]))
	binary.LittleEndian.PutUint32(b[offBodySum:], crc32.Checksum(b[header:], castagnoli))
	binary.LittleEndian.PutUint32(b[offHeaderSum:], headerSum(b, header))
}

func TestRecordRoundTrip(t *testing.T) {
	for name, r := range samples() {
		b := encode(t, r)
		if len(b) != EncodedLen(r) {
			t.Errorf("%s: %d bytes, EncodedLen says %d", name, len(b), EncodedLen(r))
		}
		v, err := Parse(b)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := Record{Topic: "left over", Keys: []string{"left over"}}
		if err := v.Decode(&got); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !reflect.DeepEqual(&got, r) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, r)
		}
		again := encode(t, &got)
		if !bytes.Equal(again, b) {
			t.Errorf("%s: encoding again gives other bytes", name)
		}
	}
}

func TestViewAccessorsEqualTheRecord(t *testing.T) {
	r := full()
	v, err := Parse(encode(t, r))
	if err != nil {
		t.Fatal(err)
	}
	kind, sum := v.Digest()
	version, ok := v.Property("b")
	if string(v.Group()) != string(r.Identity.Group) || v.Incarnation() != r.Identity.Incarnation || v.Identity() != r.Identity ||
		kind != 1 || string(sum) != "A1B2C3D4" || string(version) != "2" || !ok || string(v.Bytes()) != string(encode(t, r)) {
		t.Error("accessors differ from the record")
	}
	if _, ok := v.Property("none"); ok {
		t.Error("a property that is not there")
	}
	if v.Unrestricted() || !v.MayEnter("beijing") || v.MayEnter("shenzhen") || v.MayEnter("") {
		t.Error("residency of a restricted record")
	}
	if free, _ := Parse(encode(t, minimal())); !free.Unrestricted() || !free.MayEnter("anywhere") {
		t.Error("residency of a free record")
	}
	calls := 0
	v.Keys(func([]byte) bool { calls++; return false })
	v.Residency(func([]byte) bool { calls++; return false })
	v.Properties(func(_, _ []byte) bool { calls++; return false })
	if calls != 3 {
		t.Errorf("callbacks that ask to stop were called %d times", calls)
	}
}

func TestStampSetsTheIdentityAndNothingElse(t *testing.T) {
	r := full()
	r.Identity = Identity{Group: r.Identity.Group}
	b := encode(t, r)
	Stamp(b, 11, 22, 33)
	r.Identity.Incarnation, r.Identity.Epoch, r.Identity.Position = 11, 22, 33
	if !bytes.Equal(b, encode(t, r)) {
		t.Error("a stamped record differs from one encoded with its identity")
	}
}

func TestEveryTruncationIsAnError(t *testing.T) {
	for name, r := range samples() {
		b := encode(t, r)
		for n := range b {
			if _, err := Parse(b[:n:n]); err == nil {
				t.Errorf("%s: %d of %d bytes parse", name, n, len(b))
			}
		}
		if _, err := Parse(append(bytes.Clone(b), 0)); err == nil {
			t.Errorf("%s: one byte too many parses", name)
		}
	}
	b := encodeEnvelope(t, fullEnvelope())
	for n := range b {
		if _, err := ParseEnvelope(b[:n:n], new(Envelope)); err == nil {
			t.Errorf("envelope: %d of %d bytes parse", n, len(b))
		}
	}
}

func TestEveryFlippedBitIsDetected(t *testing.T) {
	for name, r := range samples() {
		b := encode(t, r)
		for bit := range len(b) * 8 {
			b[bit/8] ^= 1 << (bit % 8)
			v, err := Parse(b)
			if err == nil {
				err = v.Verify()
			}
			if err == nil {
				t.Errorf("%s: bit %d flipped unnoticed", name, bit)
			}
			b[bit/8] ^= 1 << (bit % 8)
		}
	}
	b := encodeEnvelope(t, fullEnvelope())
	for bit := range len(b) * 8 {
		b[bit/8] ^= 1 << (bit % 8)
		if _, err := ParseEnvelope(b, new(Envelope)); err == nil {
			t.Errorf("envelope: bit %d flipped unnoticed", bit)
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
}

// newer inserts a field with the tag at its place in the header.
func newer(b []byte, tag uint8) []byte {
	header := int(binary.LittleEndian.Uint32(b[offHeader:]))
	field := append(appendFieldHead(nil, tag, 5), "later"...)
	out := append(bytes.Clone(b[:header]), field...)
	out = append(out, b[header:]...)
	binary.LittleEndian.PutUint32(out[offTotal:], uint32(len(out)))
	binary.LittleEndian.PutUint32(out[offHeader:], uint32(header+len(field)))
	reseal(out)
	return out
}

func TestRecordsOfANewerVersion(t *testing.T) {
	base := encode(t, full())
	edit := func(fn func(b []byte)) []byte {
		b := bytes.Clone(base)
		fn(b)
		reseal(b)
		return b
	}
	for name, c := range map[string]struct {
		bytes       []byte
		unsupported string // "" = must parse
	}{
		"optional field":      {newer(base, tagEnd), ""},
		"last optional":       {newer(base, tagRequired-1), ""},
		"required field":      {newer(base, tagRequired), "field"},
		"last required":       {newer(base, 255), "field"},
		"optional flag":       {edit(func(b []byte) { b[offFlags] |= 0x80 }), ""},
		"required flag":       {edit(func(b []byte) { b[offFlags+1] |= 0x01 }), "flags"},
		"highest flag":        {edit(func(b []byte) { b[offFlags+1] |= 0x80 }), "flags"},
		"unknown type":        {edit(func(b []byte) { b[offType] = 200 }), ""},
		"reserved bytes":      {edit(func(b []byte) { b[fixedLen-1] = 1 }), ""},
		"codec of the body":   {edit(func(b []byte) { b[offCodec] = 1 }), "codec"},
		"version":             {edit(func(b []byte) { b[offVersion] = 2 }), "version"},
		"version before 1":    {edit(func(b []byte) { b[offVersion] = 0 }), "version"},
		"unchanged, resealed": {edit(func([]byte) {}), ""},
	} {
		v, err := Parse(c.bytes)
		var unsupported *UnsupportedError
		switch {
		case c.unsupported != "":
			if !errors.As(err, &unsupported) || unsupported.What != c.unsupported {
				t.Errorf("%s: %v", name, err)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case string(v.Body()) != "body of the message" || string(v.Cause()) != "\x09\x08\x07" || v.Verify() != nil:
			t.Errorf("%s: known fields are not read", name)
		case !bytes.Equal(v.Bytes(), c.bytes):
			t.Errorf("%s: the bytes are not passed on as they are", name)
		}
	}
}

func TestMalformedFieldsAreRefused(t *testing.T) {
	field := func(tag uint8, value string) []byte {
		return append(appendFieldHead(nil, tag, len(value)), value...)
	}
	for name, fields := range map[string][]byte{
		"tag 0":                   field(0, "x"),
		"same tag twice":          append(field(tagTopic, "x"), field(tagTopic, "y")...),
		"descending tags":         append(field(tagTarget, "x"), field(tagTopic, "y")...),
		"head cut":                {tagTopic, 0},
		"value cut":               appendFieldHead(nil, tagTopic, 9),
		"list length cut":         field(tagKeys, "\x05"),
		"list item cut":           field(tagKeys, "\x05\x00abc"),
		"city cut":                field(tagResidency, "\x05\x00abc"),
		"property key cut":        field(tagProperties, "\x05\x00abc"),
		"property without value":  field(tagProperties, "\x01\x00a"),
		"property value cut":      field(tagProperties, "\x01\x00a\x04\x00\x00\x00abc"),
		"property value enormous": field(tagProperties, "\x01\x00a\xff\xff\xff\xffabc"),
	} {
		b := encode(t, minimal())
		b = append(b, fields...)
		binary.LittleEndian.PutUint32(b[offTotal:], uint32(len(b)))
		binary.LittleEndian.PutUint32(b[offHeader:], uint32(len(b)))
		reseal(b)
		var format *FormatError
		if _, err := Parse(b); !errors.As(err, &format) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLimits(t *testing.T) {
	long := strings.Repeat("x", 1<<16)
	for name, r := range map[string]*Record{
		"body":       {Type: 1, Body: make([]byte, MaxRecord-fixedLen+1)},
		"header":     {Type: 1, Cause: make([]byte, MaxHeader)},
		"key":        {Type: 1, Keys: []string{long}},
		"city":       {Type: 1, Residency: []zone.City{zone.City(long)}},
		"property":   {Type: 1, Properties: []Property{{Key: long}}},
		"properties": {Type: 1, Properties: []Property{{Value: strings.Repeat("x", MaxHeader)}}},
	} {
		var limit *LimitError
		if b, err := AppendRecord([]byte("kept"), r); !errors.As(err, &limit) || string(b) != "kept" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := AppendRecord(nil, &Record{}); err == nil {
		t.Error("a record without type is encoded")
	}
	largest := &Record{Type: 1, Body: make([]byte, MaxRecord-fixedLen)}
	if v, err := Parse(encode(t, largest)); err != nil || v.Verify() != nil {
		t.Errorf("the largest record: %v", err)
	}
	var limit *LimitError
	if _, err := AppendEnvelope(nil, &Envelope{Outcome: 1, Flow: FlowID{Target: strings.Repeat("x", MaxEnvelope)}}); !errors.As(err, &limit) {
		t.Errorf("envelope: %v", err)
	}
	if _, err := AppendEnvelope(nil, &Envelope{Outcome: 1, Number: 2, Through: 1}); err == nil {
		t.Error("an envelope that ends before it begins is encoded")
	}
	if _, err := AppendEnvelope(nil, &Envelope{}); err == nil {
		t.Error("an envelope without outcome is encoded")
	}
}

// The golden files are the format: a change here is a new version, never an edit.
func TestGoldenBytes(t *testing.T) {
	golden := map[string][]byte{"envelope-landed": encodeEnvelope(t, fullEnvelope()), "envelope-gap": encodeEnvelope(t, gapEnvelope()), "envelope-lineages": encodeEnvelope(t, lineageEnvelope())}
	for name, r := range samples() {
		golden["record-"+name] = encode(t, r)
	}
	for name, b := range golden {
		file := "testdata/" + name + ".v1.hex"
		if *rewrite {
			if err := os.WriteFile(file, []byte(hex.Dump(b)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got := hex.Dump(b); got != string(want) {
			t.Errorf("%s: the encoding changed:\n%s", name, got)
		}
	}
}

func TestParseAndAppendDoNotAllocate(t *testing.T) {
	r, e := full(), fullEnvelope()
	b, env := encode(t, r), encodeEnvelope(t, e)
	buf := make([]byte, 0, 4<<10)
	var into Envelope
	if _, err := ParseEnvelope(env, &into); err != nil {
		t.Fatal(err)
	}
	topics := map[zone.Topic]int{"payments": 1}
	for name, fn := range map[string]func(){
		"AppendRecord": func() {
			if _, err := AppendRecord(buf[:0], r); err != nil {
				t.Fatal(err)
			}
		},
		"AppendEnvelope": func() {
			if _, err := AppendEnvelope(buf[:0], e); err != nil {
				t.Fatal(err)
			}
		},
		"Parse and read": func() {
			v, err := Parse(b)
			if err != nil || v.Verify() != nil || topics[zone.Topic(v.Topic())] != 1 || !v.MayEnter("beijing") {
				t.Fatal(err)
			}
		},
		"Stamp": func() { Stamp(b, 1, 2, 3) },
		"ParseEnvelope of the same flow": func() {
			if _, err := ParseEnvelope(env, &into); err != nil {
				t.Fatal(err)
			}
		},
	} {
		if n := testing.AllocsPerRun(100, fn); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func fullEnvelope() *Envelope {
	return &Envelope{
		Flow:    FlowID{Origin: "g-sh-r1-a", Incarnation: 0x1122334455667788, Target: "g-bj-r2-a", Class: zone.ClassBulk, Lane: 3},
		Lineage: 0xA1A2A3A4A5A6A7A8, LineageEpoch: 7, Number: 1 << 40, Through: 1 << 40, Outcome: OutcomeLanded,
		Hops: 2, Path: []zone.City{"shanghai", "beijing"}, OriginCursor: 1<<40 - 5, Landed: time.UnixMicro(1700000000300003).UTC(),
	}
}

func gapEnvelope() *Envelope {
	return &Envelope{
		Flow:    FlowID{Origin: "g", Incarnation: 1, Target: "members", Channel: true, Class: zone.ClassUrgent},
		Lineage: 2, LineageEpoch: 1, Number: 10, Through: 99, Outcome: OutcomeGap, Reason: ReasonTrimmed, OriginCursor: 9,
	}
}

func lineageEnvelope() *Envelope {
	e := gapEnvelope()
	e.Lineages = []LineageMark{{Epoch: 1, ID: 2, First: 1}, {Epoch: 3, ID: 0xA1A2A3A4A5A6A7A8, First: 50}}
	return e
}

func encodeEnvelope(t testing.TB, e *Envelope) []byte {
	t.Helper()
	b, err := AppendEnvelope(nil, e)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestEnvelopeRoundTrip(t *testing.T) {
	var got Envelope // used again and again: nothing of one may show in the next
	for _, e := range []*Envelope{fullEnvelope(), lineageEnvelope(), gapEnvelope(), {Outcome: OutcomeParked, Reason: 60000}, fullEnvelope()} {
		b := encodeEnvelope(t, e)
		if len(b) != EnvelopeLen(e) {
			t.Errorf("%d bytes, EnvelopeLen says %d", len(b), EnvelopeLen(e))
		}
		n, err := ParseEnvelope(append(bytes.Clone(b), "record"...), &got)
		if err != nil || n != len(b) {
			t.Fatalf("%d, %v", n, err)
		}
		if !reflect.DeepEqual(&got, e) {
			t.Errorf("\n got %+v\nwant %+v", got, *e)
		}
	}
}

func TestParseEnvelopeDoesNotChangeAPathThatIsShared(t *testing.T) {
	var e Envelope
	if _, err := ParseEnvelope(encodeEnvelope(t, fullEnvelope()), &e); err != nil {
		t.Fatal(err)
	}
	shared := e // a copy that was kept
	other := fullEnvelope()
	other.Path = []zone.City{"hangzhou", "beijing"}
	if _, err := ParseEnvelope(encodeEnvelope(t, other), &e); err != nil {
		t.Fatal(err)
	}
	if shared.Path[0] != "shanghai" || e.Path[0] != "hangzhou" {
		t.Errorf("paths %v and %v", shared.Path, e.Path)
	}
}

func TestEnvelopeOfANewerVersion(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(b []byte)
		ok   bool
	}{
		"optional flag":  {func(b []byte) { b[envFlags] = 1 }, true},
		"required flag":  {func(b []byte) { b[envFlags+1] = 1 }, false},
		"version":        {func(b []byte) { b[envVersion] = 2 }, false},
		"reserved bytes": {func(b []byte) { b[envFixedLen-58] = 1 }, true},
	} {
		b := encodeEnvelope(t, fullEnvelope())
		c.edit(b)
		binary.LittleEndian.PutUint32(b[envSum:], envelopeSum(b))
		_, err := ParseEnvelope(b, new(Envelope))
		var unsupported *UnsupportedError
		if c.ok != (err == nil) || (!c.ok && !errors.As(err, &unsupported)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, r := range samples() {
		f.Add(encode(f, r))
	}
	f.Add(newer(encode(f, full()), 100))
	f.Fuzz(func(t *testing.T, b []byte) {
		// Fuzzing rarely hits a checksum: make it right, so that what is behind
		// it is tried too.
		if len(b) >= fixedLen {
			b = bytes.Clone(b)
			binary.LittleEndian.PutUint32(b[offTotal:], uint32(len(b)))
			if h := binary.LittleEndian.Uint32(b[offHeader:]); h >= fixedLen && uint64(h) <= uint64(len(b)) {
				reseal(b)
			}
		}
		v, err := Parse(b)
		if err != nil {
			return
		}
		var r Record
		if err := v.Decode(&r); err != nil {
			t.Fatal(err)
		}
		again, err := AppendRecord(nil, &r)
		if err != nil {
			t.Fatalf("decoded but not encodable: %v", err)
		}
		v2, err := Parse(again)
		if err != nil {
			t.Fatal(err)
		}
		var r2 Record
		if err := v2.Decode(&r2); err != nil || !reflect.DeepEqual(r, r2) {
			t.Fatalf("round trip differs: %v\n%+v\n%+v", err, r, r2)
		}
	})
}

func FuzzParseEnvelope(f *testing.F) {
	f.Add(encodeEnvelope(f, fullEnvelope()))
	f.Add(encodeEnvelope(f, gapEnvelope()))
	f.Add(encodeEnvelope(f, lineageEnvelope()))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= envFixedLen {
			b = bytes.Clone(b)
			if n := binary.LittleEndian.Uint32(b); n >= envFixedLen && uint64(n) <= uint64(len(b)) {
				binary.LittleEndian.PutUint32(b[envSum:], envelopeSum(b[:n]))
			}
		}
		var e, e2 Envelope
		if _, err := ParseEnvelope(b, &e); err != nil {
			return
		}
		if _, err := ParseEnvelope(encodeEnvelope(t, &e), &e2); err != nil || !reflect.DeepEqual(e, e2) {
			t.Fatalf("round trip differs: %v\n%+v\n%+v", err, e, e2)
		}
	})
}

func BenchmarkRecord(b *testing.B) {
	for _, size := range []int{200, 1 << 10, 16 << 10} {
		r := full()
		r.Body = make([]byte, size)
		enc := encode(b, r)
		buf := make([]byte, 0, len(enc))
		for name, fn := range map[string]func(){
			"append": func() { _, _ = AppendRecord(buf, r) },
			"parse":  func() { _, _ = Parse(enc) },
			"verify": func() { v, _ := Parse(enc); _ = v.Verify() },
			"stamp":  func() { Stamp(enc, 1, 2, 3) },
		} {
			b.Run(fmt.Sprintf("%s/body=%d", name, size), func(b *testing.B) {
				b.ReportAllocs()
				for range b.N {
					fn()
				}
			})
		}
	}
}
