package node

import (
	"context"
	"fmt"
	"net/http"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/zone"
)

// waitingDesk shows operators the messages that wait at a broker, and lets them decide
// about them.
type waitingDesk struct{ n *brokerNode }

var _ admin.Waiting = waitingDesk{}

// List implements admin.Waiting.
func (d waitingDesk) List(ctx context.Context, q admin.WaitingQuery) (admin.WaitingPage, error) {
	ask := broker.WaitingQuery{
		Kind: broker.WaitingDelayed, Limit: q.Limit, Topic: zone.Topic(q.Topic), MessageID: q.MessageID, Since: q.Since, Until: q.Until,
		DueFrom: q.DueFrom, DueUntil: q.DueUntil, Gone: q.Gone, Unreadable: q.Unreadable,
	}
	if q.Kind == admin.KindUndecided {
		ask.Kind = broker.WaitingUndecided
	}
	if q.From != "" {
		if _, err := fmt.Sscanf(q.From, "%d-%d", &ask.From.Hour, &ask.From.Number); err != nil {
			return admin.WaitingPage{}, &admin.RequestError{Status: http.StatusBadRequest, Err: fmt.Errorf("from %q is no place that a page named", q.From)}
		}
	}
	list, next, err := d.n.broker.Waiting(ctx, ask)
	if err != nil {
		return admin.WaitingPage{}, requestError(err)
	}
	var page admin.WaitingPage
	if next != (broker.WaitingPlace{}) {
		page.Next = fmt.Sprintf("%d-%d", next.Hour, next.Number)
	}
	for i := range list {
		page.Messages = append(page.Messages, d.message(q.Kind, &list[i]))
	}
	return page, nil
}

func (d waitingDesk) message(kind string, w *broker.Waiting) admin.WaitingMessage {
	out := admin.WaitingMessage{
		Node: string(d.n.self.Name), Zone: string(d.n.self.Zone.Name), Kind: kind, Topic: string(w.Topic), Handle: w.Handle,
		Stored: w.Stored, Due: w.Due, Checks: w.Checks, Gone: w.Gone, Problem: w.Problem,
	}
	if w.Problem != "" {
		return out
	}
	v := w.Record
	out.MessageID, out.Tag, out.BodySize = string(v.MessageID()), string(v.Tag()), len(v.Body())
	for k := range v.Keys {
		out.Keys = append(out.Keys, string(k))
	}
	return out
}

// Order implements admin.Waiting.
func (d waitingDesk) Order(ctx context.Context, by string, o admin.WaitingOrder) ([]admin.OrderResult, error) {
	names := make([]broker.WaitingName, 0, len(o.Messages))
	for _, m := range o.Messages {
		names = append(names, broker.WaitingName{Topic: zone.Topic(m.Topic), Handle: m.Handle})
	}
	order := broker.Order{By: by, Why: o.Why}
	var list []broker.OrderResult
	var err error
	switch o.What {
	case admin.OrderDrop:
		list, err = d.n.broker.DropDelayed(ctx, names, order)
	case admin.OrderCommit:
		list, err = d.n.broker.ResolveHalves(ctx, names, broker.ResolutionCommit, order)
	case admin.OrderRollback:
		list, err = d.n.broker.ResolveHalves(ctx, names, broker.ResolutionRollback, order)
	default:
		err = &admin.RequestError{Status: http.StatusBadRequest, Err: fmt.Errorf("what %q: write drop, commit or rollback", o.What)}
		return nil, err
	}
	var out []admin.OrderResult
	for _, r := range list {
		one := admin.OrderResult{Handle: r.Handle, Outcome: r.Outcome.String()}
		if r.Err != nil {
			one.Error = r.Err.Error()
		}
		out = append(out, one)
	}
	return out, requestError(err)
}
