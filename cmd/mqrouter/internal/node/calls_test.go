package node

import (
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// What is offered of a lost log is taken from members of the group alone, whoever else is
// of the zone; what brokers of a zone ask each other is taken from all.
func TestOnlyMembersOfTheGroupOfferTails(t *testing.T) {
	l, _ := elected(t, "g-1")
	if l.calls == nil {
		if err := l.startCalls(); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(from zone.Node, kind broker.CallKind) wire.Frame {
		t.Helper()
		mine, theirs := flow.Pipe()
		c := wire.Call{Kind: uint8(kind), Time: time.Minute, Body: []byte{0xff}}
		done := make(chan error, 1)
		go func() {
			done <- l.calls.Serve(t.Context(), from, theirs, wire.Frame{Type: wire.TypeCall, Payload: c.Append(nil)})
		}()
		f, err := mine.Recv(t.Context())
		if err != nil {
			t.Fatalf("%s of %s: %v", kind, from, err)
		}
		_ = mine.Close(wire.CodeOK)
		<-done
		return f
	}
	for _, from := range []zone.Node{"cg-1", "r", "nobody"} {
		f := ask(from, broker.CallOffer)
		if r, err := wire.ParseRefuse(f.Payload); f.Type != wire.TypeRefuse || err != nil || r.Code != wire.CodeWrongIdentity {
			t.Errorf("an offer of %s is answered with %s, %v", from, f.Type, err)
		}
	}
	if f := ask("g-2", broker.CallOffer); f.Type != wire.TypeReply {
		t.Errorf("an offer of a member is answered with %s", f.Type)
	}
	for _, kind := range []broker.CallKind{broker.CallEndTransaction, broker.CallRecall, broker.CallPublish, broker.CallOffset, broker.CallLite} {
		if f := ask("cg-1", kind); f.Type != wire.TypeReply {
			t.Errorf("%s of another group is answered with %s", kind, f.Type)
		}
	}
}
