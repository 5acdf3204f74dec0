package broker

import (
	"context"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// The body of CallOffer and its answer. Integers, str and n are as in control.go.
//
//	records  version u8 = 1 | flags u8 (1 dry, 2 reroute) | n, each: flags u8 (1 certain, 2 a route follows), begin, lineage u64, after, sent,
//	         n consumer groups: str; route: target str, channel u8, class u8, lane u8; record str
//	results  version u8 = 1 | n, each: outcome u8, text str
const offerVersion = 1

const (
	offerDry     = 1
	offerReroute = 2
	offerCertain = 1
	offerRoute   = 2
)

// offerRoom is what the body of a call takes for a record besides its bytes and groups, at
// most.
const offerRoom = 128

// offerSize is at least what a record takes of the body of a call.
func offerSize(x *Offered) int {
	n := offerRoom + len(x.Record.Bytes())
	for _, g := range x.Again.Groups {
		n += 10 + len(g)
	}
	if x.Route != nil {
		n += len(x.Route.Target)
	}
	return n
}

// OfferBatch returns how many of the records one call takes, at least one: a record that
// is larger than a call is refused by Offer.
func OfferBatch(list []Offered) int {
	size := 16
	for i := range list {
		if size += offerSize(&list[i]); i > 0 && size > MaxCallBody || i == MaxOffered {
			return i
		}
	}
	return len(list)
}

// Offer has the master of a group, of which the caller is a member, do what OfferTail
// does. list is what OfferBatch says, or fewer.
func Offer(ctx context.Context, c Caller, group zone.Group, list []Offered, how OfferOptions) ([]OfferResult, error) {
	if len(list) == 1 && 16+offerSize(&list[0]) > MaxCallBody {
		return []OfferResult{{Outcome: OfferRefused, Text: "it is larger than a call between brokers may be: take it from the tail by hand"}}, nil
	}
	reply, err := c.Call(ctx, group, CallOffer, appendOffers(list, how))
	if err != nil {
		return nil, err
	}
	d := decoder{b: reply}
	if d.byte() != offerVersion || d.count() != len(list) {
		d.bad = true
	}
	results := make([]OfferResult, len(list))
	for i := range results {
		results[i] = OfferResult{Outcome: OfferOutcome(d.byte()), Text: d.str()}
	}
	if !d.ok() {
		return nil, &Error{Op: "offer", Kind: KindInternal, Text: "the answer of the group's master cannot be read"}
	}
	return results, nil
}

func appendOffers(list []Offered, how OfferOptions) []byte {
	var e encoder
	e.byte(offerVersion)
	e.byte(flagIf(how.Dry, offerDry) | flagIf(how.Reroute, offerReroute))
	e.uint(uint64(len(list)))
	for i := range list {
		x := &list[i]
		e.byte(flagIf(x.Certain, offerCertain) | flagIf(x.Route != nil, offerRoute))
		e.uint(uint64(x.Begin))
		e.u64(uint64(x.Again.Lineage))
		e.uint(uint64(x.Again.After))
		e.uint(uint64(x.Again.Sent))
		e.uint(uint64(len(x.Again.Groups)))
		for _, g := range x.Again.Groups {
			e.str(string(g))
		}
		if r := x.Route; r != nil {
			e.str(r.Target)
			e.bool(r.Channel)
			e.byte(byte(r.Class))
			e.byte(r.Lane)
		}
		b := x.Record.Bytes()
		e.uint(uint64(len(b)))
		e.raw(b)
	}
	return e.b
}

func parseOffers(b []byte) (list []Offered, how OfferOptions, err error) {
	d := decoder{b: b}
	malformed := &Error{Op: "offer", Kind: KindInvalid, Text: "the call is malformed"}
	if d.byte() != offerVersion {
		return nil, how, malformed
	}
	flags := d.byte()
	how = OfferOptions{Dry: flags&offerDry != 0, Reroute: flags&offerReroute != 0}
	n := d.count()
	if n > MaxOffered {
		return nil, how, malformed
	}
	for range n {
		flags := d.byte()
		x := Offered{Certain: flags&offerCertain != 0, Begin: record.Position(d.uint())}
		x.Again = record.Again{Lineage: record.LineageID(d.u64()), After: record.Position(d.uint()), Sent: record.Position(d.uint())}
		for range d.count() {
			x.Again.Groups = append(x.Again.Groups, zone.ConsumerGroup(d.str()))
		}
		if flags&offerRoute != 0 {
			x.Route = &Route{Target: d.str(), Channel: d.bool(), Class: zone.Class(d.byte()), Lane: d.byte()}
		}
		raw := d.bytes()
		if d.bad {
			return nil, how, malformed
		}
		if x.Record, err = record.Parse(raw); err != nil {
			return nil, how, &Error{Op: "offer", Kind: KindCorrupt, Err: err}
		}
		x.Again.Epoch, x.Again.Position = x.Record.Epoch(), x.Record.Position()
		list = append(list, x)
	}
	if !d.ok() {
		return nil, how, malformed
	}
	return list, how, nil
}

// serveOffer answers the call of a member of this group, which the caller of ServeCall
// knows it to be.
func (b *Broker) serveOffer(ctx context.Context, body []byte) ([]byte, error) {
	list, how, err := parseOffers(body)
	if err != nil {
		return nil, err
	}
	results, err := b.OfferTail(ctx, list, how)
	if err != nil {
		return nil, err
	}
	var e encoder
	e.byte(offerVersion)
	e.uint(uint64(len(results)))
	for _, r := range results {
		e.byte(byte(r.Outcome))
		e.str(r.Text)
	}
	return e.b, nil
}
