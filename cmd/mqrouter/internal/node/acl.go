package node

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/metric"

	"github.com/mqrouter/mqrouter/broker/rocketmq"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/acl"
)

// followACL opens the access file and follows it; nil when there is none.
func (n *brokerNode) followACL(ctx context.Context) (rocketmq.AccessSource, error) {
	if n.cfg.ACL == "" {
		return nil, nil
	}
	f, err := acl.Open(n.cfg.ACL, acl.Options{Log: n.log})
	if err != nil {
		return nil, err
	}
	problem, err := n.meter().Int64ObservableGauge("mqrouter.acl.problem", metric.WithUnit("1"),
		metric.WithDescription("1 while the content of the access file is not in force, but the last good one is."))
	if err != nil {
		return nil, fmt.Errorf("access file: %w", err)
	}
	seen, err := n.meter().RegisterCallback(func(_ context.Context, o metric.Observer) error {
		bad := int64(0)
		if f.Problem() != "" {
			bad = 1
		}
		o.ObserveInt64(problem, bad)
		return nil
	}, problem)
	if err != nil {
		return nil, fmt.Errorf("access file: %w", err)
	}
	n.onStop("metrics of the access file", seen.Unregister)
	n.aclFile.Store(f)
	n.run(ctx, "access file", f.Run)
	return f, nil
}

// aclProblem says why the access file's content is not in force; empty when it is,
// or there is none.
func (n *brokerNode) aclProblem() string {
	if f := n.aclFile.Load(); f != nil {
		return f.Problem()
	}
	return ""
}
