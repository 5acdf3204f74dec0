package link

import (
	"slices"
	"time"
)

// maxExtraBackoff bounds the time between two attempts at an extra connection
// while they fail: the link works without.
const maxExtraBackoff = 30 * time.Second

// extras are the connections that a link has for its sessions beside its own
// one. The end that needs them dials them, tells the other not to use one any
// more, and closes it when it is idle: a connection has one owner, so that the
// two ends never disagree about which to keep. Both put sessions on any of them.
// While there are some, the link's own connection takes no sessions, and control
// and probes have it for themselves.
type extras struct {
	most     int // connections for sessions at a time; 1 = the link's own
	demand   demand
	conns    []connState
	attempts []uint64
	next     time.Time     // no attempt before
	backoff  time.Duration // to the next attempt when one fails
}

func newExtras(most int) extras { return extras{most: most, demand: newDemand()} }

// takes returns how many extra connections the peer is told that it may dial.
func (x *extras) takes() int {
	if x.most < 2 {
		return 0
	}
	return x.most
}

// bound returns how many there may be at a time: as many as each end may have in
// use, and as many that wait to be idle.
func (x *extras) bound() int { return 3 * x.takes() }

// mostExtras returns how many extra connections both ends take, or 1 for none:
// a link's sessions have one connection or several extra ones.
func (m *machine) mostExtras() int {
	i := m.usable()
	if i < 0 {
		return m.extras.demand.want // it is being dialled: nothing is known anew
	}
	return max(min(m.extras.most, m.conns[i].takes), 1)
}

// wantedExtras returns how many extra connections this end wants now.
func (m *machine) wantedExtras() int {
	if !m.wanted || m.closing {
		return 0
	}
	return m.extras.demand.extra()
}

// missingExtras returns how many attempts at extra connections may be begun.
func (m *machine) missingExtras() int {
	if m.usable() < 0 {
		return 0
	}
	have := len(m.extras.attempts)
	for i := range m.extras.conns {
		if m.extras.conns[i].usable() {
			have++
		}
	}
	return m.wantedExtras() - have
}

// carriers calls fn for the extra connections that take sessions.
func (m *machine) carriers(fn func(id uint64)) {
	if m.closing {
		return
	}
	for i := range m.extras.conns {
		if m.extras.conns[i].usable() {
			fn(m.extras.conns[i].id)
		}
	}
}

// extraUp registers an extra connection, or closes one that there is no use for.
func (m *machine) extraUp(now time.Time, e evUp, out []effect) []effect {
	if e.attempt != 0 {
		m.endExtraAttempt(e.attempt)
		m.extras.backoff = 0
	}
	i := m.usable()
	if i < 0 || m.conns[i].incarnation != e.incarnation || m.closing || len(m.extras.conns) >= m.extras.bound() {
		return append(out, effect{doSurplus, e.conn})
	}
	m.extras.conns = append(m.extras.conns, connState{
		id: e.conn, ours: e.attempt != 0, incarnation: e.incarnation, since: now, heard: now, nextProbe: now,
	})
	return out
}

// extrasOf ends the extra connections of other starts of the peer.
func (m *machine) extrasOf(incarnation uint64, out []effect) []effect {
	m.extras.conns = slices.DeleteFunc(m.extras.conns, func(c connState) bool {
		if c.incarnation == incarnation {
			return false
		}
		out = append(out, effect{doStale, c.id})
		return true
	})
	return out
}

// leaveExtras has those that answer no more be replaced soon: the link's own one
// has been replaced by one to another address of the peer.
func (m *machine) leaveExtras() {
	for i := range m.extras.conns {
		m.extras.conns[i].left = true
	}
}

// tickExtras dials what is missing and retires what is too much.
func (m *machine) tickExtras(now time.Time, out []effect) []effect {
	if m.usable() < 0 || m.wantedExtras() == 0 {
		for _, id := range m.extras.attempts {
			out = append(out, effect{doCancel, id})
		}
		m.extras.attempts = m.extras.attempts[:0]
	}
	out = m.retireExtras(now, out)
	if now.Before(m.extras.next) {
		return out
	}
	for n := m.missingExtras(); n > 0; n-- {
		m.lastID++
		m.extras.attempts = append(m.extras.attempts, m.lastID)
		out = append(out, effect{doExtra, m.lastID})
	}
	return out
}

// retireExtras retires those of this end's extra connections that are too many,
// the newest first. The lower name counts its own only; the other counts all, so
// that of two ends that dialled at the same time it is the one that gives way.
func (m *machine) retireExtras(now time.Time, out []effect) []effect {
	over := -m.wantedExtras()
	for i := range m.extras.conns {
		if c := &m.extras.conns[i]; c.usable() && (c.ours || !m.lower) {
			over++
		}
	}
	for i := len(m.extras.conns) - 1; i >= 0 && over > 0; i-- {
		c := &m.extras.conns[i]
		if !c.usable() || !c.ours {
			continue
		}
		c.retired = now
		out = append(out, effect{doRetire, c.id})
		over--
	}
	return out
}

// expects reports whether the attempt is still worth its connection.
func (m *machine) expects(attempt uint64) bool {
	return m.attempt(attempt) >= 0 || slices.Contains(m.extras.attempts, attempt)
}

func (m *machine) endExtraAttempt(id uint64) bool {
	i := slices.Index(m.extras.attempts, id)
	if i < 0 {
		return false
	}
	m.extras.attempts = slices.Delete(m.extras.attempts, i, i+1)
	return true
}

func (m *machine) extraFailed(now time.Time, attempt uint64) {
	if !m.endExtraAttempt(attempt) {
		return
	}
	x := &m.extras
	x.backoff = min(max(2*x.backoff, 2*m.timing.Redial), maxExtraBackoff)
	x.next = now.Add(x.backoff/2 + m.jitter(x.backoff/2))
}

// extraLost forgets an extra connection. Its sessions open again on the others,
// or on the one that is dialled in its place.
func (m *machine) extraLost(now time.Time, id uint64) {
	x := &m.extras
	i := slices.IndexFunc(x.conns, func(c connState) bool { return c.id == id })
	if i < 0 {
		return
	}
	if x.conns[i].ours && x.conns[i].retired.IsZero() {
		x.next = now.Add(m.jitter(m.timing.Redial))
	}
	x.conns = slices.Delete(x.conns, i, i+1)
}
