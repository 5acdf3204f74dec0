package consumer

import "github.com/mqrouter/mqrouter/zone"

// SettledRanges returns the offsets within a part of a queue that the group has
// settled, and all there that are below least, as ranges that ascend and do not touch.
func (p *Progress) SettledRanges(g zone.ConsumerGroup, t zone.Topic, queue uint16, least uint64, in Range) []Range {
	var set rangeSet
	set.add(Range{in.From, min(least, in.To)})
	q := p.lookup(g, t, queue)
	if q == nil {
		return set
	}
	set.add(Range{in.From, min(q.floor, in.To)})
	for _, r := range q.acked[q.acked.search(in.From):] {
		if r.From >= in.To {
			break
		}
		set.add(Range{max(r.From, in.From), min(r.To, in.To)})
	}
	return set
}

// Overlaps reports whether the group has settled any offset of a range.
func (p *Progress) Overlaps(g zone.ConsumerGroup, t zone.Topic, queue uint16, r Range) bool {
	q := p.lookup(g, t, queue)
	if q == nil {
		return false
	}
	i := q.acked.search(r.From)
	return r.From < q.floor || i < len(q.acked) && q.acked[i].From < r.To
}

// SettleAll marks ranges of offsets as settled.
func (p *Progress) SettleAll(g zone.ConsumerGroup, t zone.Topic, queue uint16, ranges []Range) {
	q, _ := p.create(g, t, queue, 0)
	for _, r := range ranges {
		q.settle(r)
	}
}

// Intersect returns the offsets that are in both; both ascend.
func Intersect(a, b []Range) []Range {
	var out []Range
	for len(a) > 0 && len(b) > 0 {
		if from, to := max(a[0].From, b[0].From), min(a[0].To, b[0].To); from < to {
			out = append(out, Range{from, to})
		}
		if a[0].To < b[0].To {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return out
}

// Subtract returns the offsets of a that are not in b; both ascend.
func Subtract(a, b []Range) []Range {
	var out []Range
	for _, r := range a {
		for len(b) > 0 && b[0].To <= r.From {
			b = b[1:]
		}
		for _, x := range b {
			if x.From >= r.To {
				break
			}
			if r.From < x.From {
				out = append(out, Range{r.From, x.From})
			}
			r.From = min(x.To, r.To)
		}
		if r.From < r.To {
			out = append(out, r)
		}
	}
	return out
}
