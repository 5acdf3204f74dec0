package consul

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/mqrouter/mqrouter/replication/coordinator/conformance"
	"github.com/mqrouter/mqrouter/replication/record"
)

// hasty is an agent that does not block: it answers every query at once, with one index.
type hasty struct {
	index string // of its answers; empty: it names none
	asked atomic.Int64
}

func (h *hasty) RoundTrip(asked *http.Request) (*http.Response, error) {
	if err := asked.Context().Err(); err != nil {
		return nil, err
	}
	h.asked.Add(1)
	r := &http.Response{StatusCode: http.StatusNotFound, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(""))}
	if h.index != "" {
		r.Header.Set("X-Consul-Index", h.index)
		r.Header.Set("X-Consul-LastContact", "0")
		r.Header.Set("X-Consul-KnownLeader", "true")
	}
	return r, nil
}

// TestT5_AWatchDoesNotSpin has an agent, or a proxy before it, that names no index, or the
// same one, and answers at once: it is asked some times a second, by each watch.
func TestT5_AWatchDoesNotSpin(t *testing.T) {
	for _, index := range []string{"", "0", "7"} {
		synctest.Test(t, func(t *testing.T) {
			agent := &hasty{index: index}
			client, err := api.NewClient(&api.Config{Address: "consul:1", HttpClient: &http.Client{Transport: agent}})
			if err != nil {
				t.Fatal(err)
			}
			c, err := New(Options{Client: client, Prefix: "p", Self: "n1", Group: conformance.Group, Groups: conformance.Groups,
				Lineage: func() record.LineageID { return record.LineageID(rand.Uint64() | 1) }})
			if err != nil {
				t.Fatal(err)
			}
			const span = 20 * time.Second
			ctx, cancel := context.WithTimeout(t.Context(), span)
			defer cancel()
			done := make(chan struct{})
			go func() {
				defer close(done)
				for ctx.Err() == nil {
					if _, err := c.Watch(ctx, conformance.Name, 0); err != nil { // else it ends with WatchTime
						pause(ctx, retryTime) // as a Member does
					}
				}
			}()
			_ = c.Run(ctx)
			<-done
			if n, most := agent.asked.Load(), 2*int64(span/retryTime)+20; n > most {
				t.Errorf("index %q: asked %d times in %s, by two watches; at most %d", index, n, span, most)
			}
		})
	}
}
