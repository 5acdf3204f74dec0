package broker

import (
	"slices"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/replication/record"
)

// keepArena is the largest arena, in bytes, that is kept for later publishes; a
// rare large one must not cost memory for ever.
const keepArena = 1 << 20

// publication is what one Publish needs besides its results. Every message of
// every client passes through one, so they are used again.
type publication struct {
	op         op
	which      []int             // entry -> message
	arena      []byte            // the encoded records, one behind the other
	record     record.Record     // of the message at hand
	properties []record.Property // of the message at hand
	left       int               // messages that are not encoded yet
	halves     int               // places taken for half messages
	once       record.Once       // of the message at hand
	windows    int               // messages that have taken a place in a window; see recognize
}

// publication returns one with room for n messages.
func (b *Broker) publication(n int) *publication {
	p, ok := b.publications.Get().(*publication)
	if !ok {
		p = new(publication)
	}
	p.op.batch.Buffered, p.op.batch.Ack, p.op.inSync, p.left, p.once = true, commitlog.AckSynced, 0, n, record.Once{}
	p.op.batch.Entries = slices.Grow(p.op.batch.Entries[:0], n)
	p.which = slices.Grow(p.which[:0], n)
	return p
}

// add encodes the record at hand, which takes size bytes, as the next entry.
func (p *publication) add(size int) error {
	if cap(p.arena)-len(p.arena) < size {
		// What is in the old arena stays there. The messages of a request are of
		// one kind, so this one says how much the others need.
		p.arena = make([]byte, 0, max(size, min(size*p.left, keepArena)))
	}
	p.left--
	start := len(p.arena)
	buf, err := record.AppendRecord(p.arena, &p.record)
	if err != nil {
		return err
	}
	p.arena = buf
	p.op.batch.Entries = append(p.op.batch.Entries, commitlog.Entry{Kind: commitlog.KindOwn, Record: buf[start:len(buf):len(buf)]})
	return nil
}

// release gives the publication back, unless the log goes on using it: it does
// so with those that are answered early until they are delivered.
func (b *Broker) release(p *publication) {
	b.arrived(p)
	if (p.op.batch.Buffered || p.op.batch.EarlyDone()) && len(p.which) > 0 {
		return
	}
	clear(p.op.batch.Entries) // they point into the log's buffer
	clear(p.properties[:cap(p.properties)])
	p.record = record.Record{}
	if p.arena = p.arena[:0]; cap(p.arena) > keepArena {
		p.arena = nil
	}
	b.publications.Put(p)
}
