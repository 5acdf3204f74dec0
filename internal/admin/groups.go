package admin

import (
	"context"
	"net/http"
	"time"
)

// Groups is what a node with consumer groups lets operators change. Methods are safe
// for concurrent use.
type Groups interface {
	// Reset has a consumer group go on elsewhere in a topic; a *RequestError when the
	// request is wrong, with 404 when the group does not consume the topic here. At
	// nil it is durable.
	Reset(ctx context.Context, r ResetRequest) ([]GroupReset, error)
}

// ResetRequest says where a consumer group is to go on.
type ResetRequest struct {
	Group   string    `json:"group"`
	Topic   string    `json:"topic"`
	Queue   *int      `json:"queue,omitempty"` // nil: all queues
	To      string    `json:"to"`              // earliest, latest, time, offset
	Time    time.Time `json:"time,omitzero"`   // of time
	Offset  uint64    `json:"offset,omitempty"`
	Preview bool      `json:"preview,omitempty"` // only say what would happen
}

// GroupReset is what a reset does in a queue, as it was when it was prepared.
type GroupReset struct {
	Node    string `json:"node"`
	Zone    string `json:"zone"`
	Queue   int    `json:"queue"`
	First   uint64 `json:"first"` // offsets held: from here
	Next    uint64 `json:"next"`  // up to here
	From    uint64 `json:"from"`  // everything below was consumed
	To      uint64 `json:"to"`    // everything below will be as consumed, nothing from here on
	Again   uint64 `json:"again"`
	Skipped uint64 `json:"skipped"`
	InHands int    `json:"in_hands"` // with consumers, or waiting for a retry; they come again
}

func (s *Server) groupRoutes(mux *http.ServeMux, g Groups) {
	mux.HandleFunc("POST /v1/groups/reset", func(w http.ResponseWriter, r *http.Request) {
		if !s.mayWrite(w, r) {
			return
		}
		var req ResetRequest
		if err := readBody(w, r, maxRequest, &req); err != nil || req.Group == "" || req.Topic == "" {
			http.Error(w, "send {\"group\": NAME, \"topic\": NAME, \"to\": earliest, latest, time or offset}", http.StatusBadRequest)
			return
		}
		place := s.admit(w) // a time is looked up in the log
		if place == nil {
			return
		}
		defer place.leave()
		list, err := g.Reset(r.Context(), req)
		if err == nil && !req.Preview {
			s.log.Info("consumer group reset", "group", req.Group, "topic", req.Topic, "to", req.To, "queues", len(list), "peer", who(r))
		}
		s.answer(place, orEmpty(list), err)
	})
}

// ResetGroup has a broker let a consumer group go on elsewhere.
func (c *Client) ResetGroup(ctx context.Context, addr string, r ResetRequest) ([]GroupReset, error) {
	return post[[]GroupReset](ctx, c, addr, "/v1/groups/reset", r)
}
