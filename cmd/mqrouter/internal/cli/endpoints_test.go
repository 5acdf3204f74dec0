package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/freeport"
	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// A broker that is down, and a replica without a master, are passed over; a refusal is the
// answer of all, and what none of them answers names each.
func TestZoneMeansABrokerThatServes(t *testing.T) {
	listen := func() string {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		return ln.Addr().String()
	}
	gone := fmt.Sprintf("127.0.0.1:%d", freeport.Take(t, 1)[0])
	dead, hung, busy, good, refuses := gone, listen(), listen(), listen(), listen()
	const timeout = 4 * time.Minute
	var share time.Duration // of the time that the one that hangs has
	open := func(ctx context.Context, addr string) (string, error) {
		switch addr {
		case hung:
			end, _ := ctx.Deadline()
			share = time.Until(end)
			return "", context.DeadlineExceeded
		case busy:
			return "", &rocketmqclient.StatusError{Code: pb.Code_TOO_MANY_REQUESTS, Text: "no master"}
		case refuses:
			return "", &rocketmqclient.StatusError{Code: pb.Code_TOPIC_NOT_FOUND, Text: "no such topic"}
		}
		return addr, nil
	}
	got, tried, err := firstOf(t.Context(), timeout, []string{dead, hung, busy, good, refuses}, open)
	if err != nil || got != good || tried != 4 {
		t.Errorf("%q after %d, %v; want the one that serves", got, tried, err)
	}
	if share > timeout/4 {
		t.Errorf("one that hangs has %v of %v before it and three others", share, timeout)
	}
	_, tried, err = firstOf(t.Context(), timeout, []string{busy, refuses, good}, open)
	var refused *rocketmqclient.StatusError
	if !errors.As(err, &refused) || refused.Code != pb.Code_TOPIC_NOT_FOUND || tried != 2 {
		t.Errorf("%v after %d; want the refusal, which the next would repeat", err, tried)
	}
	if _, _, err = firstOf(t.Context(), timeout, []string{dead, busy}, open); err == nil || !strings.Contains(err.Error(), dead) || !strings.Contains(err.Error(), busy) {
		t.Errorf("%v; want an error that names both", err)
	}
}
