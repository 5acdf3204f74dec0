package admin

import (
	"cmp"
	"context"
	"errors"
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
	// Offer offers a part of one to the group's master. A *RequestError when there is none,
	// when another offer has begun, or when the master does not answer: what was asked for
	// may have been done then.
	Offer(ctx context.Context, by string, o TailOffer) ([]TailOffered, error)
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
	Waiting   int            `json:"waiting"`        // messages that were not offered again, or refused
	Offer     *TailProgress  `json:"offer,omitempty"`
	Damage    string         `json:"damage,omitempty"` // why its file cannot be read: then the id is the file's name, and only Node and Bytes are told
}

// TailProgress is what became of a tail's messages when it was offered again last.
type TailProgress struct {
	Offered    int          `json:"offered"`    // stored again, now or before
	Duplicates int          `json:"duplicates"` // published again by their clients since
	Decided    int          `json:"decided"`    // decided since, or kept by the group
	Not        int          `json:"not"`        // the tail says that they are not to be: recalled, rolled back, or committed in it
	Refused    int          `json:"refused"`
	Reasons    []TailReason `json:"reasons,omitempty"`   // of what was refused
	Under      bool         `json:"under_way,omitempty"` // it did not come to the end
	Topic      string       `json:"topic,omitempty"`     // it was of this one only
	By         string       `json:"by"`
	Why        string       `json:"why"`
	At         time.Time    `json:"at"`
}

// TailReason says how many messages were refused for it.
type TailReason struct {
	Text     string `json:"text"`
	Messages int    `json:"messages"`
}

// TailOffer orders a part of a tail to be offered again: from a position on, as much as
// one request does.
type TailOffer struct {
	ID       string `json:"id"`
	Topic    string `json:"topic,omitempty"` // only messages of it
	From     uint64 `json:"from"`            // TailOffered.Next; 0 = from its beginning
	After    uint64 `json:"after"`           // TailOffered.After
	Dry      bool   `json:"dry_run,omitempty"`
	Reroute  bool   `json:"reroute,omitempty"` // also what left for another destination than it would now
	Why      string `json:"why"`
	Operator string `json:"operator,omitempty"` // who the caller says that they are
}

// TailOffered is what became of a part of a tail.
type TailOffered struct {
	Next     uint64         `json:"next"` // position to go on from; 0 = that was all
	After    uint64         `json:"after"`
	Bytes    int            `json:"bytes"`    // of the records that were looked at
	Outcomes map[string]int `json:"outcomes"` // records by what became of them
	Refused  []TailRefused  `json:"refused,omitempty"`
	Held     string         `json:"held,omitempty"` // why the record at Next has to be offered later
}

// TailRefused is a record that was refused.
type TailRefused struct {
	Topic     string `json:"topic"`
	MessageID string `json:"message_id"`
	Kind      string `json:"kind"`
	Why       string `json:"why"`
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
	Body         []byte    `json:"body,omitempty"`       // its beginning
	Not          string    `json:"not,omitempty"`        // why it is not offered again
	SettledBy    []string  `json:"settled_by,omitempty"` // consumer groups known to have settled it there: they do not get it again
	Record       []byte    `json:"record,omitempty"`     // of TailQuery.Whole
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
	mux.HandleFunc("POST /v1/tails/offer", func(w http.ResponseWriter, r *http.Request) {
		serveOrder(s, w, r, maxRequest, func(o TailOffer) ([]TailOffered, error) { return d.Offer(r.Context(), inName(o.Operator, r), o) })
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

// OfferTail has a member offer a part of a tail to its group's master.
func (c *Client) OfferTail(ctx context.Context, addr string, o TailOffer) (TailOffered, error) {
	list, err := post[[]TailOffered](ctx, c, addr, "/v1/tails/offer", o)
	if err != nil || len(list) != 1 {
		return TailOffered{}, cmp.Or(err, errOneOffer)
	}
	return list[0], nil
}

var errOneOffer = errors.New("the answer is not of one offer")

// DropTail has a member remove a tail.
func (c *Client) DropTail(ctx context.Context, addr string, o TailDrop) ([]Tail, error) {
	return post[[]Tail](ctx, c, addr, "/v1/tails/drop", o)
}
