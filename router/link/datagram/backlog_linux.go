package datagram

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of what connections with one address may have waiting. quic-go drops what is
// more than 256 packets for one of them; all of an address share half of that, since
// which of them a packet is for is not known here.
const (
	lookEvery  = 32                     // packets handed on between two looks
	backlogMax = 128                    // packets that may wait at a look
	pause      = 50 * time.Microsecond  // between two looks while the reader waits
	pauseMost  = 10 * time.Millisecond  // that it waits in a row: for so long the scheduler lets a goroutine run
	restFor    = 200 * time.Millisecond // for which it does not wait again after it has in vain
)

// backlogs knows what waits for connections, by the address of their peer.
type backlogs struct {
	byAddr atomic.Pointer[map[netip.AddrPort]*backlog] // never changed, replaced
	mu     sync.Mutex                                  // of who replaces
}

// backlog is what waits for the connections with one address.
type backlog struct {
	members atomic.Pointer[members]

	// Only the reader uses these.
	handed uint64                         // bytes
	since  int                            // packets since the last look
	looks  [backlogMax / lookEvery]uint64 // what handed was at the last looks, in a ring
	oldest int                            // of looks
	spare  int64                          // bytes handed on that nobody takes
	rest   time.Time                      // until when the reader does not wait
}

// members are the connections with an address; never changed, replaced.
type members struct {
	ended uint64           // bytes that former ones have taken
	taken []*func() uint64 // bytes that each has taken
}

// Watch has the reader wait while a connection with the address has not taken what it
// was given. taken returns how many bytes it has taken since its start; it is called by
// the reader, also for a short time after stop, which ends the watch.
func (c *Conn) Watch(peer net.Addr, taken func() uint64) (stop func()) {
	addr, ok := key(peer)
	if !ok {
		return func() {}
	}
	b := &c.backlogs
	b.change(addr, func(m *members) { m.taken = append(m.taken, &taken) })
	return sync.OnceFunc(func() {
		b.change(addr, func(m *members) {
			m.ended += taken()
			m.taken = slices.DeleteFunc(m.taken, func(f *func() uint64) bool { return f == &taken })
		})
	})
}

// change replaces the members of an address, which is forgotten with the last one.
func (b *backlogs) change(addr netip.AddrPort, f func(*members)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old, all := b.byAddr.Load(), make(map[netip.AddrPort]*backlog)
	if old != nil {
		for k, v := range *old {
			all[k] = v
		}
	}
	one := all[addr]
	if one == nil {
		one = new(backlog)
		one.members.Store(new(members))
		all[addr] = one
	}
	was := one.members.Load()
	is := &members{ended: was.ended, taken: slices.Clone(was.taken)}
	f(is)
	one.members.Store(is)
	if len(is.taken) == 0 {
		delete(all, addr)
	}
	b.byAddr.Store(&all)
}

// of returns what waits for the connections with an address; nil = nothing is known.
func (b *backlogs) of(a net.Addr) *backlog {
	all := b.byAddr.Load()
	if all == nil {
		return nil
	}
	addr, _ := key(a)
	return (*all)[addr]
}

func key(a net.Addr) (netip.AddrPort, bool) {
	u, ok := a.(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}, false
	}
	ap := u.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), ap.IsValid()
}

// add notes a packet of so many bytes, and lets the connections take what they were
// given if it is time to look.
func (b *backlog) add(bytes int, now func() time.Time, sleep func(time.Duration)) {
	b.handed += uint64(bytes)
	if b.since++; b.since < lookEvery {
		return
	}
	b.since = 0
	before := b.looks[b.oldest]
	b.looks[b.oldest] = b.handed
	b.oldest = (b.oldest + 1) % len(b.looks)
	b.waitFor(before, now, sleep)
}

// waitFor waits until the connections have taken all that was handed on before. Where
// they do not, it may be that nobody will: whoever sends what belongs to no connection,
// in the peer's name, must not hold up what comes from others.
func (b *backlog) waitFor(before uint64, now func() time.Time, sleep func(time.Duration)) {
	if b.open(before) <= 0 {
		return
	}
	start := now()
	if start.Before(b.rest) {
		return
	}
	for at := start; at.Sub(start) < pauseMost; at = now() {
		sleep(pause)
		if b.open(before) <= 0 {
			return
		}
	}
	b.rest = now().Add(restFor)
	b.spare += b.open(b.handed)
}

// open returns how many bytes of those handed on before are not taken. More than was
// handed on cannot be taken: what is more was spare by mistake, or of before the watch.
func (b *backlog) open(before uint64) int64 {
	m := b.members.Load()
	taken := m.ended
	for _, f := range m.taken {
		taken += (*f)()
	}
	if over := int64(taken-b.handed) + b.spare; over > 0 {
		b.spare -= over
	}
	return int64(before-taken) - b.spare
}
