package rocketmq

import (
	"container/list"
	"net/netip"
	"time"
)

// cutMost looks at all requests that are arriving, so it does that once in cutEvery, and
// ends up to one in cutPart: more than come until the next time.
const (
	cutEvery = 20 * time.Millisecond
	cutPart  = 16
)

// from is the address that a request comes from.
func (r *receiving) from() netip.Addr {
	if r.link != nil && !r.link.fellow {
		return r.link.from
	}
	return clientAddr(r.Context)
}

// cutMost makes room for a request: it ends the oldest of the address that has most, if
// that has more than its own, and else those of it that arrive for longer than patience.
// It reports whether there are any.
func (m *memory) cutMost(next *receiving) bool {
	m.mu.Lock()
	if next.since.Sub(m.seen) < cutEvery {
		m.mu.Unlock()
		return false
	}
	m.seen = next.since
	counts := map[netip.Addr]int{}
	for e := m.line.Front(); e != nil; e = e.Next() {
		counts[e.Value.(*receiving).from()]++
	}
	most := next.from()
	has := counts[most]
	for at, n := range counts {
		if n > counts[most] {
			most = at
		}
	}
	young := min((counts[most]-has)/2, m.most/cutPart) // so many whatever their age
	var cut []*receiving
	var after *list.Element
	for e := m.line.Front(); e != nil && len(cut) < max(m.most/cutPart, 1); e = after {
		after = e.Next()
		r := e.Value.(*receiving)
		if len(cut) >= young && next.since.Sub(r.since) < patience {
			break // the others are younger
		}
		if r.from() == most {
			m.line.Remove(e)
			r.place = nil
			cut = append(cut, r)
		}
	}
	m.mu.Unlock()
	m.full.Add(uint64(len(cut)))
	for _, r := range cut {
		r.late.Store(true)
		r.cancel()
	}
	return len(cut) > 0
}
