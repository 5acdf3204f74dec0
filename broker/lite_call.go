package broker

import (
	"context"
	"fmt"

	"github.com/mqrouter/mqrouter/zone"
)

// The body of CallLite:
//
//	version u8 = 1 | action u8 | from u8 | N u64 | group str, topic str, client str | n, each name: str
const liteCallVersion = 1

func (r *LiteRequest) append(dst []byte) []byte {
	e := encoder{b: dst}
	e.byte(liteCallVersion)
	e.byte(byte(r.Action))
	e.byte(byte(r.From))
	e.u64(uint64(r.N))
	e.str(string(r.Group))
	e.str(string(r.Topic))
	e.str(r.ClientID)
	e.uint(uint64(len(r.Names)))
	for _, name := range r.Names {
		e.str(name)
	}
	return e.b
}

func parseLiteRequest(b []byte) (*LiteRequest, error) {
	d := decoder{b: b}
	if v := d.byte(); v != liteCallVersion {
		return nil, &Error{Op: "subscribe", Kind: KindUnsupported, Text: fmt.Sprintf("a subscription of version %d", v)}
	}
	r := &LiteRequest{Action: LiteAction(d.byte()), From: LiteFrom(d.byte()), N: int64(d.u64()),
		Group: zone.ConsumerGroup(d.str()), Topic: zone.Topic(d.str()), ClientID: d.str()}
	for range d.count() {
		r.Names = append(r.Names, d.str())
	}
	if !d.ok() {
		return nil, &Error{Op: "subscribe", Kind: KindInvalid, Text: "a subscription that cannot be read"}
	}
	return r, nil
}

// serveLite takes over what another broker of the zone passes on.
func (b *Broker) serveLite(ctx context.Context, body []byte) ([]byte, error) {
	r, err := parseLiteRequest(body)
	if err != nil {
		return nil, err
	}
	return nil, b.syncHere(ctx, r)
}
