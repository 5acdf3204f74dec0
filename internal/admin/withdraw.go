package admin

import (
	"context"
	"net/http"
	"time"
)

// Flows is what a node with flows lets operators change. Methods are safe for
// concurrent use.
type Flows interface {
	// Withdraw gives up what waits for a group that the topology does not have any
	// more; a *RequestError when it has it. At nil the decision is durable.
	Withdraw(ctx context.Context, r WithdrawRequest) ([]Withdrawal, error)
}

// WithdrawRequest names a group that will not come back.
type WithdrawRequest struct {
	Group  string `json:"group"`
	DryRun bool   `json:"dry_run,omitempty"` // only say what would be given up
}

// Withdrawal is what one flow held for the group.
type Withdrawal struct {
	Node    string        `json:"node"`
	Flow    string        `json:"flow"`
	City    string        `json:"city,omitempty"`
	Lane    uint8         `json:"lane"`
	Records uint64        `json:"records"`
	Bytes   int64         `json:"bytes"`
	Oldest  time.Duration `json:"oldest"`
}

func (s *Server) flowRoutes(mux *http.ServeMux, f Flows) {
	mux.HandleFunc("POST /v1/flows/withdraw", func(w http.ResponseWriter, r *http.Request) {
		if !s.mayWrite(w, r) {
			return
		}
		var req WithdrawRequest
		if err := readBody(w, r, maxRequest, &req); err != nil || req.Group == "" {
			http.Error(w, "send {\"group\": NAME, \"dry_run\": true or false}", http.StatusBadRequest)
			return
		}
		list, err := f.Withdraw(r.Context(), req)
		if err == nil && !req.DryRun && len(list) > 0 {
			s.log.Info("records for a group that is gone withdrawn", "group", req.Group, "flows", len(list), "peer", who(r))
		}
		s.answer(w, orEmpty(list), err)
	})
}

// Withdraw asks a node to give up what waits there for a group.
func (c *Client) Withdraw(ctx context.Context, addr string, r WithdrawRequest) ([]Withdrawal, error) {
	return post[[]Withdrawal](ctx, c, addr, "/v1/flows/withdraw", r)
}
