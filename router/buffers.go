package router

import (
	"context"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// bufferSizes are the sizes of reused buffers in bytes: a small frame, and a
// full batch of 512 KiB with its header. Larger frames are rare.
var bufferSizes = [...]int{16 << 10, 576 << 10}

// buffers is the memory for frames on their way: bounded by a budget, reused.
type buffers struct {
	budget *semaphore.Weighted
	limit  int64         // bytes
	used   atomic.Int64  // bytes
	waits  atomic.Uint64 // reservations that had to wait for room
	pools  [len(bufferSizes)]sync.Pool
}

func newBuffers(bytes int64) *buffers {
	b := &buffers{budget: semaphore.NewWeighted(bytes), limit: bytes}
	for i, size := range bufferSizes {
		b.pools[i].New = func() any {
			p := make([]byte, size)
			return &p
		}
	}
	return b
}

// held is the memory of one frame. The zero value holds nothing.
type held struct {
	from  *buffers
	bytes int64
	buf   *[]byte
	pool  int
}

// reserve waits until n bytes of the budget are free, which replace what h held.
// The caller owns memory of its own and must release h.
func (b *buffers) reserve(ctx context.Context, n int, h *held) error {
	h.release()
	if !b.budget.TryAcquire(int64(n)) {
		b.waits.Add(1)
		if err := b.budget.Acquire(ctx, int64(n)); err != nil {
			return err
		}
	}
	b.used.Add(int64(n))
	h.from, h.bytes = b, int64(n)
	return nil
}

// get waits until there is room in the budget and returns a buffer of n bytes.
// What is charged is what is really held. The caller must release h.
func (b *buffers) get(ctx context.Context, n int, h *held) ([]byte, error) {
	for i, size := range bufferSizes {
		if n > size {
			continue
		}
		if err := b.reserve(ctx, size, h); err != nil {
			return nil, err
		}
		h.buf, h.pool = b.pools[i].Get().(*[]byte), i
		return (*h.buf)[:n], nil
	}
	if err := b.reserve(ctx, n, h); err != nil {
		return nil, err
	}
	return make([]byte, n), nil
}

// release gives everything back. It is idempotent.
func (h *held) release() {
	if h.from == nil {
		return
	}
	if h.buf != nil {
		h.from.pools[h.pool].Put(h.buf)
	}
	h.from.used.Add(-h.bytes)
	h.from.budget.Release(h.bytes)
	*h = held{}
}
