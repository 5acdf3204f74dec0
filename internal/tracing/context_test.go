package tracing

import (
	"strings"
	"testing"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

const example = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestTraceparentRoundTrip(t *testing.T) {
	for _, text := range []string{example, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", "00-00000000000000000000000000000001-0000000000000001-03"} {
		sc, ok := Parse(text)
		if !ok || !sc.IsRemote() {
			t.Errorf("Parse(%q) = %v, %v, want a remote context", text, sc, ok)
		}
		if got := Format(sc); got != text {
			t.Errorf("Format = %q, want %q", got, text)
		}
	}
}

// TestParseAgreesWithTheSDK compares with the propagator, which reads the same
// texts with much more work.
func TestParseAgreesWithTheSDK(t *testing.T) {
	texts := []string{"", example, example[:54], example + "x", example + "-more",
		"01" + example[2:], "01" + example[2:] + "-more", "01" + example[2:] + "more", "ff" + example[2:], "0g" + example[2:],
		strings.ToUpper(example), strings.Replace(example, "4bf92f3577b34da6a3ce929d0e0e4736", strings.Repeat("0", 32), 1),
		strings.Replace(example, "00f067aa0ba902b7", strings.Repeat("0", 16), 1), strings.Replace(example, "-", "_", 1),
		strings.Replace(example, "4736-", "4736_", 1), strings.Replace(example, "02b7-", "02b7_", 1), strings.Repeat("-", 55)}
	for _, text := range texts {
		carrier := propagation.MapCarrier{"traceparent": text}
		want := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(t.Context(), carrier))
		got, ok := Parse(text)
		if ok != want.IsValid() || ok && !got.Equal(want) {
			t.Errorf("Parse(%q) = %v, %v, the SDK says %v", text, got, ok, want)
		}
		if _, sampled := Sampled(text); sampled != want.IsSampled() {
			t.Errorf("Sampled(%q) = %v, the SDK says %v", text, sampled, want.IsSampled())
		}
	}
}

func TestReadingAllocatesNothing(t *testing.T) {
	off := []byte(strings.Replace(example, "-01", "-00", 1))
	on := []byte(example)
	if n := testing.AllocsPerRun(100, func() {
		Sampled(off)
		Sampled(on)
		Sampled("")
		Parse(example)
	}); n != 0 {
		t.Errorf("reading a context allocates %v times", n)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(example)
	f.Add("01" + example[2:] + "-more")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		sc, ok := Parse(text)
		sampled, on := Sampled(text)
		if on != (ok && sc.IsSampled()) || on && !sampled.Equal(sc) {
			t.Errorf("Sampled(%q) = %v, Parse = %v, %v", text, on, sc, ok)
		}
		if ok {
			if again, ok := Parse(Format(sc)); !ok || !again.Equal(sc) {
				t.Errorf("%q became %v", text, again)
			}
		}
	})
}
