package rocketmq

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// TestPullsThatNobodyReadsAreBounded: clients pull the same large messages again and
// again and read nothing. Beyond the limit a pull is asked to come again, with the
// offset that it came with; when the time to read is over the calls end, and all is
// given back.
func TestPullsThatNobodyReadsAreBounded(t *testing.T) {
	b := startReal(t)
	c := b.dial(t, nil)
	for i := range 64 { // some land in each queue
		want(t, send(t, c, large(fmt.Sprint("m", i), 1<<20)).GetStatus(), pb.Code_OK)
	}
	held := func(atLeast int64) {
		for b.answers.used.Load() < atLeast {
			runtime.Gosched()
		}
	}
	b.answers.limit = 24 << 20 // what two pulls hold is more
	unread := fetchBegin(t, c, fetching(at(0), 0))
	held(15 << 20)
	other := b.dial(t, nil)
	if got := fetch(t, other, fetching(at(0), 3)); got.status.GetCode() != pb.Code_TOO_MANY_REQUESTS || len(got.msgs) != 0 || got.next != 3 {
		t.Errorf("%v with %d messages, next %d; want TOO_MANY_REQUESTS and the same offset", got.status, len(got.msgs), got.next)
	}
	if u := b.answers.Usage(); u.Full != 1 || u.Depth > u.Limit {
		t.Errorf("usage %+v", u)
	}
	if got := fetchAll(t, unread); got.status.GetCode() != pb.Code_OK || len(got.msgs) < 15 {
		t.Errorf("%v with %d messages, want all once they are read", got.status, len(got.msgs))
	}
	for b.answers.used.Load() != 0 {
		runtime.Gosched()
	}
	b.sendTime = time.Millisecond
	unread = fetchBegin(t, c, fetching(at(0), 0))
	held(1)
	for b.answers.used.Load() != 0 { // for ever, if nobody ended it
		runtime.Gosched()
	}
	for {
		if _, err := unread.Recv(); err != nil {
			if status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("%v, want DEADLINE_EXCEEDED", err)
			}
			break
		}
	}
}
