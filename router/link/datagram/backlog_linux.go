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
	lookEvery  = 32                    // packets handed on between two looks
	backlogMax = 128                   // packets that may wait at a look
	pause      = 50 * time.Microsecond // between two looks while the reader waits
	pauseMost  = 10 * time.Millisecond // that it waits in a row: for so long the scheduler lets a goroutine run
	vainShare  = 20                    // of its time the reader waits in vain for 1/vainShare, whatever comes
	vainMost   = 4 * pauseMost         // of that, what it has saved up at most
)

// backlogs knows what waits for connections, by the address of their peer.
type backlogs struct {
	byAddr atomic.Pointer[map[netip.AddrPort]*backlog] // never changed, replaced
	mu     sync.Mutex                                  // of who replaces
}

// patience bounds what waits in vain cost, of all addresses together: there is one
// reader, and whoever sends in the name of many peers must not hold it up with each.
type patience struct {
	left time.Duration // that may be waited in vain
	at   time.Time     // when left was true
	lost bool          // until left is all there again
}

// may reports whether the reader may wait. When its patience is lost it does not until
// all of that is back: connections drop packets meanwhile, the next wait finds them to be
// nobody's, and is in vain once more, and there has to be enough left after it.
func (p *patience) may(now time.Time) bool {
	p.left = min(p.left+now.Sub(p.at)/vainShare, vainMost)
	p.at = now
	if p.left < pauseMost {
		p.lost = true
	} else if p.left == vainMost {
		p.lost = false
	}
	return !p.lost
}

// backlog is what waits for the connections with one address.
type backlog struct {
	members atomic.Pointer[members]

	// Only the reader uses these.
	handed uint64                         // bytes
	since  int                            // packets since the last look
	looks  [backlogMax / lookEvery]uint64 // what handed was at the last looks, in a ring
	oldest int                            // of looks
	before uint64                         // what handed was 128 packets before the last look
	ends   int                            // members.ends at the last look
	spare  int64                          // bytes handed on that nobody takes
}

// members are the connections with an address; never changed, replaced.
type members struct {
	ends  int              // of connections
	ended uint64           // bytes that former ones have taken
	taken []*func() uint64 // bytes that each has taken
}

// Watch has the reader wait while a connection with the address has not taken what it
// was given. taken returns how many bytes it has taken since its start; it is called by
// the reader, also for a short time after stop, which ends the watch.
func (c *Conn) Watch(peer net.Addr, taken func() uint64) (stop func()) {
	addr, ok := AddrPort(peer)
	if !ok {
		return func() {}
	}
	b := &c.backlogs
	b.change(addr, func(m *members) { m.taken = append(m.taken, &taken) })
	return sync.OnceFunc(func() {
		b.change(addr, func(m *members) {
			m.ends++
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
	is := &members{ends: was.ends, ended: was.ended, taken: slices.Clone(was.taken)}
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
	addr, _ := AddrPort(a)
	return (*all)[addr]
}

// add notes a packet of so many bytes and reports whether it is time to look.
func (b *backlog) add(bytes int) bool {
	b.handed += uint64(bytes)
	if b.since++; b.since < lookEvery {
		return false
	}
	b.since = 0
	b.before = b.looks[b.oldest]
	b.looks[b.oldest] = b.handed
	b.oldest = (b.oldest + 1) % len(b.looks)
	return true
}

// look waits until the connections have taken as much as they were given, but for the
// last packets. What nobody takes counts as if it were of those: only when it is more
// than they are does the reader wait in vain, and then no longer than pauseMost and its
// patience, for whoever sends what belongs to no connection, in a peer's name, must not
// hold up what comes from others.
func (b *backlog) look(p *patience, now func() time.Time, sleep func(time.Duration)) {
	if ends := b.members.Load().ends; ends != b.ends {
		b.ends = ends // and nobody takes what waited for it
		b.spare += max(b.untaken(b.handed), 0)
	}
	if b.untaken(b.before) <= 0 {
		return
	}
	start := now()
	if !p.may(start) {
		return
	}
	at, first := start, b.taken()
	for ; at.Sub(start) < pauseMost; at = now() {
		sleep(pause)
		if b.untaken(b.before) <= 0 {
			return
		}
	}
	p.left = max(p.left-at.Sub(start), 0) // one that has overslept is no reason to have none for seconds
	// A connection that has run meanwhile has taken all that it had. One that has not
	// may have been away, and take what came last: so that is not given up.
	upTo := b.before
	if b.taken() != first {
		upTo = b.handed
	}
	b.spare += max(b.untaken(upTo), 0)
}

// untaken returns how many of the first bytes handed on nobody has taken that somebody
// should. More than was handed on cannot be taken: what is more was spare by mistake, or
// of before the watch.
func (b *backlog) untaken(first uint64) int64 {
	taken := b.taken()
	if over := int64(taken-b.handed) + b.spare; over > 0 {
		b.spare -= over
	}
	return int64(first-taken) - b.spare
}

// taken returns how many bytes the connections have taken.
func (b *backlog) taken() uint64 {
	m := b.members.Load()
	sum := m.ended
	for _, f := range m.taken {
		sum += (*f)()
	}
	return sum
}
