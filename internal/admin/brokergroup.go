package admin

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// BrokerGroups is what a member of a broker group with several nodes serves to those who
// order its masters. Methods are safe for concurrent use; by says who orders it.
type BrokerGroups interface {
	// Switch hands the group over to another node that is in sync. The master serves it;
	// others refuse with a *RequestError. At nil the coordinator has made the other node
	// the master, which serves a moment later.
	Switch(ctx context.Context, by string, o SwitchOrder) ([]GroupTerm, error)
	// Failover has the coordinator make a node the master without the help of the one
	// before. Any member serves it. It blocks until the order is carried out or refused.
	Failover(ctx context.Context, by string, o FailoverOrder) ([]GroupTerm, error)
	// Extent counts the records of a part of this member's log.
	Extent(ctx context.Context, q ExtentQuery) (LogExtent, error)
}

// SwitchOrder hands a broker group over to another node.
type SwitchOrder struct {
	Group    string `json:"group"`
	To       string `json:"to"`
	Why      string `json:"why,omitempty"`
	Operator string `json:"operator,omitempty"` // who the caller says that they are
}

// FailoverOrder makes a node of a broker group the master.
type FailoverOrder struct {
	Group     string `json:"group"`
	To        string `json:"to"`
	AllowLoss bool   `json:"allow_loss,omitempty"`
	Why       string `json:"why"`
	Operator  string `json:"operator,omitempty"` // who the caller says that they are
}

// GroupTerm is what an order has led to.
type GroupTerm struct {
	Group  string     `json:"group"`
	Epoch  uint64     `json:"epoch"`
	Master string     `json:"master"`
	InSync []string   `json:"in_sync,omitempty"`
	Lost   *GroupLoss `json:"lost,omitempty"` // of this epoch's beginning; nil = nothing that was acknowledged
}

// ExtentQuery names a part of a log: From and To are where records begin or end.
type ExtentQuery struct{ From, To uint64 }

// LogExtent counts the records of a part of a log.
type LogExtent struct {
	From    uint64 `json:"from"`
	To      uint64 `json:"to"` // where counting ended: below the query's when Partial
	Records int    `json:"records"`
	Partial bool   `json:"partial,omitempty"` // the part is too long to be read for a count, or is not committed up to its end
	// Topics are those whose messages are in it, with their number, by name. Records of
	// the broker itself (progress, decisions) count in Records only.
	Topics []TopicCount `json:"topics,omitempty"`
}

// TopicCount is how many messages of a topic there are.
type TopicCount struct {
	Topic    string `json:"topic"`
	Messages int    `json:"messages"`
}

func (s *Server) brokerGroupRoutes(mux *http.ServeMux, d BrokerGroups) {
	mux.HandleFunc("POST /v1/brokergroup/switch", func(w http.ResponseWriter, r *http.Request) {
		serveOrder(s, w, r, maxRequest, func(o SwitchOrder) ([]GroupTerm, error) {
			by := inName(o.Operator, r)
			terms, err := d.Switch(r.Context(), by, o)
			s.told("broker group handed over by order of an operator", o.Group, o.To, by, o.Why, terms, err)
			return terms, err
		})
	})
	mux.HandleFunc("POST /v1/brokergroup/failover", func(w http.ResponseWriter, r *http.Request) {
		serveOrder(s, w, r, maxRequest, func(o FailoverOrder) ([]GroupTerm, error) {
			by := inName(o.Operator, r)
			terms, err := d.Failover(r.Context(), by, o)
			what := "fail-over of a broker group ordered by an operator"
			if o.AllowLoss {
				what = "fail-over of a broker group with loss allowed ordered by an operator"
			}
			s.told(what, o.Group, o.To, by, o.Why, terms, err)
			return terms, err
		})
	})
	mux.HandleFunc("GET /v1/brokergroup/extent", func(w http.ResponseWriter, r *http.Request) {
		servePage(s, w, r, parseExtentQuery, func(q ExtentQuery) (LogExtent, error) { return d.Extent(r.Context(), q) })
	})
}

// told logs an order, carried out or not: those who ask later want both.
func (s *Server) told(what, group, to, by, why string, terms []GroupTerm, err error) {
	if err != nil {
		s.log.Warn(what+", and refused", "group", group, "peer", to, "by", by, "why", why, "err", err)
		return
	}
	for _, t := range terms {
		s.log.Warn(what, "group", group, "peer", t.Master, "epoch", t.Epoch, "lost", t.Lost != nil, "by", by, "why", why)
	}
}

// inName is who gave an order: the name that the caller gives, and what is known of it.
func inName(operator string, r *http.Request) string {
	if operator == "" {
		return who(r)
	}
	return operator + " (" + who(r) + ")"
}

func parseExtentQuery(v url.Values) (ExtentQuery, error) {
	r := queryReader{values: v}
	q := ExtentQuery{From: r.number("from", 64), To: r.number("to", 64)}
	return q, r.err()
}

// Switch has the master at addr hand its broker group over.
func (c *Client) Switch(ctx context.Context, addr string, o SwitchOrder) ([]GroupTerm, error) {
	return post[[]GroupTerm](ctx, c, addr, "/v1/brokergroup/switch", o)
}

// Failover has a member at addr order a fail-over of its broker group.
func (c *Client) Failover(ctx context.Context, addr string, o FailoverOrder) ([]GroupTerm, error) {
	return post[[]GroupTerm](ctx, c, addr, "/v1/brokergroup/failover", o)
}

// Extent has the member at addr count the records of a part of its log.
func (c *Client) Extent(ctx context.Context, addr string, q ExtentQuery) (LogExtent, error) {
	w := queryWriter{}
	w.number("from", q.From)
	w.number("to", q.To)
	return get[LogExtent](ctx, c, addr, "/v1/brokergroup/extent?"+url.Values(w).Encode())
}

// FailoverTime is how long a fail-over may take until it is answered: longer than a
// coordinator tries (20 s).
const FailoverTime = 40 * time.Second
