package simnet

import (
	"container/heap"
	"context"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"
)

// Net is a network. Make it with New; its methods are safe for concurrent use.
type Net struct {
	seed uint64
	wake chan struct{} // capacity 1: an earlier event was added

	mu     sync.Mutex
	events eventHeap            // guarded by mu
	last   time.Time            // guarded by mu; when the newest event that was put off happens
	seq    uint64               // guarded by mu; events so far
	hosts  map[netip.Addr]*Host // guarded by mu; those that are up
	links  map[direction]*link  // guarded by mu
	path   func(from, to *Host) Path
	trace  func(Event)
	stats  Stats
}

// Path says how bytes travel in one direction. The zero value is a perfect wire.
type Path struct {
	Cut     bool          // nothing passes
	Delay   time.Duration // one way
	Jitter  time.Duration // added to the delay, evenly drawn from [0, Jitter)
	Loss    float64       // chance that a packet is lost, or a segment sent again
	Repeat  float64       // chance that a packet arrives twice
	Overrun float64       // chance that a packet is held back so that later ones overtake it
	Rate    float64       // bytes a second; 0 = any
}

// Event is something that happened on the network, for a trace.
type Event struct {
	At       time.Time
	From, To string // names of hosts
	Kind     Kind
	Size     int
}

// Kind is the kind of an Event.
type Kind uint8

// The kinds of events.
const (
	Packet  Kind = iota + 1 // a packet arrived
	Lost                    // a packet was lost
	Segment                 // bytes of a connection arrived
	Opened                  // a connection stands
	Closed                  // the end of a connection arrived
)

// Stats counts what the network did.
type Stats struct {
	Packets, Lost, Repeated, Overrun uint64 // packets
	Segments, Resent                 uint64 // of connections
	Resets                           uint64 // connections that broke
	Bytes                            uint64 // delivered
}

// New returns a network without hosts. path says how bytes travel from one host
// to another at this moment; it is called for each packet and segment, and must
// not call the network. Neither must trace, which is told of every event, in
// order, under the network's lock; nil = nobody.
func New(seed uint64, path func(from, to *Host) Path, trace func(Event)) *Net {
	return &Net{
		seed: seed, wake: make(chan struct{}, 1), path: path, trace: trace,
		hosts: map[netip.Addr]*Host{}, links: map[direction]*link{},
	}
}

// direction is from one address to another.
type direction struct{ from, to netip.Addr }

// link is the state of a direction.
type link struct {
	rng  *rand.Rand
	busy time.Time // until then the rate limit is used up
}

// linkOf returns the link of a direction; mu is held.
func (n *Net) linkOf(from, to netip.Addr) *link {
	k := direction{from, to}
	l := n.links[k]
	if l == nil {
		h := fnv.New64a()
		h.Write(from.AsSlice())
		h.Write(to.AsSlice())
		l = &link{rng: rand.New(rand.NewPCG(n.seed, h.Sum64()))}
		n.links[k] = l
	}
	return l
}

// transit returns when size bytes sent now arrive, and false if the queue before
// the rate limit is longer than patience. mu is held.
func (l *link) transit(now time.Time, p Path, size int, patience time.Duration) (time.Time, bool) {
	at := now
	if p.Rate > 0 {
		if l.busy.Before(now) {
			l.busy = now
		}
		if l.busy.Sub(now) > patience {
			return at, false
		}
		l.busy = l.busy.Add(time.Duration(float64(size) / p.Rate * float64(time.Second)))
		at = l.busy
	}
	at = at.Add(p.Delay)
	if p.Jitter > 0 {
		at = at.Add(time.Duration(l.rng.Int64N(int64(p.Jitter))))
	}
	return at, true
}

// chance draws; mu is held.
func (l *link) chance(p float64) bool { return p > 0 && l.rng.Float64() < p }

// event is something to do at a time.
type event struct {
	at  time.Time
	seq uint64
	do  func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	if h[i].at.Equal(h[j].at) {
		return h[i].seq < h[j].seq
	}
	return h[i].at.Before(h[j].at)
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*h = old[:len(old)-1]
	return e
}

// after lets Run call do, without mu, at a time. mu is held.
func (n *Net) after(at time.Time, do func()) {
	n.seq++
	heap.Push(&n.events, event{at: at, seq: n.seq, do: do})
	if n.events[0].seq == n.seq {
		select {
		case n.wake <- struct{}{}:
		default: // Run looks anyway
		}
	}
}

// Run delivers until ctx ends.
func (n *Net) Run(ctx context.Context) {
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		n.mu.Lock()
		wait := time.Hour
		var do func()
		if len(n.events) > 0 {
			// An instant has one event: what follows from it comes before the next.
			at := n.events[0].at
			if !at.After(n.last) {
				at = n.last.Add(1)
			}
			if wait = time.Until(at); wait <= 0 {
				n.last = at
				do = heap.Pop(&n.events).(event).do
			}
		}
		n.mu.Unlock()
		if do != nil {
			do()
			continue
		}
		t.Reset(wait)
		select {
		case <-t.C:
		case <-n.wake:
		case <-ctx.Done():
			return
		}
	}
}

// note counts and traces; mu is held.
func (n *Net) note(from, to *Host, k Kind, size int) {
	if n.trace != nil {
		n.trace(Event{At: time.Now(), From: from.name, To: to.name, Kind: k, Size: size})
	}
}

// Stats returns what the network did so far.
func (n *Net) Stats() Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stats
}
