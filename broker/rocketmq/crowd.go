package rocketmq

import (
	heaps "container/heap"
	"container/list"
	"context"
	"net/netip"
)

// Places that all clients share, such as those of connections, are bounded, and whoever
// takes them all keeps the others out. So when none is left, the address that has most
// gives one up to an address that has fewer: a client finds a place whatever one address
// does. An attack of many addresses is as many for it, and clients behind one balancer
// are not told apart.

// crowd counts places by address; those of addresses that are not known are one's. The
// zero value is an empty one. It is guarded by the lock of the places.
type crowd[T any] struct {
	size    int
	parties map[netip.Addr]*party[T]
	order   parties[T]
}

// party are the places of one address.
type party[T any] struct {
	addr   netip.Addr
	places list.List // of *spot[T], oldest first
	index  int       // in order
}

// spot is a place of a party.
type spot[T any] struct {
	place T
	party *party[T]
	at    *list.Element
}

// enter counts a place.
func (c *crowd[T]) enter(addr netip.Addr, place T) *spot[T] {
	p := c.parties[addr]
	if p == nil {
		if c.parties == nil {
			c.parties = map[netip.Addr]*party[T]{}
		}
		p = &party[T]{addr: addr}
		c.parties[addr] = p
		heaps.Push(&c.order, p)
	}
	s := &spot[T]{place: place, party: p}
	s.at = p.places.PushBack(s)
	c.size++
	heaps.Fix(&c.order, p.index)
	return s
}

// leave counts a place no more, or does nothing if it was left before.
func (c *crowd[T]) leave(s *spot[T]) {
	if s.at == nil {
		return
	}
	c.size--
	p := s.party
	p.places.Remove(s.at)
	s.at = nil
	if p.places.Len() > 0 {
		heaps.Fix(&c.order, p.index)
		return
	}
	heaps.Remove(&c.order, p.index)
	delete(c.parties, p.addr)
}

// yields returns the newest place of the address that has most, if it has more than the
// other one even after that gets it; else nil.
func (c *crowd[T]) yields(to netip.Addr) *spot[T] {
	if len(c.order) == 0 {
		return nil
	}
	most, has := c.order[0], 0
	if p := c.parties[to]; p != nil {
		has = p.places.Len()
	}
	if most.places.Len() < has+2 {
		return nil
	}
	return most.places.Back().Value.(*spot[T])
}

// oldest returns the oldest place of the address that has most, counting one more of
// the other one; nil when there is no place.
func (c *crowd[T]) oldest(more netip.Addr) *spot[T] {
	if len(c.order) == 0 {
		return nil
	}
	most := c.order[0]
	if p := c.parties[more]; p != nil && p.places.Len()+1 > most.places.Len() {
		most = p
	}
	return most.places.Front().Value.(*spot[T])
}

// parties is a heap, the largest first. It implements heap.Interface.
type parties[T any] []*party[T]

func (h parties[T]) Len() int           { return len(h) }
func (h parties[T]) Less(i, j int) bool { return h[i].places.Len() > h[j].places.Len() }

func (h parties[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *parties[T]) Push(x any) {
	p := x.(*party[T])
	p.index = len(*h)
	*h = append(*h, p)
}

// Pop implements heap.Interface.
func (h *parties[T]) Pop() any {
	last := len(*h) - 1
	p := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return p
}

// clientAddr is the address that a call's places are counted for; not valid when it is
// not known.
func clientAddr(ctx context.Context) netip.Addr {
	addr, _ := addressOf(originOf(ctx).client)
	return addr
}
