package admin

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Tails is what a member of a broker group with several nodes serves of what its log
// had and its group has not: files of its own, which the other members do not have.
// Methods are safe for concurrent use; by says who orders it.
type Tails interface {
	// List returns the tails that this node keeps.
	List(ctx context.Context) ([]Tail, error)
	// Messages returns a page of one.
	Messages(ctx context.Context, q TailQuery) (TailPage, error)
	// Drop removes one for ever; a *RequestError when there is none.
	Drop(ctx context.Context, by string, o TailDrop) ([]Tail, error)
}

// Tail is the end of a log that was dropped since the group does not have it.
type Tail struct {
	ID        string         `json:"id"`
	Group     string         `json:"group"`
	Node      string         `json:"node"` // that keeps it
	Epoch     uint64         `json:"epoch"`
	From      uint64         `json:"from"` // positions of the log
	End       uint64         `json:"end"`
	Committed uint64         `json:"committed"` // up to where the node knew the log to be committed
	Forced    bool           `json:"forced"`    // an operator had ordered a fail-over with loss
	Saved     time.Time      `json:"saved"`
	Bytes     int64          `json:"bytes"`
	Records   int            `json:"records"`
	Messages  int            `json:"messages"` // of clients
	Certain   int            `json:"certain"`  // of these: surely acknowledged
	Kinds     map[string]int `json:"kinds"`    // of records
	Topics    []TailTopic    `json:"topics,omitempty"`
	More      int            `json:"more,omitempty"` // messages of further topics
}

// TailTopic counts the messages of a topic in a tail.
type TailTopic struct {
	Topic    string `json:"topic"`
	Messages int    `json:"messages"`
	Certain  int    `json:"certain"` // surely acknowledged
}

// TailQuery selects records of a tail; zero values select all.
type TailQuery struct {
	ID        string // needed
	From      uint64 // TailPage.Next
	After     uint64 // TailPage.After
	Limit     int    // 0 = 100
	Topic     string
	MessageID string
	All       bool // also records that are no messages of clients
	Whole     bool // with the bytes of the records
}

// TailPage is a part of a tail.
type TailPage struct {
	Messages []TailMessage `json:"messages"`
	Next     uint64        `json:"next"`  // position to go on from; 0 = that was all
	After    uint64        `json:"after"` // goes with it
}

// TailMessage is a record of a tail.
type TailMessage struct {
	Position     uint64    `json:"position"` // of the log that had it, with End
	End          uint64    `json:"end"`
	After        uint64    `json:"after"`        // one above the position of the record before that is to be offered: nothing is between the two
	Kind         string    `json:"kind"`         // message, delayed, half, committed; landing, due, broker
	Acknowledged string    `json:"acknowledged"` // yes, perhaps
	Topic        string    `json:"topic,omitempty"`
	MessageID    string    `json:"message_id,omitempty"`
	Target       string    `json:"target,omitempty"` // broker group or channel that it is for
	MsgGroup     string    `json:"message_group,omitempty"`
	Tag          string    `json:"tag,omitempty"`
	Keys         []string  `json:"keys,omitempty"`
	Stored       time.Time `json:"stored,omitzero"`
	DeliverAt    time.Time `json:"deliver_at,omitzero"`
	BodySize     int       `json:"body_size"`
	Body         []byte    `json:"body,omitempty"`   // its beginning
	Not          string    `json:"not,omitempty"`    // why it is not offered again
	Record       []byte    `json:"record,omitempty"` // of TailQuery.Whole
}

// TailDrop removes a tail.
type TailDrop struct {
	ID       string `json:"id"`
	Why      string `json:"why"`
	Operator string `json:"operator,omitempty"` // who the caller says that they are
}

func (s *Server) tailRoutes(mux *http.ServeMux, d Tails) {
	mux.HandleFunc("GET /v1/tails", func(w http.ResponseWriter, r *http.Request) {
		if !r.URL.Query().Has("id") {
			none := func(url.Values) (struct{}, error) { return struct{}{}, nil }
			servePage(s, w, r, none, func(struct{}) ([]Tail, error) {
				list, err := d.List(r.Context())
				return orEmpty(list), err
			})
			return
		}
		servePage(s, w, r, parseTailQuery, func(q TailQuery) (TailPage, error) {
			page, err := d.Messages(r.Context(), q)
			page.Messages = orEmpty(page.Messages)
			return page, err
		})
	})
	mux.HandleFunc("POST /v1/tails/drop", func(w http.ResponseWriter, r *http.Request) {
		serveOrder(s, w, r, maxRequest, func(o TailDrop) ([]Tail, error) {
			by := inName(o.Operator, r)
			list, err := d.Drop(r.Context(), by, o)
			if err != nil {
				s.log.Warn("drop of a tail ordered by an operator, and refused", "tail", o.ID, "by", by, "why", o.Why, "err", err)
				return list, err
			}
			for _, t := range list {
				s.log.Warn("tail dropped by order of an operator", "tail", t.ID, "messages", t.Messages, "by", by, "why", o.Why)
			}
			return list, nil
		})
	})
}

// values writes the query; parseTailQuery reads it.
func (q TailQuery) values() url.Values {
	w := queryWriter{"id": {q.ID}}
	w.number("from", q.From)
	w.number("after", q.After)
	w.number("limit", uint64(max(q.Limit, 0)))
	w.text("topic", q.Topic)
	w.text("message", q.MessageID)
	w.flag("all", q.All)
	w.flag("whole", q.Whole)
	return url.Values(w)
}

func parseTailQuery(v url.Values) (TailQuery, error) {
	r := queryReader{values: v}
	q := TailQuery{ID: v.Get("id"), From: r.number("from", 64), After: r.number("after", 64), Limit: int(r.number("limit", 31)), Topic: v.Get("topic"),
		MessageID: v.Get("message"), All: r.flag("all"), Whole: r.flag("whole")}
	return q, r.err()
}

// Tails asks a member for the tails that it keeps.
func (c *Client) Tails(ctx context.Context, addr string) ([]Tail, error) {
	return get[[]Tail](ctx, c, addr, "/v1/tails")
}

// TailMessages asks a member for a page of a tail that it keeps.
func (c *Client) TailMessages(ctx context.Context, addr string, q TailQuery) (TailPage, error) {
	return get[TailPage](ctx, c, addr, "/v1/tails?"+q.values().Encode())
}

// DropTail has a member remove a tail.
func (c *Client) DropTail(ctx context.Context, addr string, o TailDrop) ([]Tail, error) {
	return post[[]Tail](ctx, c, addr, "/v1/tails/drop", o)
}
