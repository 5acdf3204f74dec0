package admin

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// DeadLetters is what a node with dead letters serves. Methods are safe for
// concurrent use.
type DeadLetters interface {
	// Queues returns the node's dead-letter queues in short.
	Queues(ctx context.Context) ([]DeadLetterQueue, error)
	// Letters returns a page.
	Letters(ctx context.Context, q DeadLetterQuery) (DeadLetterPage, error)
	// Replay brings letters back; a *RequestError when the request is wrong.
	// At nil everything that the results call replayed is durable.
	Replay(ctx context.Context, r ReplayRequest) ([]ReplayResult, error)
}

// DeadLetterQueue is the dead letters of a consumer group, or those that
// destinations refused, at one broker.
type DeadLetterQueue struct {
	Node    string         `json:"node"`
	City    string         `json:"city"`
	Zone    string         `json:"zone"`
	Queue   string         `json:"queue"`           // the dead-letter topic
	Group   string         `json:"group,omitempty"` // empty: parked, refused by a destination
	Held    uint64         `json:"held"`
	Pending uint64         `json:"pending"` // of these: not replayed
	Oldest  time.Time      `json:"oldest,omitzero"`
	Reasons map[string]int `json:"reasons"` // of the oldest Counted pending ones
	Counted int            `json:"counted"`
}

// DeadLetterQuery selects letters of a queue; zero values select all.
type DeadLetterQuery struct {
	Queue       string
	From        uint64 // offset
	Limit       int
	MessageID   string
	Reason      string
	City        string
	Destination string
	Tag         string
	Key         string
	Properties  []string // NAME=VALUE, all of which a letter must have
	Since       time.Time
	Until       time.Time
	Pending     bool
	Body        int // bytes of each body that are wanted
}

// DeadLetterPage is a part of a queue.
type DeadLetterPage struct {
	Letters []DeadLetter `json:"letters"`
	Next    uint64       `json:"next"` // offset to go on from; 0 = that was all
}

// DeadLetter is a message that was given up.
type DeadLetter struct {
	Node       string     `json:"node"`
	Zone       string     `json:"zone"`
	Queue      string     `json:"queue"`
	Offset     uint64     `json:"offset"`
	MessageID  string     `json:"message_id"`
	Topic      string     `json:"topic"` // that it was published to
	Reason     string     `json:"reason"`
	Why        string     `json:"why"` // the reason for people
	Group      string     `json:"group,omitempty"`
	Attempts   int        `json:"attempts,omitempty"`
	City       string     `json:"city,omitempty"` // that refused it
	Dest       string     `json:"destination,omitempty"`
	Number     uint64     `json:"number,omitempty"` // in its flow
	Born       time.Time  `json:"born,omitzero"`
	Dead       time.Time  `json:"dead"`
	Replayed   bool       `json:"replayed"`
	Tag        string     `json:"tag,omitempty"`
	Keys       []string   `json:"keys,omitempty"`
	MsgGroup   string     `json:"message_group,omitempty"`
	Properties [][]string `json:"properties,omitempty"` // pairs, in order
	BodySize   int        `json:"body_size"`
	Body       []byte     `json:"body,omitempty"` // its beginning
}

// ReplayRequest names letters of a queue.
type ReplayRequest struct {
	Queue   string   `json:"queue"`
	Offsets []uint64 `json:"offsets"`
	Force   bool     `json:"force,omitempty"`
	DryRun  bool     `json:"dry_run,omitempty"`
}

// ReplayResult is what became of a letter.
type ReplayResult struct {
	Offset    uint64 `json:"offset"`
	MessageID string `json:"message_id,omitempty"`
	Outcome   string `json:"outcome"` // replayed, already replayed, gone, refused
	Where     string `json:"where,omitempty"`
	Error     string `json:"error,omitempty"`
}

// RequestError says that a request cannot be served as it is: wrong (400), not
// there (404), another node's to answer (421), or not now (503).
type RequestError struct {
	Status int
	Err    error
}

// Error implements error.
func (e *RequestError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *RequestError) Unwrap() error { return e.Err }

// maxPropertyFilters bounds the properties of a query, each of which is looked up in
// every letter.
const maxPropertyFilters = 32

func (s *Server) deadLetterRoutes(mux *http.ServeMux, d DeadLetters) {
	mux.HandleFunc("GET /v1/dead-letters", func(w http.ResponseWriter, r *http.Request) {
		if !r.URL.Query().Has("queue") {
			none := func(url.Values) (struct{}, error) { return struct{}{}, nil }
			servePage(s, w, r, none, func(struct{}) ([]DeadLetterQueue, error) {
				list, err := d.Queues(r.Context())
				return orEmpty(list), err
			})
			return
		}
		servePage(s, w, r, parseLetterQuery, func(q DeadLetterQuery) (DeadLetterPage, error) {
			page, err := d.Letters(r.Context(), q)
			page.Letters = orEmpty(page.Letters)
			return page, err
		})
	})
	mux.HandleFunc("POST /v1/dead-letters/replay", func(w http.ResponseWriter, r *http.Request) {
		serveOrder(s, w, r, maxRequest, func(req ReplayRequest) ([]ReplayResult, error) {
			results, err := d.Replay(r.Context(), req)
			if err == nil {
				s.log.Info("dead letters replayed", "topic", req.Queue, "letters", len(results), "dry", req.DryRun, "peer", who(r))
			}
			return results, err
		})
	})
}

// servePage answers a query about what the log holds.
func servePage[Q, P any](s *Server, w http.ResponseWriter, r *http.Request, parse func(url.Values) (Q, error), page func(Q) (P, error)) {
	if !atHome(w, r) {
		return
	}
	q, err := parse(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	place := s.admit(w)
	if place == nil {
		return
	}
	defer place.leave()
	p, err := page(q)
	s.answer(place, p, err)
}

// serveOrder carries out an order about messages that the log holds, whose body has no
// more bytes than limit, and answers with what became of each.
func serveOrder[O, R any](s *Server, w http.ResponseWriter, r *http.Request, limit int64, carryOut func(O) ([]R, error)) {
	if !s.mayWrite(w, r) {
		return
	}
	var o O
	if err := readBody(w, r, limit, &o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	place := s.admit(w)
	if place == nil {
		return
	}
	defer place.leave()
	results, err := carryOut(o)
	s.answer(place, orEmpty(results), err)
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// admit takes one of the places for requests that read the log, once the whole request is
// there: who sends it slowly keeps nobody out. nil says that there is none; w has the
// answer then.
func (s *Server) admit(w http.ResponseWriter) *turn {
	place := s.searches.take(w)
	if place == nil {
		http.Error(w, fmt.Sprintf("%d requests are reading the log here, which is the limit: try again", maxSearches), http.StatusServiceUnavailable)
	}
	return place
}

// values writes the query; parseLetterQuery reads it.
func (q DeadLetterQuery) values() url.Values {
	w := queryWriter{"queue": {q.Queue}}
	w.page(q.Limit, q.MessageID, q.Since, q.Until)
	w.number("from", q.From)
	w.number("body", uint64(max(q.Body, 0)))
	w.text("reason", q.Reason)
	w.text("city", q.City)
	w.text("destination", q.Destination)
	w.text("tag", q.Tag)
	w.text("key", q.Key)
	if len(q.Properties) > 0 {
		w["property"] = q.Properties
	}
	w.flag("pending", q.Pending)
	return url.Values(w)
}

func parseLetterQuery(v url.Values) (DeadLetterQuery, error) {
	r := queryReader{values: v}
	q := DeadLetterQuery{
		Queue: v.Get("queue"), From: r.number("from", 64), Body: int(r.number("body", 31)), Reason: v.Get("reason"), City: v.Get("city"), Destination: v.Get("destination"),
		Tag: v.Get("tag"), Key: v.Get("key"), Properties: v["property"], Pending: r.flag("pending"),
	}
	q.Limit, q.MessageID, q.Since, q.Until = r.page()
	if len(q.Properties) > maxPropertyFilters {
		r.fail(fmt.Errorf("%d properties; at most %d are allowed", len(q.Properties), maxPropertyFilters))
	}
	for _, p := range q.Properties {
		if i := strings.IndexByte(p, '='); i < 1 {
			r.fail(fmt.Errorf("property %q: write NAME=VALUE", p))
		}
	}
	return q, r.err()
}

// DeadLetterQueues asks a broker for its dead-letter queues.
func (c *Client) DeadLetterQueues(ctx context.Context, addr string) ([]DeadLetterQueue, error) {
	return get[[]DeadLetterQueue](ctx, c, addr, "/v1/dead-letters")
}

// DeadLetters asks a broker for a page of dead letters.
func (c *Client) DeadLetters(ctx context.Context, addr string, q DeadLetterQuery) (DeadLetterPage, error) {
	return get[DeadLetterPage](ctx, c, addr, "/v1/dead-letters?"+q.values().Encode())
}

// Replay has a broker bring dead letters back.
func (c *Client) Replay(ctx context.Context, addr string, r ReplayRequest) ([]ReplayResult, error) {
	return post[[]ReplayResult](ctx, c, addr, "/v1/dead-letters/replay", r)
}
