package admin

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Waiting is what a node with messages that wait serves. Methods are safe for
// concurrent use.
type Waiting interface {
	// List returns a page of messages that wait.
	List(ctx context.Context, q WaitingQuery) (WaitingPage, error)
	// Order decides about messages by order of an operator; by says who it is. A
	// *RequestError when the request is wrong. At nil everything that the results call
	// done is durable.
	Order(ctx context.Context, by string, o WaitingOrder) ([]OrderResult, error)
}

// The kinds of messages that wait.
const (
	KindDelayed   = "delayed"   // for their delivery time, or for what blocks them since
	KindUndecided = "undecided" // half messages, for the decision of their producers
)

// WaitingQuery selects messages that wait; zero values select all.
type WaitingQuery struct {
	Kind       string // needed
	From       string // WaitingPage.Next
	Limit      int
	Topic      string
	MessageID  string
	Since      time.Time // stored at or after
	Until      time.Time // stored before
	DueFrom    time.Time // of delayed ones: due at or after
	DueUntil   time.Time // of delayed ones: due before
	Gone       bool      // only those whose topic the topology does not have
	Unreadable bool      // only those that cannot be read
}

// WaitingPage is a part of the messages that wait.
type WaitingPage struct {
	Messages []WaitingMessage `json:"messages"`
	Next     string           `json:"next,omitempty"` // where to go on; empty = that was all
}

// WaitingMessage is a message that waits.
type WaitingMessage struct {
	Node      string    `json:"node"`
	Zone      string    `json:"zone"`
	Kind      string    `json:"kind"`
	Topic     string    `json:"topic,omitempty"` // empty when it cannot be read
	MessageID string    `json:"message_id,omitempty"`
	Handle    string    `json:"handle"` // its recall handle or transaction id
	Stored    time.Time `json:"stored,omitzero"`
	Due       time.Time `json:"due,omitzero"`     // of a delayed one; the beginning of its hour when it cannot be read
	Checks    int       `json:"checks,omitempty"` // of an undecided one: how often producers were asked
	Tag       string    `json:"tag,omitempty"`
	Keys      []string  `json:"keys,omitempty"`
	BodySize  int       `json:"body_size"`
	Gone      bool      `json:"gone,omitempty"`    // the topology does not have its topic
	Problem   string    `json:"problem,omitempty"` // why it cannot be read
}

// The decisions of a WaitingOrder.
const (
	OrderDrop     = "drop"     // of delayed messages: they are never delivered
	OrderCommit   = "commit"   // of undecided ones
	OrderRollback = "rollback" // of undecided ones
)

// WaitingOrder has messages decided about.
type WaitingOrder struct {
	What     string         `json:"what"`
	Why      string         `json:"why"`
	Operator string         `json:"operator,omitempty"` // who the caller says that they are
	Messages []WaitingNamed `json:"messages"`
}

// WaitingNamed names a message as WaitingMessage does.
type WaitingNamed struct {
	Topic  string `json:"topic,omitempty"`
	Handle string `json:"handle"`
}

// OrderResult is what became of a message.
type OrderResult struct {
	Handle  string `json:"handle"`
	Outcome string `json:"outcome"`         // done, gone, refused
	Error   string `json:"error,omitempty"` // why not done
}

func (s *Server) waitingRoutes(mux *http.ServeMux, d Waiting) {
	mux.HandleFunc("GET /v1/waiting", func(w http.ResponseWriter, r *http.Request) {
		servePage(s, w, r, parseWaitingQuery, func(q WaitingQuery) (WaitingPage, error) {
			page, err := d.List(r.Context(), q)
			page.Messages = orEmpty(page.Messages)
			return page, err
		})
	})
	mux.HandleFunc("POST /v1/waiting/order", func(w http.ResponseWriter, r *http.Request) {
		serveOrder(s, w, r, maxOrder, func(o WaitingOrder) ([]OrderResult, error) {
			by := inName(o.Operator, r)
			results, err := d.Order(r.Context(), by, o)
			done := 0
			for _, res := range results {
				if res.Outcome == "done" {
					done++
				}
			}
			if done > 0 {
				s.log.Warn("waiting messages decided about by order of an operator", "what", o.What, "topics", topicsOf(o.Messages), "asked", len(o.Messages), "done", done,
					"by", by, "why", o.Why)
			}
			return results, err
		})
	})
}

// maxOrder bounds the body of an order, in bytes: handles have a kilobyte or two.
const maxOrder = 1 << 20

// topicsOf returns the topics of an order, a few at most.
func topicsOf(list []WaitingNamed) string {
	var names []string
	seen := map[string]bool{}
	for _, m := range list {
		if seen[m.Topic] {
			continue
		}
		if seen[m.Topic] = true; len(names) == 8 {
			return strings.Join(append(names, "..."), " ")
		}
		names = append(names, m.Topic)
	}
	return strings.Join(names, " ")
}

// values writes the query; parseWaitingQuery reads it.
func (q WaitingQuery) values() url.Values {
	w := queryWriter{}
	w.text("kind", q.Kind)
	w.text("from", q.From)
	w.text("topic", q.Topic)
	w.page(q.Limit, q.MessageID, q.Since, q.Until)
	w.moment("due_from", q.DueFrom)
	w.moment("due_until", q.DueUntil)
	w.flag("gone", q.Gone)
	w.flag("unreadable", q.Unreadable)
	return url.Values(w)
}

func parseWaitingQuery(v url.Values) (WaitingQuery, error) {
	r := queryReader{values: v}
	q := WaitingQuery{Kind: v.Get("kind"), From: v.Get("from"), Topic: v.Get("topic"),
		DueFrom: r.moment("due_from"), DueUntil: r.moment("due_until"), Gone: r.flag("gone"), Unreadable: r.flag("unreadable")}
	q.Limit, q.MessageID, q.Since, q.Until = r.page()
	if q.Kind != KindDelayed && q.Kind != KindUndecided {
		r.fail(fmt.Errorf("kind %q: write %s or %s", q.Kind, KindDelayed, KindUndecided))
	}
	return q, r.err()
}

// Waiting asks a broker for a page of the messages that wait there.
func (c *Client) Waiting(ctx context.Context, addr string, q WaitingQuery) (WaitingPage, error) {
	return get[WaitingPage](ctx, c, addr, "/v1/waiting?"+q.values().Encode())
}

// Order has a broker decide about messages that wait there.
func (c *Client) Order(ctx context.Context, addr string, o WaitingOrder) ([]OrderResult, error) {
	return post[[]OrderResult](ctx, c, addr, "/v1/waiting/order", o)
}
