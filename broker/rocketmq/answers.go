package rocketmq

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/internal/bounds"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// sendTime is how long a client may take to read what was pulled, or a question about
// a half message: 16 MiB at 5 Mbit/s. Its call ends then, so that what waits for it
// is held no longer.
const sendTime = 30 * time.Second

// answers bounds the bytes of pulled messages that are being sent, over all
// connections: a pull hides nothing from others, so the same messages could be read
// again and again by clients that take none.
type answers struct {
	limit int64         // bytes
	used  atomic.Int64  // bytes
	full  atomic.Uint64 // pulls refused
}

// Usage tells how full it is.
func (a *answers) Usage() bounds.Usage {
	return bounds.Usage{Name: "client.pulled", Unit: "By", Depth: a.used.Load(), Limit: a.limit, Full: a.full.Load()}
}

// room refuses a pull that may find more than there is room for, before anything is
// read for it; nil lets it.
func (a *answers) room() *pb.Status {
	if used := a.used.Load(); used+maxReceiveBytes > a.limit {
		return a.refuse(used)
	}
	return nil
}

// take takes room for the messages until give, or says that there is none.
func (a *answers) take(got []broker.Delivery) (give func(), st *pb.Status) {
	n := int64(0)
	for i := range got {
		n += int64(len(got[i].Record.Body())) + overhead
	}
	if used := a.used.Add(n); used > a.limit {
		a.used.Add(-n)
		return nil, a.refuse(used - n)
	}
	return func() { a.used.Add(-n) }, nil
}

func (a *answers) refuse(used int64) *pb.Status {
	a.full.Add(1)
	return refuse(pb.Code_TOO_MANY_REQUESTS, fmt.Sprintf("clients have not read %d bytes of what they pulled, the limit is %d: try again", used, a.limit))
}

// hurry ends the call after sendTime unless stop is called before.
func (s *Server) hurry(ctx context.Context) (stop func()) {
	r, ok := ctx.Value(receivingKey{}).(*receiving)
	if !ok {
		return func() {}
	}
	t := time.AfterFunc(s.sendTime, func() {
		r.late.Store(true)
		r.cancel()
	})
	return func() { t.Stop() }
}
