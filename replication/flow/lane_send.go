package flow

import (
	"context"
	"errors"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// keepBuffer is the largest buffer, in bytes, that a lane keeps for the next
// frame; a rare large record must not cost memory for ever.
const keepBuffer = 1 << 20

// send sends one frame. It keeps the payload's memory for the next one.
func (l *lane) send(ctx context.Context, c *conn, t wire.Type, payload []byte) error {
	return l.sendFlagged(ctx, c, t, 0, payload)
}

func (l *lane) sendFlagged(ctx context.Context, c *conn, t wire.Type, flags uint16, payload []byte) error {
	err := c.stream.Send(ctx, wire.Frame{Type: t, Flags: flags, Session: c.id, Class: l.leg.Flow.Class, Hops: l.hops, Payload: payload})
	l.payload = payload[:0]
	if cap(payload) > keepBuffer {
		l.payload = nil
	}
	return err
}

func (l *lane) sendOpen(ctx context.Context, c *conn, cursor uint64) error {
	marks := l.state.Lineage
	if len(marks) > wire.MaxMarks {
		marks = marks[len(marks)-wire.MaxMarks:]
	}
	o := wire.Open{
		Flow: l.leg.Flow, City: l.leg.City, Group: l.leg.Group, OriginCity: l.o.city,
		Cursor: cursor, Oldest: l.state.Oldest, Head: l.state.Head, MaxRecord: l.maxRecord,
		Residency: l.nextResidency(cursor),
	}
	switch {
	case l.state.Landed:
		o.Role = wire.OpenHolder
	case l.leg.Flow.Channel:
		o.Role = wire.OpenOwner
	}
	for _, m := range marks {
		o.Lineage = append(o.Lineage, wire.Mark(m))
	}
	if t := l.src.Topology(); t != nil {
		o.RouteEpoch = t.Epoch
	}
	l.hops = 0 // what an Open has passed counts for all of its session
	return l.send(ctx, c, wire.TypeOpen, o.Append(l.payload[:0]))
}

// sendNext sends what the credit allows of the next batch. It reports whether
// it sent anything.
func (l *lane) sendNext(ctx context.Context, c *conn) (bool, error) {
	if l.s.next > l.s.head {
		return false, nil
	}
	count, bytes := l.s.room()
	if count == 0 {
		return false, nil
	}
	if l.s.next < l.state.Oldest {
		if l.pulled {
			return false, refused(wire.CodeNotHeld, "number %d is no longer here", l.s.next)
		}
		return true, l.sendGap(ctx, c)
	}
	if p := l.packedAhead(count, bytes); p != nil {
		return true, l.sendPacked(ctx, c, p)
	}
	items, err := l.src.Read(l.leg, l.s.next, count, bytes, l.items[:0])
	if err == nil && len(items) == 0 {
		err = errors.New("flow: the source has no record of a number below its head")
	}
	if errors.Is(err, ErrTrimmed) {
		before := l.state.Oldest
		if err := l.look(); err != nil {
			return false, err
		}
		if l.state.Oldest > before {
			return true, nil
		}
	}
	if err != nil {
		return false, err
	}
	defer func() {
		clear(items) // drop the records
		l.items = items[:0]
	}()
	if items[0].Number != l.s.next {
		return false, errors.New("flow: the source read another number than asked")
	}
	if items[0].Lineage != 0 {
		if row, _ := markAt(l.state.Lineage, items[0].Number); row.ID != items[0].Lineage {
			return false, errOtherTable
		}
	}
	return l.sendItems(ctx, c, items, bytes)
}

// sendItems sends the items run by run until the credit's bytes are used.
func (l *lane) sendItems(ctx context.Context, c *conn, items []Item, bytes int) (sentAny bool, err error) {
	for len(items) > 0 {
		r := cut(items, bytes, l.residency, l.o.tracer.On())
		if !r.skip && r.raw > maxData {
			r.items = items[:1]
			if err := l.sendRange(ctx, c, wire.TypeSkip, items[0].Number, record.ReasonTooLarge); err != nil {
				return false, err
			}
			return true, nil
		}
		if left := l.s.credit.Bytes - l.s.bytes; uint64(r.raw) > left {
			if !sentAny && l.s.tooLarge(uint64(r.raw)) {
				return false, l.larger()
			}
			return sentAny, nil
		}
		if sentAny && r.raw > bytes {
			return true, nil // the next round gives it a frame of its own
		}
		last := r.items[len(r.items)-1].last()
		if r.skip {
			err = l.sendSkipped(ctx, c, &r, last)
		} else {
			l.residency = r.residency
			err = l.sendBatch(ctx, c, &r)
		}
		if err != nil {
			return false, err
		}
		sentAny = true
		if l.s.next <= last {
			return true, nil // the credit ended inside a range
		}
		bytes -= r.raw
		items = items[len(r.items):]
		if bytes <= 0 {
			break
		}
	}
	return true, nil
}

// sendBatch sends records, compressed when that pays.
func (l *lane) sendBatch(ctx context.Context, c *conn, r *run) error {
	first, last := r.items[0].Number, r.items[len(r.items)-1].Number
	row, _ := markAt(l.state.Lineage, first)
	b := wire.Batch{
		First: first, Count: uint32(len(r.items)), Cursor: l.told(), Lineage: row.ID, LineageEpoch: row.Epoch,
		Path: l.path, Residency: r.residency,
	}
	if l.state.Landed {
		b.Path, l.hops = r.items[0].Path, r.items[0].Hops
	}
	if !l.near && !l.rawOnly {
		if t, d, has := l.dictionaryFor(r); d != nil {
			return l.sendWith(ctx, c, t, d, has, &b, r)
		}
	}
	if l.near || l.rawOnly || !l.thrift.worth(r.raw) {
		return l.sendData(ctx, c, &b, last, r.raw, &r.traced, appendRaw(l.payload[:0], &b, r))
	}
	l.scratch = appendData(l.scratch[:0], r)
	l.squeezed = l.o.encoder.EncodeAll(l.scratch, l.squeezed[:0])
	b.RawSize, b.Data = uint32(r.raw), l.scratch
	if l.thrift.saw(r.raw, len(l.squeezed)) {
		b.Codec, b.Data = wire.CodecZstd, l.squeezed
		if l.leg.Flow.Channel && !l.state.Landed && l.s.whole(last, r.raw) {
			l.o.cache.put(l.leg.Flow, &packed{
				first: first, count: len(r.items), lineage: row, residency: r.residency,
				raw: r.raw, data: append([]byte(nil), l.squeezed...), traced: r.traced,
			})
		}
	}
	err := l.sendData(ctx, c, &b, last, r.raw, &r.traced, b.Append(l.payload[:0]))
	if cap(l.scratch) > keepBuffer || cap(l.squeezed) > keepBuffer {
		l.scratch, l.squeezed = nil, nil
	}
	return err
}

func (l *lane) sendData(ctx context.Context, c *conn, b *wire.Batch, last uint64, raw int, t *traced, payload []byte) error {
	var flags uint16
	if l.o.tracer.On() && t.count > 0 {
		flags, payload = wire.FlagTrace, l.traces.begin(l, t, payload)
	}
	size := len(payload)
	if err := l.sendFlagged(ctx, c, wire.TypeBatch, flags, payload); err != nil {
		return err
	}
	l.s.sent(time.Now(), last, raw)
	l.met.sent(int(b.Count), raw, size)
	return nil
}

// packedAhead returns the next batch in the form in which another leg of the
// channel has sent it, when it fits.
func (l *lane) packedAhead(count, bytes int) *packed {
	if !l.leg.Flow.Channel || l.near || l.rawOnly || l.state.Landed {
		return nil
	}
	p := l.o.cache.get(l.leg.Flow, l.s.next)
	if p == nil || p.count > count || p.raw > bytes || !isIn(p.residency, l.leg.City) {
		return nil
	}
	if row, ok := markAt(l.state.Lineage, p.first); !ok || row != p.lineage {
		return nil
	}
	return p
}

func (l *lane) sendPacked(ctx context.Context, c *conn, p *packed) error {
	b := wire.Batch{
		First: p.first, Count: uint32(p.count), Cursor: l.told(), Lineage: p.lineage.ID, LineageEpoch: p.lineage.Epoch,
		Path: l.path, Residency: p.residency, Codec: wire.CodecZstd, RawSize: uint32(p.raw), Data: p.data,
	}
	return l.sendData(ctx, c, &b, p.first+uint64(p.count)-1, p.raw, &p.traced, b.Append(l.payload[:0]))
}

// sendGap tells the destination that numbers can no longer be read.
func (l *lane) sendGap(ctx context.Context, c *conn) error {
	through := min(l.state.Oldest-1, l.s.head, l.s.credit.Number)
	through = rowEnd(l.state.Lineage, l.s.next, through)
	l.log.Warn("numbers are trimmed, telling the destination of a gap", "first", l.s.next, "through", through)
	l.met.gap(through - l.s.next + 1)
	return l.sendRange(ctx, c, wire.TypeGap, through, record.ReasonTrimmed)
}

// sendSkipped settles numbers whose records this destination does not get, as far
// as the credit goes.
func (l *lane) sendSkipped(ctx context.Context, c *conn, r *run, last uint64) error {
	last = min(last, l.s.credit.Number)
	reason := r.reason
	if reason == record.ReasonNone {
		reason = record.ReasonExcluded
	}
	if !r.gap {
		return l.sendRange(ctx, c, wire.TypeSkip, last, reason)
	}
	if missed, ok := l.gaps.Allow(time.Now()); ok {
		l.log.Warn("numbers were declared lost, telling the destination of a gap",
			"first", l.s.next, "through", last, "reason", int(reason), "suppressed", missed)
	}
	l.met.gap(last - l.s.next + 1)
	return l.sendRange(ctx, c, wire.TypeGap, last, reason)
}

// sendRange settles the numbers from the next one to through without records.
func (l *lane) sendRange(ctx context.Context, c *conn, t wire.Type, through uint64, reason record.Reason) error {
	row, _ := markAt(l.state.Lineage, l.s.next)
	p := wire.Skip{
		First: l.s.next, Through: through, Reason: reason,
		Lineage: row.ID, LineageEpoch: row.Epoch, Cursor: l.told(),
	}
	if err := l.send(ctx, c, t, p.Append(l.payload[:0])); err != nil {
		return err
	}
	l.s.sent(time.Now(), through, 0)
	return nil
}

// told returns the cursor that frames name: what the destination may forget. One
// that was asked to serve another's flow records nothing.
func (l *lane) told() uint64 {
	if l.pulled {
		return 0
	}
	return l.s.cursor
}
