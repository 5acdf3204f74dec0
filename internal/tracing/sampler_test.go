package tracing

import (
	"encoding/binary"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

func parent(id uint64, sampled bool) trace.SpanContext {
	c := trace.SpanContextConfig{SpanID: trace.SpanID{1}, Remote: true}
	c.TraceID[0] = 1
	binary.BigEndian.PutUint64(c.TraceID[8:], id)
	if sampled {
		c.TraceFlags = trace.FlagsSampled
	}
	return trace.NewSpanContext(c)
}

func TestSamplers(t *testing.T) {
	on, off := parent(1<<63, true), parent(1<<63, false)
	for _, c := range []struct {
		name, arg          string
		root, sampled, not bool // no parent, a sampled one, one that is not
	}{
		{"always_on", "", true, true, true},
		{"always_off", "", false, false, false},
		{"traceidratio", "1", true, true, true},
		{"traceidratio", "", true, true, true},
		{"traceidratio", "0", false, false, false},
		{"parentbased_always_on", "", true, true, false},
		{"parentbased_always_off", "", false, true, false},
		{"parentbased_traceidratio", "0", false, true, false},
		{"parentbased_traceidratio", "1", true, true, false},
	} {
		s, err := ParseSampler(c.name, c.arg)
		if err != nil {
			t.Errorf("%s %s: %v", c.name, c.arg, err)
			continue
		}
		if got := s.Sample(trace.SpanContext{}); got != c.root {
			t.Errorf("%s %q without a parent = %v, want %v", c.name, c.arg, got, c.root)
		}
		if got := s.Sample(on); got != c.sampled {
			t.Errorf("%s %q of a sampled parent = %v, want %v", c.name, c.arg, got, c.sampled)
		}
		if got := s.Sample(off); got != c.not {
			t.Errorf("%s %q of a parent that is not = %v, want %v", c.name, c.arg, got, c.not)
		}
		if got, want := s.Never(), !c.root && !c.sampled; got != want {
			t.Errorf("%s %q Never = %v, want %v", c.name, c.arg, got, want)
		}
	}
	for _, c := range [][2]string{{"", ""}, {"sometimes", ""}, {"parentbased_", ""}, {"traceidratio", "2"}, {"traceidratio", "x"}, {"traceidratio", "NaN"}} {
		if s, err := ParseSampler(c[0], c[1]); err == nil {
			t.Errorf("ParseSampler(%q, %q) = %+v, want an error", c[0], c[1], s)
		}
	}
}

// TestRatioAgreesWithTheSDK: services that sample by the trace's id and this one
// must choose the same traces.
func TestRatioAgreesWithTheSDK(t *testing.T) {
	const share = 0.25
	s := Sampler{alone: true, bound: bound(share)}
	ref := sdk.TraceIDRatioBased(share)
	for i := range uint64(1000) {
		p := parent(i*0x9e3779b97f4a7c15, false)
		want := ref.ShouldSample(sdk.SamplingParameters{ParentContext: t.Context(), TraceID: p.TraceID()}).Decision == sdk.RecordAndSample
		if got := s.Sample(p); got != want {
			t.Fatalf("trace %s: %v, the SDK says %v", p.TraceID(), got, want)
		}
	}
}

func TestDecideReadsTheText(t *testing.T) {
	quiet := example[:len(example)-1] + "0"
	always, err := ParseSampler("always_on", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		s      Sampler
		text   string
		traced bool
	}{
		{Sampler{}, "", false}, {Sampler{}, example, true}, {Sampler{}, quiet, false}, {Sampler{}, "own", false},
		{ParentBased(1), "", true}, {ParentBased(1), quiet, false}, {ParentBased(1), example + "x", false},
		{always, quiet, true}, {always, "own", false}, {always, "", true},
	} {
		parent, traced := c.s.Decide(c.text)
		if traced != c.traced || traced && parent.IsValid() != (c.text != "") {
			t.Errorf("%+v decides %v under %v of %q, want %v", c.s, traced, parent, c.text, c.traced)
		}
	}
}

func TestShareOfNewTraces(t *testing.T) {
	s := ParentBased(0.1)
	n := 0
	for range 100_000 {
		if s.Sample(trace.SpanContext{}) {
			n++
		}
	}
	if n < 9_000 || n > 11_000 { // ten standard deviations
		t.Errorf("%d of 100,000 are sampled, want about 10,000", n)
	}
	if n := testing.AllocsPerRun(100, func() { s.Sample(trace.SpanContext{}) }); n != 0 {
		t.Errorf("Sample allocates %v times", n)
	}
}
