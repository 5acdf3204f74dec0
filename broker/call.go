package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// CallKind is what one broker of a zone asks another one.
type CallKind uint8

// The kinds of calls. Their values travel between brokers: new ones come at the
// end, and none is used again.
const (
	CallEndTransaction CallKind = iota + 1 // EndTransaction of a half message that the group has
	CallRecall                             // Recall, by a handle of the group that is asked
	CallPublish                            // store these messages, of which the group is the home
	CallOffset                             // Offset, SetOffset or FindOffset of a queue of the group
	CallLite                               // SyncLite of a client for lite topics of the group
	CallOffer                              // OfferTail of a tail that another member of the group keeps
	callKindEnd
)

var callWords = [...]string{CallEndTransaction: "end transaction", CallRecall: "recall", CallPublish: "publish", CallOffset: "offset", CallLite: "lite", CallOffer: "offer"}

// String returns the kind's word in metrics; all that this version does not know
// are one.
func (k CallKind) String() string {
	if k == 0 || k >= callKindEnd || int(k) >= len(callWords) {
		return "other"
	}
	return callWords[k]
}

// callHandler does what a broker of this zone asks. It may keep body.
type callHandler func(ctx context.Context, body []byte) ([]byte, error)

// callTable says who answers which kind. What a handler asks of this broker must
// not be passed on by another call: two brokers whose topologies differ would pass
// it to and fro.
func (b *Broker) callTable() map[CallKind]callHandler {
	return map[CallKind]callHandler{
		CallEndTransaction: b.serveDecision,
		CallRecall:         b.serveRecall,
		CallPublish:        b.servePublish,
		CallOffset:         b.serveOffset,
		CallLite:           b.serveLite,
		CallOffer:          b.serveOffer,
	}
}

// Caller asks other broker groups of this zone. It is safe for concurrent use.
type Caller interface {
	// Call has the group do what kind says and returns its answer. It fails with
	// the *Error of the group's ServeCall, or with one of KindUnavailable when the
	// group did not answer: what was asked may have been done then. body, of at most
	// MaxCallBody bytes, is not kept.
	Call(ctx context.Context, group zone.Group, kind CallKind, body []byte) ([]byte, error)
}

// MaxCallBody is the largest body of a call and of its answer, in bytes.
const MaxCallBody = 8 << 20

// SetCaller sets who reaches the other groups of the zone; without it none can be
// reached.
func (b *Broker) SetCaller(c Caller) { b.caller.Store(&c) }

// ServeCall does what another broker asks, whom the caller knows to be one of this
// zone. Every error is an *Error. It may keep body.
func (b *Broker) ServeCall(ctx context.Context, kind CallKind, body []byte) ([]byte, error) {
	if err := b.ready("call"); err != nil {
		return nil, err
	}
	h := b.calls[kind]
	if h == nil {
		return nil, &Error{Op: "call", Kind: KindUnsupported, Text: fmt.Sprintf("calls of kind %d are not known to this version", kind)}
	}
	reply, err := h(ctx, body)
	if err != nil && KindOf(err) == 0 {
		kind := KindInternal
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			kind = KindBusy
		}
		err = &Error{Op: "call", Kind: kind, Err: err}
	}
	return reply, err
}

// call has a group of this zone do something; its own group does it at once.
func (b *Broker) call(ctx context.Context, group zone.Group, kind CallKind, body []byte) ([]byte, error) {
	if group == b.self {
		return b.ServeCall(ctx, kind, body)
	}
	c := b.caller.Load()
	switch {
	case !b.inZone(group):
		return nil, &Error{Op: "call", Kind: KindInvalid, Text: fmt.Sprintf("group %s is not of this zone", group)}
	case c == nil:
		return nil, &Error{Op: "call", Kind: KindUnavailable, Text: fmt.Sprintf("group %s cannot be reached from here", group)}
	case len(body) > MaxCallBody:
		return nil, &Error{Op: "call", Kind: KindTooLarge, Text: fmt.Sprintf("a call of %d bytes; at most %d are allowed", len(body), MaxCallBody)}
	}
	return (*c).Call(ctx, group, kind, body)
}

// inZone reports whether the group is one of this broker's zone.
func (b *Broker) inZone(group zone.Group) bool {
	g := b.view.Load().topo.FindGroup(group)
	return g != nil && g.Zone == b.view.Load().zone
}

// Incarnation is that of this broker's store: what a handle must name besides the
// group, since a new store knows nothing of what the old one gave out.
func (b *Broker) Incarnation() record.Incarnation { return b.log.Incarnation() }
