package tracing

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/trace"
)

// Sampler decides at the publish whether a message is traced. The zero value
// follows the client and traces nothing that comes without a context. It is a
// value without state.
type Sampler struct {
	alone bool   // does not ask the parent
	bound uint64 // of 2^63; what is below it is traced
}

// whole is the bound that everything is below.
const whole = uint64(1) << 63

// Names of the samplers in OTEL_TRACES_SAMPLER.
const (
	alwaysOn       = "always_on"
	alwaysOff      = "always_off"
	ratio          = "traceidratio"
	parentBased    = "parentbased_"
	ratioNeedsText = "a number from 0 to 1"
)

// ParentBased follows the client's decision, and traces the share of the
// messages that come without one. share is from 0 to 1.
func ParentBased(share float64) Sampler { return Sampler{bound: bound(share)} }

// ParseSampler returns the sampler that OTEL_TRACES_SAMPLER and its _ARG name.
func ParseSampler(name, arg string) (Sampler, error) {
	var s Sampler
	kind := name
	if rest, ok := strings.CutPrefix(name, parentBased); ok {
		kind = rest
	} else {
		s.alone = true
	}
	switch kind {
	case alwaysOn:
		s.bound = whole
	case alwaysOff:
	case ratio:
		share := 1.0
		if arg != "" {
			var err error
			if share, err = ParseShare(arg); err != nil {
				return Sampler{}, err
			}
		}
		s.bound = bound(share)
	default:
		return Sampler{}, fmt.Errorf("tracing: unknown sampler %q: write %s, %s or %s, or one of them after %s", name, alwaysOn, alwaysOff, ratio, parentBased)
	}
	return s, nil
}

// ParseShare reads a share from 0 to 1.
func ParseShare(text string) (float64, error) {
	share, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(share) || share < 0 || share > 1 {
		return 0, fmt.Errorf("tracing: %q is no share: write %s", text, ratioNeedsText)
	}
	return share, nil
}

// Never reports that no message is traced, whatever the client says.
func (s Sampler) Never() bool { return s.alone && s.bound == 0 }

// Decide reads a client's traceparent, which may be empty, and decides. parent is
// what the message's first span is under, not valid when it begins a trace. A text
// that is no traceparent is the client's own: nothing begins there, so that it is
// passed on to the byte. A message that is not traced costs no more than a look at
// its flags.
func (s Sampler) Decide(text string) (parent trace.SpanContext, traced bool) {
	switch {
	case text == "":
		return parent, s.Sample(parent)
	case !s.alone:
		return Sampled(text)
	}
	parent, ok := Parse(text)
	return parent, ok && s.Sample(parent)
}

// Sample decides. parent is the client's context, or not valid when there is
// none. It does not allocate.
func (s Sampler) Sample(parent trace.SpanContext) bool {
	switch {
	case !parent.IsValid():
		return s.bound > 0 && rand.Uint64()>>1 < s.bound
	case !s.alone:
		return parent.IsSampled()
	}
	// As the SDK's TraceIDRatioBased: who samples one trace alike does so everywhere.
	id := parent.TraceID()
	return binary.BigEndian.Uint64(id[8:])>>1 < s.bound
}

func bound(share float64) uint64 {
	if share >= 1 {
		return whole
	}
	return uint64(max(share, 0) * float64(whole))
}
