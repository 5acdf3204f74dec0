package flow

import (
	"container/list"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	// minPacked is the data below which compressing is not tried: a frame of one
	// packet does not get faster. Bytes; an Ethernet packet less headers.
	minPacked = 1200
	// goodRatio is the packed size, in parts of the raw one, above which packing
	// does not pay for the work at both ends.
	goodRatio = 0.9
	// retryAfter is how many batches go out raw before a flow that did not pack
	// well is tried again.
	retryAfter = 64
)

// thrift decides for one leg whether packing a batch is worth trying, from how
// well earlier ones packed. Pure; it belongs to the lane.
type thrift struct {
	ratio float64 // moving average of packed/raw; 0 = nothing seen yet
	rest  int     // batches to send raw before the next try
}

func (t *thrift) worth(size int) bool {
	if size < minPacked {
		return false
	}
	if t.rest > 0 {
		t.rest--
		return false
	}
	return true
}

func (t *thrift) saw(raw, packed int) (pays bool) {
	r := float64(packed) / float64(raw)
	if t.ratio == 0 {
		t.ratio = r
	}
	t.ratio += (r - t.ratio) / 8
	if t.ratio > goodRatio {
		t.rest, t.ratio = retryAfter, 0
	}
	return r <= goodRatio
}

// newEncoder returns the encoder of an Outbox; it starts no goroutine and
// EncodeAll is safe for concurrent use.
func newEncoder() (*zstd.Encoder, error) {
	return zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2),
		zstd.WithEncoderCRC(false), zstd.WithWindowSize(512<<10), zstd.WithLowerEncoderMem(true))
}

// newDecoder returns the decoder of an Inbox. DecodeAll writes no more than the
// capacity it is given and is safe for concurrent use.
func newDecoder() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecodeAllCapLimit(true),
		zstd.WithDecoderMaxMemory(wire.MaxRawSize), zstd.WithDecoderLowmem(true))
}

// packed is a batch in the form that every leg of a channel sends.
type packed struct {
	first     uint64
	count     int
	lineage   wire.Mark
	residency []zone.City
	raw       int
	data      []byte // compressed; immutable
	traced    traced // its records that ask for spans
}

type packedKey struct {
	flow  record.FlowID
	first uint64
}

// packedCache keeps compressed full batches for the legs that come later, least
// recently used out first. Safe for concurrent use.
type packedCache struct {
	limit int // bytes

	mu    sync.Mutex
	bytes int // guarded by mu
	order list.List
	by    map[packedKey]*list.Element
}

type packedEntry struct {
	key packedKey
	p   *packed
}

func newPackedCache(limit int) *packedCache {
	return &packedCache{limit: limit, by: make(map[packedKey]*list.Element)}
}

func (c *packedCache) get(f record.FlowID, first uint64) *packed {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.by[packedKey{f, first}]
	if e == nil {
		return nil
	}
	c.order.MoveToFront(e)
	return e.Value.(*packedEntry).p
}

// put keeps p, whose data must not change any more.
func (c *packedCache) put(f record.FlowID, p *packed) {
	key := packedKey{f, p.first}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(p.data) > c.limit || c.by[key] != nil {
		return
	}
	c.by[key] = c.order.PushFront(&packedEntry{key, p})
	c.bytes += len(p.data)
	for c.bytes > c.limit {
		last := c.order.Back()
		e := c.order.Remove(last).(*packedEntry)
		delete(c.by, e.key)
		c.bytes -= len(e.p.data)
	}
}
