package node

import (
	"context"
	"fmt"
	"net/http"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/zone"
)

// groupDesk lets operators change a broker's consumer groups.
type groupDesk struct{ n *brokerNode }

var _ admin.Groups = groupDesk{}

// places are the words of admin.ResetRequest.To.
var places = map[string]broker.Where{
	"earliest": broker.WhereEarliest, "latest": broker.WhereLatest, "time": broker.WhereTime, "offset": broker.WhereOffset,
}

// Reset implements admin.Groups.
func (d groupDesk) Reset(ctx context.Context, r admin.ResetRequest) ([]admin.GroupReset, error) {
	where, ok := places[r.To]
	if !ok {
		return nil, &admin.RequestError{Status: http.StatusBadRequest, Err: fmt.Errorf("to %q: write earliest, latest, time or offset", r.To)}
	}
	req := broker.ResetRequest{Group: zone.ConsumerGroup(r.Group), Topic: zone.Topic(r.Topic), Queue: broker.EveryQueue,
		To: where, Time: r.Time, Offset: r.Offset, Preview: r.Preview}
	if r.Queue != nil {
		req.Queue = max(*r.Queue, broker.EveryQueue)
	}
	list, err := d.n.broker.ResetGroup(ctx, req)
	var out []admin.GroupReset
	for _, q := range list {
		out = append(out, admin.GroupReset{Node: string(d.n.self.Name), Zone: string(d.n.self.Zone.Name), Queue: q.Queue, First: q.First, Next: q.Next,
			From: q.From, To: q.To, Again: q.Again, Skipped: q.Skipped, InHands: q.InHands})
	}
	return out, requestError(err)
}
