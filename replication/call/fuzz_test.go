package call

import (
	"context"
	"errors"
	"testing"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// FuzzCall gives any payload to an answerer as a call, and to a caller as an answer
// and as a refusal: both end with what the bytes say or with an error, and nothing
// stays reserved.
func FuzzCall(f *testing.F) {
	f.Add((&wire.Call{Kind: kindEcho, Time: 1e9, Body: []byte("x")}).Append(nil))
	f.Add((&wire.Reply{Body: []byte("x")}).Append(nil))
	f.Add((&wire.Reply{Fault: 3, Text: "no"}).Append(nil))
	f.Add((&wire.Refuse{Code: wire.CodeTooMany, Text: "later"}).Append(nil))
	server, err := NewServer(ServerOptions{Handle: func(_ context.Context, _ uint8, body []byte) ([]byte, error) { return body, nil }})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		st := &liar{}
		err := server.Serve(t.Context(), "peer", st, wire.Frame{Type: wire.TypeCall, Payload: b})
		if _, bad := wire.ParseCall(b); (err == nil) != (bad == nil) {
			t.Errorf("served with %v, parsed with %v", err, bad)
		}
		if server.bytes != 0 || len(server.peers) != 0 {
			t.Errorf("%d bytes and %d peers are still counted", server.bytes, len(server.peers))
		}
		for _, typ := range []wire.Type{wire.TypeReply, wire.TypeRefuse} {
			l := &liar{frames: []wire.Frame{{Type: typ, Payload: b}}}
			c, err := NewClient(Options{Session: func() uint64 { return 1 }, Open: func(context.Context, zone.Group, uint64) (wire.Stream, error) { return l, nil }})
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.Call(t.Context(), "g", kindEcho, nil)
			var fault *Fault
			var silent *Error
			if err != nil && !errors.As(err, &fault) && !errors.As(err, &silent) {
				t.Errorf("error %v is none of this package's", err)
			}
			if fault != nil && fault.Kind == 0 {
				t.Error("a fault without a kind")
			}
		}
	})
}
