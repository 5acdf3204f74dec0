package broker

import (
	"context"
	"errors"
	"testing"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/zone"
)

// zoneOf connects brokers of one zone without a network.
type zoneOf map[zone.Group]*Broker

// Call implements Caller.
func (z zoneOf) Call(ctx context.Context, group zone.Group, kind CallKind, body []byte) ([]byte, error) {
	b := z[group]
	if b == nil {
		return nil, &Error{Op: "call", Kind: KindUnavailable, Text: "group " + string(group)}
	}
	return b.ServeCall(ctx, kind, append([]byte(nil), body...))
}

// Kinds of the tests, which no feature uses.
const (
	testEcho CallKind = 250 + iota
	testFail
)

func (s *station) answer(kind CallKind, h callHandler) { s.calls[kind] = h }

func TestCallsStayInTheZone(t *testing.T) {
	topo := sample(t)
	a, b := open(t, disk.NewMem(), "rz01-a-1", topo, testLimits()), open(t, disk.NewMem(), "rz01-b-1", topo, testLimits())
	for _, s := range []*station{a, b} {
		s.answer(testEcho, func(_ context.Context, body []byte) ([]byte, error) { return append([]byte(s.self+": "), body...), nil })
		s.answer(testFail, func(context.Context, []byte) ([]byte, error) { return nil, errors.New("a disk is bad") })
	}
	want := func(what string, kind Kind, group zone.Group, call CallKind, body []byte, answer string) {
		t.Helper()
		got, err := a.call(t.Context(), group, call, body)
		if KindOf(err) != kind || string(got) != answer || (err == nil) != (kind == 0) {
			t.Errorf("%s: %q, %v; want %q, %s", what, got, err, answer, kind)
		}
	}
	want("its own group, without a caller", 0, "rz01-a", testEcho, []byte("x"), "rz01-a: x")
	want("another group, without a caller", KindUnavailable, "rz01-b", testEcho, nil, "")
	a.SetCaller(zoneOf{"rz01-b": b.Broker})
	want("another group", 0, "rz01-b", testEcho, []byte("x"), "rz01-b: x")
	want("a group of another zone", KindInvalid, "rz02-a", testEcho, nil, "")
	want("a group that there is not", KindInvalid, "nobody", testEcho, nil, "")
	want("a kind that there is not", KindUnsupported, "rz01-b", 99, nil, "")
	want("a failure", KindInternal, "rz01-b", testFail, nil, "")
	want("a body that is too large", KindTooLarge, "rz01-b", testEcho, make([]byte, MaxCallBody+1), "")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	want("a group that has closed", KindClosed, "rz01-b", testEcho, nil, "")
}
