package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
)

// reachTimeout is how long a broker of a zone may take to accept a connection
// before the next one is tried.
const reachTimeout = time.Second

// firstOf opens a client at the first of the addresses where that succeeds: brokers that
// are down, and replicas of a group without a master, are passed over. A refusal is the
// answer of all. Each address but the last has an equal share of the time that is left,
// and a second to accept the connection. It returns how many addresses were tried.
func firstOf[T any](ctx context.Context, timeout time.Duration, addrs []string, open func(ctx context.Context, addr string) (T, error)) (client T, tried int, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	end, _ := ctx.Deadline()
	var errs []error
	for i, addr := range addrs {
		share, done := context.WithTimeout(ctx, time.Until(end)/time.Duration(len(addrs)-i))
		if len(addrs) == 1 || reaches(share, addr) {
			client, err = open(share, addr)
		} else {
			err = errors.New("it accepts no connection")
		}
		done()
		if err == nil || final(err) {
			if err != nil {
				err = fmt.Errorf("connect to %s: %w", addr, err)
			}
			return client, i + 1, err
		}
		errs = append(errs, fmt.Errorf("connect to %s: %w", addr, err))
	}
	return client, len(addrs), errors.Join(errs...)
}

// producer returns a producer of the topic by way of whichever of the addresses serves,
// for callers that share it; cfg says the rest. The caller closes it.
func (p *endpointFlags) producer(addrs []string, cfg rocketmqclient.Config, within time.Duration, errOut io.Writer, topics ...string) *persistent[*rocketmqclient.Producer] {
	cfg = p.signs(cfg)
	return newPersistent(addrs, within, errOut, func(ctx context.Context, addr string) (*rocketmqclient.Producer, error) {
		at := cfg
		at.Endpoint = addr
		return rocketmqclient.NewProducer(ctx, at, topics...)
	})
}

func reaches(ctx context.Context, addr string) bool {
	d := net.Dialer{Timeout: reachTimeout}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// final reports whether another broker of the zone would say the same, or the client does.
func final(err error) bool {
	var refused *rocketmqclient.StatusError
	if errors.As(err, &refused) {
		return !refused.Temporary()
	}
	return errors.Is(err, rocketmqclient.ErrNoQueue) || errors.Is(err, rocketmqclient.ErrBound)
}
