package node

import (
	"context"
	"net/http"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/zone"
)

// flowDesk lets operators change a broker's flows.
type flowDesk struct{ n *brokerNode }

var _ admin.Flows = flowDesk{}

// Withdraw implements admin.Flows.
func (d flowDesk) Withdraw(ctx context.Context, r admin.WithdrawRequest) ([]admin.Withdrawal, error) {
	list, err := d.n.broker.Withdraw(ctx, zone.Group(r.Group), r.DryRun)
	if broker.KindOf(err) == broker.KindInvalid {
		return nil, &admin.RequestError{Status: http.StatusConflict, Err: err}
	}
	var out []admin.Withdrawal
	for _, w := range list {
		out = append(out, admin.Withdrawal{Node: string(d.n.self.Name), Flow: w.Leg.Flow.Target, City: string(w.Leg.City), Lane: w.Leg.Flow.Lane,
			Records: w.Records, Bytes: w.Bytes, Oldest: w.Oldest})
	}
	return out, err
}
