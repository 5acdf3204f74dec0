package sim

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/broadcast"
	"github.com/mqrouter/mqrouter/zone"
)

// quiet waits until every acknowledged message has come to every consumer group,
// and fails the test when that takes longer than the limit.
func (w *world) quiet(limit time.Duration) time.Duration {
	w.t.Helper()
	took, late := w.await(limit)
	for _, text := range late {
		w.t.Error(text)
	}
	return took
}

// await is quiet without a verdict: it returns what did not come.
func (w *world) await(limit time.Duration) (took time.Duration, late []string) {
	start, last := time.Now(), 0
	for {
		open := w.hist.open()
		if len(open) == 0 {
			return time.Since(start), nil
		}
		if n := len(open); n != last {
			last = n
			w.log.Info("messages are under way", "n", n, "first", open[0])
		}
		if time.Since(start) > limit {
			late = open[:min(len(open), 20)]
			return limit, append(late, fmt.Sprintf("I1: %d messages did not come within %v", len(open), limit))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// check reports every broken promise.
func (w *world) check() {
	w.t.Helper()
	for _, text := range w.verdict() {
		w.t.Error(text)
	}
}

// verdict returns every broken promise, but for what await tells.
func (w *world) verdict() []string {
	w.checkOrder()
	return append(w.checkCaches(), w.hist.broken()...)
}

// checkOrder is I3: of two messages of one stream and one order, of which the
// first was acknowledged before the second was published, the first landed first.
func (w *world) checkOrder() {
	type lane struct {
		broker string
		life   int64
		topic  string
		stream string
		order  string
	}
	type landed struct {
		p  *published
		at place
	}
	h := w.hist
	h.mu.Lock()
	defer h.mu.Unlock()
	lanes := map[lane][]landed{}
	for l, at := range h.landed {
		if p := h.byID[l.id]; p != nil && p.order != "" {
			k := lane{l.broker, l.life, l.topic, p.stream, p.order}
			lanes[k] = append(lanes[k], landed{p, at})
		}
	}
	for k, all := range lanes {
		slices.SortFunc(all, func(a, b landed) int { return cmp.Compare(a.at.offset, b.at.offset) })
		newest := all[0].p
		for _, x := range all[1:] {
			if x.p.acked && x.p.ended < newest.begun {
				h.fault("I3: %s landed in %s behind %s, which was published after it (%s)", x.p.id, k.broker, newest.id, k.order)
			}
			if x.p.seq > newest.seq {
				newest = x.p
			}
		}
	}
}

// checkCaches is I6 at the end: each cache has the newest change of each key, or
// was told that it misses some and has dropped what may be stale.
func (w *world) checkCaches() (broken []string) {
	for _, c := range w.top.Cities {
		s := w.caches[c.Name]
		if s == nil {
			continue
		}
		for _, key := range w.hist.keys {
			if text := w.waitCache(s, key); text != "" {
				broken = append(broken, fmt.Sprintf("I6: the cache of %s: %s", c.Name, text))
			}
		}
	}
	return broken
}

// waitCache gives a cache time to come to the newest change.
func (w *world) waitCache(s *store, key string) string {
	text := ""
	for range 600 {
		e, err := s.Get(context.Background(), key)
		if err != nil {
			return err.Error()
		}
		flushed, _ := s.told()
		if text = w.hist.newest(key, &e, flushed.Sub(w.began)); text == "" {
			return ""
		}
		time.Sleep(50 * time.Millisecond)
	}
	return text
}

// newest says what is wrong with what a cache has of a key; empty when nothing.
func (h *history) newest(key string, e *broadcast.Entry, flushed time.Duration) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var sure, late *published // the newest that must be known, and the newest that a flush did not drop
	ops := map[uint64]broadcast.Op{}
	for _, p := range h.pubs {
		if p.change == nil || p.change.Key != key {
			continue
		}
		ops[p.change.Version] = p.change.Op
		if !p.acked || p.excused != "" {
			continue
		}
		if sure == nil || p.change.Version > sure.change.Version {
			sure = p
		}
		if p.begun > flushed && (late == nil || p.change.Version > late.change.Version) {
			late = p
		}
	}
	switch {
	case !e.Found && !e.Deleted:
		if late != nil && late.change.Op == broadcast.OpSet {
			return fmt.Sprintf("has nothing of %s, and version %d was published after it was told of a gap", key, late.change.Version)
		}
	case sure != nil && e.Version < sure.change.Version:
		return fmt.Sprintf("has version %d of %s, and version %d was acknowledged at %v", e.Version, key, sure.change.Version, sure.ended)
	case e.Found && ops[e.Version] != broadcast.OpSet:
		return fmt.Sprintf("has a value as version %d of %s, which is a %s", e.Version, key, ops[e.Version])
	}
	return ""
}

// latencies returns how long the messages of the pairs took that were published
// since a time, the shortest first.
func (w *world) latencies(topic string, since time.Duration, pair func(from, to zone.City) bool) []time.Duration {
	h := w.hist
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []time.Duration
	for _, p := range h.pubs {
		if p.topic != topic || p.begun < since || !p.acked {
			continue
		}
		for _, z := range p.to {
			if at, ok := h.first[arrival{p.id, z, h.groups[topic]}]; ok && pair(p.city, w.top.FindZone(z).City.Name) {
				out = append(out, at-p.begun)
			}
		}
	}
	slices.Sort(out)
	return out
}

// at returns the p-th quantile of sorted durations.
func at(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(p*float64(len(sorted))), len(sorted)-1)]
}
