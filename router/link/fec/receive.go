package fec

import "time"

// Bounds of what a receiver keeps of one peer.
const (
	openBlocks = 16          // blocks that may wait for packets or parity, bounds re-ordering
	keptShards = 8 * maxData // buffers of maxShard bytes in all: 0.7 MiB
	reportTime = 50 * time.Millisecond
	blockAge   = time.Second // a block that old is of no use to QUIC any more
)

// block is one that has not all its packets, or whose number of packets is not
// known yet.
type block struct {
	used   bool
	done   bool // nothing more to repair
	first  uint32
	at     time.Time // of its first frame
	data   int       // packets; 0 = not known yet
	have   int       // data packets that came
	parity int       // parity packets that came and are kept
	length int       // of its parity shards
	shards [maxData + maxParity][]byte
}

// delivery is a packet for QUIC.
type delivery struct {
	packet    []byte // valid until the next call of the receiver
	ecn       byte   // of a repaired packet: how it was sent
	repaired  bool
	congested bool // it was lost for want of room, or another was: QUIC is to be told
}

// receiver takes the frames of one peer apart and repairs. It is pure but for the
// buffers that it keeps. Its user guards it.
type receiver struct {
	seen   seen
	crowd  crowd
	blocks [openBlocks]block
	oldest int // the slot that is used next

	free [][]byte
	kept int // buffers in use or free

	reportAt time.Time
	reports  int
	mark     [2]uint32 // the newest packet at the last two reports

	recovered uint32
	marked    uint64 // repaired packets that were lost for want of room
	out       []delivery
	work      [maxParity * maxParity]byte
}

func newReceiver(bound time.Duration) *receiver {
	return &receiver{crowd: crowd{bound: bound}, out: make([]delivery, 0, maxParity+1)}
}

// take takes a frame and returns the packets that it brings: its own, and those
// that it lets repair.
func (r *receiver) take(now time.Time, arrived uint16, f *frame) []delivery {
	r.out = r.out[:0]
	if f.kind == typeParity {
		r.takeParity(now, r.find(now, f.seq), f)
		return r.out
	}
	r.out = append(r.out, delivery{packet: f.shard[metaSize:]})
	if f.kind == typeBare {
		return r.out
	}
	holes := r.seen.holes
	fresh := r.seen.add(f.seq)
	r.crowd.add(now, f.seq, arrived, f.sent)
	if r.seen.holes != holes {
		r.crowd.lost(now)
	}
	r.out[0].congested = r.crowd.marks(now, f.seq)
	if f.kind != typeCoded || !fresh {
		return r.out
	}
	b := r.find(now, f.seq-uint32(f.index))
	if b.done || b.shards[f.index] != nil || b.data > 0 && int(f.index) >= b.data {
		return r.out
	}
	if b.shards[f.index] = r.keep(f.shard); b.shards[f.index] != nil {
		b.have++
		r.repair(now, b)
	}
	return r.out
}

// find returns the open block; it makes one if there is none, in the place of the
// oldest. Parity alone makes a block as well: all its packets may be repaired.
func (r *receiver) find(now time.Time, first uint32) *block {
	for i := range r.blocks {
		if b := &r.blocks[i]; b.used && b.first == first {
			if now.Sub(b.at) > blockAge {
				r.release(b) // the numbers come again
				b.used = false
				break
			}
			return b
		}
	}
	b := &r.blocks[r.oldest]
	r.oldest = (r.oldest + 1) % openBlocks
	r.release(b)
	*b = block{used: true, first: first, at: now}
	return b
}

func (r *receiver) takeParity(now time.Time, b *block, f *frame) {
	i := maxData + int(f.index)
	switch {
	case b.done || b.shards[i] != nil:
		return
	case b.data == 0:
		b.data, b.length = int(f.data), len(f.shard)
		for j := b.data; j < maxData; j++ { // a packet beyond the end is none of it
			if b.shards[j] != nil {
				r.release(b)
				b.done = true
				return
			}
		}
	case b.data != int(f.data) || b.length != len(f.shard):
		return
	}
	if b.have < b.data {
		if b.shards[i] = r.keep(f.shard); b.shards[i] == nil {
			return
		}
		b.parity++
	}
	r.repair(now, b)
}

// keep copies a shard; nil when there is no room, which costs a repair.
func (r *receiver) keep(shard []byte) []byte {
	if n := len(r.free); n > 0 {
		b := r.free[n-1][:len(shard)]
		r.free = r.free[:n-1]
		copy(b, shard)
		return b
	}
	if r.kept == keptShards {
		// What waits longest gives way.
		for i := range openBlocks {
			b := &r.blocks[(r.oldest+i)%openBlocks]
			if b.used && !b.done && b.have+b.parity > 0 {
				r.release(b)
				b.done = true
				return r.keep(shard)
			}
		}
		return nil
	}
	r.kept++
	return append(make([]byte, 0, maxShard), shard...)
}

// release frees what a block keeps.
func (r *receiver) release(b *block) {
	for i, s := range b.shards {
		if s != nil {
			r.free = append(r.free, s)
			b.shards[i] = nil
		}
	}
	b.have, b.parity = 0, 0
}

// repair repairs a block if it can be, and closes it if nothing is missing.
func (r *receiver) repair(now time.Time, b *block) {
	if b.data == 0 {
		return
	}
	missing := b.data - b.have
	if missing == 0 {
		r.release(b)
		b.done = true
		return
	}
	if b.parity < missing {
		return
	}
	var lost, rows [maxParity]int
	n := 0
	for j := 0; j < b.data && n < missing; j++ {
		if b.shards[j] == nil {
			lost[n] = j
			n++
		}
	}
	p := 0
	for i := 0; i < maxParity && p < missing; i++ {
		if b.shards[maxData+i] != nil {
			rows[p] = i
			p++
		}
	}
	b.done = true // before keep looks for what to give up
	r.solve(now, b, rows[:missing], lost[:missing])
}

// solve finds the lost packets from as many parity packets, in three steps: take
// what came out of the sums, multiply with the inverse of what is left of the
// matrix, check what comes out.
func (r *receiver) solve(now time.Time, b *block, rows, lost []int) {
	n := len(lost)
	for j := range b.data {
		shard := b.shards[j]
		if shard == nil || len(shard) > b.length {
			continue
		}
		for _, i := range rows {
			addTo(b.shards[maxData+i], i, j, shard)
		}
	}
	inverse(r.work[:n*n], rows, lost)
	for d := range n {
		shard := r.keep(nil)
		if shard == nil {
			break
		}
		shard = shard[:b.length]
		clear(shard)
		for p, i := range rows {
			field.GalMulSliceXor(r.work[d*n+p], b.shards[maxData+i], shard)
		}
		b.shards[lost[d]] = shard
		r.deliver(now, shard)
	}
	r.release(b) // the buffers are free, and not written before the next call
}

// deliver hands a repaired packet on if it looks like one. QUIC authenticates it;
// this only spares it what cannot be one.
func (r *receiver) deliver(now time.Time, shard []byte) {
	size, ecn := meta(shard)
	if size == 0 || size > len(shard)-metaSize || shard[metaSize]&quicBit == 0 {
		return
	}
	r.recovered++
	congested := r.crowd.on(now)
	if congested {
		r.marked++
		r.crowd.lost(now)
	}
	r.out = append(r.out, delivery{packet: shard[metaSize : metaSize+size], ecn: ecn, repaired: true, congested: congested})
}

// due reports whether it is time for a report.
func (r *receiver) due(now time.Time) bool {
	return now.Sub(r.reportAt) >= reportTime && r.seen.started
}

// report returns what to tell the sender; what has not come within two reports
// counts as lost.
func (r *receiver) report(now time.Time) report {
	r.reportAt = now
	if r.reports++; r.reports > 2 {
		r.seen.settleBelow(r.mark[1])
	}
	r.mark = [2]uint32{r.seen.next, r.mark[0]}
	out := report{
		congested: r.crowd.on(now), overflows: r.crowd.falls.holds(now), received: r.seen.received, lost: r.seen.lost, bursts: r.seen.bursts,
		recovered: r.recovered, own: r.crowd.own, longest: uint8(min(r.seen.longest, 255)), queue: r.crowd.queue,
	}
	r.seen.longest = 0
	return out
}
