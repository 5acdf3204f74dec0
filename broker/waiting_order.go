package broker

import (
	"context"
	"fmt"
	"strings"
	"unicode"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/zone"
)

// Bounds of an order.
const (
	MaxOrdered   = 256 // messages of one call
	maxOrderText = 512 // bytes of who and why, each
)

// Order says who has operators' decisions made about messages that wait, and why. Both
// are in the record of each decision, as long as the log has it.
type Order struct{ By, Why string }

func (o Order) given() bool { return o != Order{} }

// check refuses orders that tell nothing, or too much.
func (o Order) check(op string) error {
	for what, text := range map[string]string{"who orders it": o.By, "why": o.Why} {
		switch {
		case strings.TrimSpace(text) == "":
			return &Error{Op: op, Kind: KindInvalid, Text: "the order does not say " + what}
		case len(text) > maxOrderText || strings.ContainsFunc(text, unicode.IsControl):
			return &Error{Op: op, Kind: KindInvalid, Text: fmt.Sprintf("%s has to be one line of at most %d bytes", what, maxOrderText)}
		}
	}
	return nil
}

// An order is the Cause of a TypeRecall or TypeRollback record that an operator
// ordered, and ends that of a commit: version u8 | by str | why str. The version is
// none of the other causes'.
const orderVersion = 16

func (o Order) append(dst []byte) []byte {
	if !o.given() {
		return dst
	}
	e := encoder{b: dst}
	e.byte(orderVersion)
	e.order(o)
	return e.b
}

func (e *encoder) order(o Order) {
	e.str(o.By)
	e.str(o.Why)
}

func (d *decoder) order() Order { return Order{By: d.str(), Why: d.str()} }

// parseOrder reads the cause of a TypeRecall or TypeRollback record that has one.
func parseOrder(b []byte) (Order, error) {
	d := decoder{b: b}
	if v := d.byte(); v != orderVersion {
		return Order{}, &BodyError{What: "order", Version: v}
	}
	o := d.order()
	if !d.ok() {
		return Order{}, &BodyError{What: "order", Version: orderVersion}
	}
	return o, nil
}

// WaitingName names a message that waits, as Waiting does.
type WaitingName struct {
	Topic  zone.Topic
	Handle string
}

// OrderOutcome is what became of a message that an operator decided about.
type OrderOutcome uint8

// The outcomes.
const (
	OrderDone    OrderOutcome = iota + 1 // as ordered; durable
	OrderGone                            // it waits no more: it was delivered, taken back or decided before
	OrderRefused                         // it goes on waiting
)

// String returns the outcome in a word.
func (o OrderOutcome) String() string {
	return [...]string{"none", "done", "gone", "refused"}[min(o, OrderRefused)]
}

// OrderResult is the result for one message.
type OrderResult struct {
	Handle  string
	Outcome OrderOutcome
	Err     error // of OrderRefused and OrderGone: an *Error that says why
}

func (b *Broker) checkOrder(op string, list []WaitingName, o Order) error {
	if err := b.ready(op); err != nil {
		return err
	}
	if len(list) == 0 || len(list) > MaxOrdered {
		return &Error{Op: op, Kind: KindInvalid, Text: fmt.Sprintf("%d messages; 1 to %d are allowed", len(list), MaxOrdered)}
	}
	return o.check(op)
}

// DropDelayed has delayed messages of this broker never be delivered, as a recall
// does, by order of an operator. What the results call done is durable. It may use the
// space that the log keeps back: it lets space come free.
//
// An error is for the call as a whole: nothing is known of the messages then, and the
// same call may be made again.
func (b *Broker) DropDelayed(ctx context.Context, list []WaitingName, order Order) ([]OrderResult, error) {
	const op = "drop"
	if err := b.checkOrder(op, list, order); err != nil {
		return nil, err
	}
	d := dropping{b: b, order: order, results: make([]OrderResult, len(list))}
	left := make([]int, len(list))
	for i := range list {
		left[i], d.results[i].Handle = i, list[i].Handle
	}
	// What was carried between look and append is at another place: look again.
	for len(left) > 0 {
		var err error
		if left, err = d.round(ctx, list, left); err != nil {
			return nil, err
		}
	}
	return d.results, nil
}

// dropping is one call of DropDelayed.
type dropping struct {
	b       *Broker
	order   Order
	results []OrderResult
}

// round appends recalls of the messages that still wait, and returns those that may
// wait elsewhere by now.
func (d *dropping) round(ctx context.Context, list []WaitingName, todo []int) (again []int, err error) {
	const op = "drop"
	b, o := d.b, &orderOp{}
	for _, i := range todo {
		e, wait, err := b.dropOf(&list[i], d.order)
		switch {
		case err != nil:
			d.results[i].Outcome, d.results[i].Err = OrderRefused, err
		case !wait:
			d.results[i].Outcome = OrderGone
			d.results[i].Err = &Error{Op: op, Kind: KindSettled, Topic: list[i].Topic, Text: "the message is no longer waiting"}
		default:
			o.add(e, i)
		}
	}
	if len(o.of) == 0 {
		return nil, nil
	}
	o.batch.Reserved = true
	if err := b.appendWait(ctx, &o.op); err != nil {
		return nil, &Error{Op: op, Kind: kindOfLog(err), Err: err}
	}
	for k, i := range o.of {
		if !o.places[k].ok {
			again = append(again, i)
			continue
		}
		d.results[i].Outcome = OrderDone
		b.metrics.timerDropped(list[i].Topic)
	}
	return again, nil
}

// orderOp is an append of one record for each of some messages.
type orderOp struct {
	op
	of []int // by entry: which message
}

func (o *orderOp) add(e commitlog.Entry, of int) {
	o.batch.Entries, o.of = append(o.batch.Entries, e), append(o.of, of)
}

// dropOf makes the recall of a message; false when it waits no more.
func (b *Broker) dropOf(n *WaitingName, order Order) (e commitlog.Entry, waits bool, err error) {
	const op = "drop"
	refuse := func(kind Kind, err error) (commitlog.Entry, bool, error) {
		return commitlog.Entry{}, false, &Error{Op: op, Kind: kind, Topic: n.Topic, Err: err}
	}
	t, err := parseRecallToken(n.Handle)
	if err == nil {
		_, err = b.sealer.OpenToken(consumer.TokenRecall, n.Handle, string(n.Topic))
	}
	if err != nil {
		return refuse(KindRecallHandle, err)
	}
	if t.incarnation != b.log.Incarnation() {
		return commitlog.Entry{}, false, nil
	}
	number, state, err := b.recallable(t)
	if err != nil {
		return refuse(kindOfLog(err), err)
	}
	if state != recallOpen {
		return commitlog.Entry{}, false, nil
	}
	e, err = b.recallRecord(n.Topic, t.messageID, recallBody{bucket: t.bucket, number: number}, order)
	if err != nil {
		return refuse(KindInternal, err)
	}
	return e, true, nil
}

// ResolveHalves has half messages of this broker committed or rolled back by order of
// an operator. The first decision in the log counts, whoever makes it: one that a
// producer has decided, or decides meanwhile, is OrderGone. They are decided in the
// order of the list, and what the results call done is durable.
//
// An error is for the call as a whole; when ctx ends, some of the messages may be
// decided all the same.
func (b *Broker) ResolveHalves(ctx context.Context, list []WaitingName, r Resolution, order Order) ([]OrderResult, error) {
	const op = "resolve"
	if err := b.checkOrder(op, list, order); err != nil {
		return nil, err
	}
	if r != ResolutionCommit && r != ResolutionRollback {
		return nil, &Error{Op: op, Kind: KindInvalid, Text: "commit or roll back"}
	}
	results, waits := make([]OrderResult, len(list)), make([]func() error, len(list))
	for i := range list {
		results[i].Handle = list[i].Handle
		waits[i] = b.startDecision(ctx, list[i].Topic, list[i].Handle, r, order)
	}
	for i, wait := range waits {
		err := wait()
		switch kind := KindOf(err); {
		case err == nil:
			results[i].Outcome = OrderDone
		case kind == KindDecided:
			results[i].Outcome, results[i].Err = OrderGone, err
		default:
			results[i].Outcome, results[i].Err = OrderRefused, err
		}
	}
	return results, ctx.Err()
}
