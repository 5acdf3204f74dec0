package rocketmqclient

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"
)

// idEpoch is where the seconds inside a message id begin (RocketMQ 5 message id, version 1).
var idEpoch = time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC)

// IDs makes message ids of 34 upper-case hex digits:
//
//	01 | 6 bytes node | 2 bytes pid | 4 bytes seconds since 2021-01-01 UTC | 4 bytes counter
//
// The node bytes are random instead of a hardware address, so that ids of two
// generators in one process differ as well. It is safe for concurrent use.
type IDs struct {
	prefix  [9]byte // version, node, pid
	start   time.Time
	counter atomic.Uint32
}

// NewIDs returns a generator whose node bytes come from random.
func NewIDs(random io.Reader) (*IDs, error) {
	g := &IDs{start: time.Now()}
	g.prefix[0] = 1
	if _, err := io.ReadFull(random, g.prefix[1:7]); err != nil {
		return nil, fmt.Errorf("rocketmqclient: message id: %w", err)
	}
	binary.BigEndian.PutUint16(g.prefix[7:], uint16(os.Getpid()))
	return g, nil
}

// Next returns an id that no other call of any generator returns: within one
// second a generator would have to make 2^32 ids.
func (g *IDs) Next() string {
	const digits = "0123456789ABCDEF"
	var raw [17]byte
	copy(raw[:], g.prefix[:])
	now := g.start.Add(time.Since(g.start)) // monotonic: a clock set back repeats no second
	binary.BigEndian.PutUint32(raw[9:], uint32(now.Sub(idEpoch)/time.Second))
	binary.BigEndian.PutUint32(raw[13:], g.counter.Add(1)-1)
	var out [34]byte
	for i, b := range raw {
		out[2*i], out[2*i+1] = digits[b>>4], digits[b&15]
	}
	return string(out[:])
}
