package wire

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"testing"

	"github.com/mqrouter/mqrouter/zone"
)

// goldenTraced is a batch with a trace context behind its fields. It never changes.
const goldenTraced = "0104010078000000080706050403020103010000" + "3826aae7" + "0ebc7984" +
	"9b01000000000000020000009a010000000000000c000000000000000200000000000000" +
	"010008007368616e67686169020008007368616e6768616907006265696a696e6700000000000d0000000d000000030000006f6e65020000007477" +
	"0102030405060708090a0b0c0d0e0f10" + "a1a2a3a4a5a6a7a8" + "01"

func tracedBatch() (Batch, TraceContext) {
	var b Batch
	for _, s := range samples() {
		if s.name == "batch" {
			b = *s.value.(*Batch)
		}
	}
	c := TraceContext{SpanID: [8]byte{0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8}, Flags: 1}
	for i := range c.TraceID {
		c.TraceID[i] = byte(i + 1)
	}
	return b, c
}

func TestTracedFrameKeepsItsBytes(t *testing.T) {
	b, c := tracedBatch()
	frame := Frame{Type: TypeBatch, Flags: FlagTrace, Session: 0x0102030405060708, Class: zone.ClassBulk, Hops: 1, Payload: AppendTrace(b.Append(nil), &c)}
	got, err := AppendFrame(nil, &frame)
	if err != nil {
		t.Fatal(err)
	}
	if hex.EncodeToString(got) != goldenTraced {
		t.Errorf("the format has changed:\n%x, want\n%s", got, goldenTraced)
	}
}

// TestTraceIsReadWithoutTheBatch: a router reads the context, a broker the batch;
// one that knows neither flag nor context reads the same batch.
func TestTraceIsReadWithoutTheBatch(t *testing.T) {
	raw, err := hex.DecodeString(goldenTraced)
	if err != nil {
		t.Fatal(err)
	}
	f, err := ReadFrame(bytes.NewReader(raw), MaxPayload)
	if err != nil {
		t.Fatal(err)
	}
	want, context := tracedBatch()
	if got, ok := f.Trace(); !ok || got != context {
		t.Errorf("Trace = %+v, %v, want %+v", got, ok, context)
	}
	if got, err := ParseBatch(f.Payload); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("ParseBatch = %+v, %v, want %+v", got, err, want)
	}
	if f.Flags&FlagsRequired != 0 {
		t.Error("the flag must be an optional one")
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = f.Trace() }); n != 0 {
		t.Errorf("Trace allocates %v times", n)
	}
}

func TestFramesWithoutTrace(t *testing.T) {
	for name, f := range map[string]Frame{
		"no flag":   {Type: TypeBatch, Payload: make([]byte, 100)},
		"too short": {Type: TypeBatch, Flags: FlagTrace, Payload: make([]byte, TraceSize-1)},
		"empty":     {Type: TypeBatch, Flags: FlagTrace},
	} {
		if c, ok := f.Trace(); ok {
			t.Errorf("%s: Trace = %+v, want none", name, c)
		}
	}
}
