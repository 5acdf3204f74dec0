package link

import (
	"slices"
	"time"
)

// State is what a link is doing.
type State uint8

// The states. A link without a usable connection is Dialling until it was up
// for the first time or has failed for Timing.RedAfter, then Red; in both it is
// dialled for ever.
const (
	StateIdle        State = iota // nobody wants the link
	StateDialling                 // being dialled, not failed for long
	StateHandshaking              // TLS is done, the greeting is outstanding
	StateUp                       // takes sessions
	StateRed                      // lost or without progress; being dialled again
	StateDraining                 // keeps its sessions and takes no new ones
)

// String returns the word that status and logs use.
func (s State) String() string {
	switch s {
	case StateIdle:
		return "idle"
	case StateDialling:
		return "dialling"
	case StateHandshaking:
		return "handshaking"
	case StateUp:
		return "up"
	case StateRed:
		return "red"
	case StateDraining:
		return "draining"
	}
	return "unknown"
}

// MarshalText implements encoding.TextMarshaler with String.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Timing holds the durations of a link. The zero value of a field takes the
// default.
type Timing struct {
	Probe      time.Duration // between two probes of a connection; default 500 ms
	RedAfter   time.Duration // without an answer to a probe, at least Unanswered of them, the connection is torn down; default 2 s
	Unanswered int           // probes; spares a connection when it was this process that stood still; default 3
	Redial     time.Duration // upper bound of the back-off between attempts, and of the start-to-start gap of attempts that hang; default 500 ms
	Handshake  time.Duration // one deadline over dial, TLS and greeting; default 3 s
	Write      time.Duration // a stream that takes no byte for so long is reset; default 1 s
	Stall      time.Duration // a stream whose frame has begun and brings no further byte is reset after so long; default 5 s
	Linger     time.Duration // how long a surplus connection is kept for streams that are being opened; default 2 s
	Idle       time.Duration // a connection without any packet ends; probes keep it busy and find faults sooner; at least 5 s, default 10 s
}

func (t Timing) withDefaults() Timing {
	set := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	set(&t.Probe, 500*time.Millisecond)
	set(&t.RedAfter, 2*time.Second)
	set(&t.Redial, 500*time.Millisecond)
	set(&t.Handshake, 3*time.Second)
	set(&t.Write, time.Second)
	set(&t.Stall, 5*time.Second)
	set(&t.Linger, 2*time.Second)
	set(&t.Idle, 10*time.Second)
	if t.Unanswered <= 0 {
		t.Unanswered = 3
	}
	return t
}

// maxAttempts bounds the dials of one link that hang at a time: with the
// defaults one that never answers is given up as its sixth successor starts.
const maxAttempts = 6

// maxMoves bounds the attempts at an address that the peer is said to have moved to
// while its connection works: whoever says so may be wrong.
const maxMoves = 4

// maxConns bounds the connections of one link, those that wait to be idle
// included: a peer cannot gather them by dialling again and again.
const maxConns = 4

// event is what happened to a link.
type event interface{ linkEvent() }

type (
	evTick      struct{}                 // time has passed
	evMoved     struct{ back bool }      // the peer has another address than before; back: that of the connection
	evWant      struct{ wanted bool }    // the peer joined or left the set of peers
	evConnected struct{ attempt uint64 } // TLS is done
	evFailed    struct{ attempt uint64 } // an attempt ended without a connection
	evUp        struct {                 // greeted; attempt 0: the peer dialled
		attempt, conn, incarnation uint64
		extra                      bool // it is one more for sessions
		takes                      int  // extra connections that the peer takes
	}
	evReply struct{ conn uint64 } // a probe was answered
	evLost  struct{ conn uint64 } // the connection ended
	evIdle  struct{ conn uint64 } // a retiring connection has no sessions
	evDrain struct{ conn uint64 } // the peer puts nothing more on it; conn 0: this node goes away
	evLoad  struct{ load }        // a sample of what this end sends
)

func (evTick) linkEvent()      {}
func (evMoved) linkEvent()     {}
func (evWant) linkEvent()      {}
func (evConnected) linkEvent() {}
func (evFailed) linkEvent()    {}
func (evUp) linkEvent()        {}
func (evReply) linkEvent()     {}
func (evLost) linkEvent()      {}
func (evIdle) linkEvent()      {}
func (evDrain) linkEvent()     {}
func (evLoad) linkEvent()      {}

// effectKind is what the loop has to do.
type effectKind uint8

const (
	doDial    effectKind = iota + 1 // start the attempt id
	doMove                          // start the attempt id, at the peer's first address
	doCancel                        // give up the attempt id
	doProbe                         // send a probe on connection id
	doSilent                        // close connection id: it does not answer
	doSurplus                       // close connection id: there is a better one
	doStale                         // close connection id: its peer has restarted
	doExtra                         // start the attempt id for an extra connection
	doRetire                        // tell the peer to put nothing more on connection id
)

// effect is one thing to do for an attempt or a connection.
type effect struct {
	kind effectKind
	id   uint64
}

type attemptState struct {
	id        uint64
	connected time.Time // zero until TLS is done
}

type connState struct {
	id          uint64
	ours        bool // this node dialled it
	incarnation uint64
	since       time.Time
	heard       time.Time // last answer to a probe, or since
	nextProbe   time.Time
	unanswered  int       // probes sent since heard
	retired     time.Time // zero: not retiring
	draining    bool
	left        bool // the peers talk over another connection: silence tells sooner
	takes       int  // extra connections that the peer takes
}

// usable reports whether the connection takes new sessions.
func (c *connState) usable() bool { return c.retired.IsZero() && !c.draining }

// machine decides for one link. It is pure: state, event, time and a random
// duration in; effects out. Only the link's loop uses it.
type machine struct {
	timing     Timing
	lower      bool                              // this node's name is the lower one: its connections win
	jitter     func(time.Duration) time.Duration // uniform in [0, d)
	wanted     bool
	closing    bool // this node drains: no dials, no new sessions
	wasUp      bool
	failing    time.Time // since when there is no usable connection
	nextDial   time.Time
	lastID     uint64
	moves      int // attempts left at the peer's new address while there is a connection
	attempts   []attemptState
	conns      []connState
	state      State
	since      time.Time
	reconnects uint64 // connections that replaced a lost one

	extras extras
}

// newMachine returns the machine of a link whose sessions may have so many
// connections at a time.
func newMachine(t Timing, lower bool, connections int, jitter func(time.Duration) time.Duration, now time.Time) *machine {
	return &machine{timing: t, lower: lower, jitter: jitter, state: StateIdle, since: now, extras: newExtras(connections)}
}

// step applies an event.
func (m *machine) step(now time.Time, ev event) []effect {
	var out []effect
	switch e := ev.(type) {
	case evWant:
		m.want(now, e.wanted)
	case evMoved:
		switch {
		case m.usable() < 0:
		case e.back: // whoever said that it had left was wrong
			out = m.stopDialling(0, out)
		default:
			m.moves, m.nextDial = maxMoves, now
		}
	case evConnected:
		if i := m.attempt(e.attempt); i >= 0 {
			m.attempts[i].connected = now
		}
	case evFailed:
		if i := m.attempt(e.attempt); i >= 0 {
			m.attempts = slices.Delete(m.attempts, i, i+1)
			wait := m.jitter(m.timing.Redial)
			if len(m.attempts) > 0 {
				wait /= 4 // others hang: it was for a place that the next one waited
			}
			at := now.Add(wait)
			if m.nextDial.Before(at) && m.nextDial.After(now) {
				at = m.nextDial // another has been begun since
			}
			m.nextDial = at
		}
		m.extraFailed(now, e.attempt)
	case evUp:
		if e.extra {
			out = m.extraUp(now, e, out)
		} else {
			out = m.up(now, e, out)
		}
	case evReply:
		if c := m.find(e.conn); c != nil {
			c.heard, c.unanswered = now, 0
		}
	case evLost:
		m.lost(now, e.conn)
	case evIdle:
		if c := m.find(e.conn); c != nil && !c.retired.IsZero() && now.Sub(c.retired) >= m.timing.Linger {
			out = append(out, effect{doSurplus, e.conn})
			m.lost(now, e.conn)
		}
	case evDrain:
		if c := m.find(e.conn); c != nil {
			c.draining = true
			if c.retired.IsZero() && m.conn(e.conn) < 0 {
				c.retired = now // the dialler closes it; this is in case that it does not
			}
		} else if e.conn == 0 {
			m.closing = true
		}
	case evLoad:
		m.extras.demand.sample(now, e.load, m.mostExtras())
	}
	out = m.tick(now, out)
	m.revive()
	m.settle(now)
	return out
}

func (m *machine) want(now time.Time, wanted bool) {
	if wanted && !m.wanted {
		m.failing = now
		m.nextDial = now
		if !m.lower {
			// Both sides dial; a head start for one of them spares most doubles.
			m.nextDial = now.Add(m.timing.Redial/2 + m.jitter(m.timing.Redial/2))
		}
	}
	m.wanted = wanted
}

// stopDialling gives up all attempts but the one that has succeeded; 0 = all.
func (m *machine) stopDialling(but uint64, out []effect) []effect {
	for _, a := range m.attempts {
		if a.id != but {
			out = append(out, effect{doCancel, a.id})
		}
	}
	m.attempts, m.moves = m.attempts[:0], 0
	return out
}

// up registers a greeted connection and retires what it makes superfluous.
func (m *machine) up(now time.Time, e evUp, out []effect) []effect {
	c := connState{
		id: e.conn, ours: e.attempt != 0, incarnation: e.incarnation,
		since: now, heard: now, nextProbe: now, takes: e.takes,
	}
	out = m.stopDialling(e.attempt, out)
	if m.wasUp && m.usable() < 0 {
		m.reconnects++
	}
	for i := 0; i < len(m.conns); i++ {
		o := &m.conns[i]
		switch {
		case o.incarnation != c.incarnation:
			out = append(out, effect{doStale, o.id})
			m.conns = slices.Delete(m.conns, i, i+1)
			i--
		case !o.retired.IsZero() || !c.retired.IsZero():
		case m.better(o, &c):
			c.retired = now
		default:
			o.retired = now
			// No double of the beginning: one end has left the older one for a reason.
			if o.left = c.since.Sub(o.since) >= m.timing.RedAfter; o.left {
				m.leaveExtras()
			}
		}
	}
	m.conns = append(m.conns, c)
	m.wasUp = true
	for i := 0; i < len(m.conns) && len(m.conns) > maxConns; i++ {
		if !m.conns[i].retired.IsZero() {
			out = append(out, effect{doSurplus, m.conns[i].id})
			m.conns = slices.Delete(m.conns, i, i+1)
			i--
		}
	}
	return m.extrasOf(c.incarnation, out)
}

// better reports whether the older connection stays when a newer one came up.
// A peer that dials again has usually lost the older one; only when both sides
// dialled at about the same time is the choice the lower name's, which both
// ends compute alike.
func (m *machine) better(older, newer *connState) bool {
	if older.draining || older.ours == newer.ours {
		return false
	}
	return newer.since.Sub(older.since) < m.timing.RedAfter && older.ours == m.lower
}

func (m *machine) lost(now time.Time, id uint64) {
	i := m.conn(id)
	if i < 0 {
		m.extraLost(now, id)
		return
	}
	m.conns = slices.Delete(m.conns, i, i+1)
	if len(m.conns) == 0 {
		m.failing = now
		m.nextDial = now.Add(m.jitter(m.timing.Redial))
	}
}

// revive takes back what was put aside when nothing else is left, newest first.
func (m *machine) revive() {
	if m.usable() >= 0 {
		return
	}
	for i := len(m.conns) - 1; i >= 0; i-- {
		if !m.conns[i].draining {
			m.conns[i].retired = time.Time{}
			return
		}
	}
}

func (m *machine) tick(now time.Time, out []effect) []effect {
	out = m.probe(now, &m.conns, out)
	out = m.probe(now, &m.extras.conns, out)
	out = m.tickExtras(now, out)
	if !m.dials() {
		return out
	}
	if len(m.attempts) < maxAttempts && !now.Before(m.nextDial) {
		m.lastID++
		m.attempts = append(m.attempts, attemptState{id: m.lastID})
		kind := doDial
		if len(m.conns) > 0 {
			kind = doMove
			m.moves--
		}
		out = append(out, effect{kind, m.lastID})
		// An attempt whose packets were lost waits ever longer before it repeats
		// them; a fresh one beside it finds a healed path at once.
		m.nextDial = now.Add(m.timing.Redial)
	}
	return out
}

// dials reports whether the link is being dialled: it has no connection, or one to
// an address that the peer has left, as somebody says.
func (m *machine) dials() bool {
	return m.wanted && !m.closing && (len(m.conns) == 0 || m.moves > 0)
}

// probe probes the connections that are due and ends those that are silent.
func (m *machine) probe(now time.Time, conns *[]connState, out []effect) []effect {
	for i := 0; i < len(*conns); i++ {
		c := &(*conns)[i]
		if m.silent(c, now) {
			out = append(out, effect{doSilent, c.id})
			m.lost(now, c.id)
			i = -1 // lost may have changed any of them
			continue
		}
		if !now.Before(c.nextProbe) {
			out = append(out, effect{doProbe, c.id})
			c.nextProbe = now.Add(m.timing.Probe)
			c.unanswered++
		}
	}
	return out
}

// silent reports whether the connection has had its chance to answer.
func (m *machine) silent(c *connState, now time.Time) bool {
	if c.left {
		return c.unanswered >= m.timing.Unanswered-1 && now.Sub(c.heard) >= m.timing.RedAfter/2
	}
	return c.unanswered >= m.timing.Unanswered && now.Sub(c.heard) >= m.timing.RedAfter
}

// settle derives the state.
func (m *machine) settle(now time.Time) {
	s, since := StateIdle, now
	switch {
	case m.closing:
		s = StateDraining
	case m.current() != 0:
		s = StateUp
	case len(m.conns) > 0:
		s = StateDraining
	case m.wanted:
		s = StateDialling
		if m.wasUp || now.Sub(m.failing) >= m.timing.RedAfter {
			s = StateRed
		}
		for _, a := range m.attempts {
			if !a.connected.IsZero() {
				s, since = StateHandshaking, a.connected
				break
			}
		}
	}
	if s != m.state {
		m.state, m.since = s, since
	}
}

// deadline returns when the next evTick is due; the zero time means never.
func (m *machine) deadline() time.Time {
	var at time.Time
	sooner := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	for _, conns := range [...][]connState{m.conns, m.extras.conns} {
		for i := range conns {
			c := &conns[i]
			sooner(c.nextProbe)
			switch {
			case c.left && c.unanswered >= m.timing.Unanswered-1:
				sooner(c.heard.Add(m.timing.RedAfter / 2))
			case c.unanswered >= m.timing.Unanswered:
				sooner(c.heard.Add(m.timing.RedAfter))
			}
		}
	}
	if m.missingExtras() > 0 {
		sooner(m.extras.next)
	}
	if m.dials() {
		if len(m.attempts) < maxAttempts {
			sooner(m.nextDial)
		}
		if m.state == StateDialling {
			sooner(m.failing.Add(m.timing.RedAfter))
		}
	}
	return at
}

// usable returns the index of the link's own connection, or -1.
func (m *machine) usable() int {
	return slices.IndexFunc(m.conns, func(c connState) bool { return c.usable() })
}

// current returns the connection that stands for the link, or 0: its own, or an
// extra one while that is being dialled again.
func (m *machine) current() uint64 {
	if m.closing {
		return 0
	}
	for _, conns := range [...][]connState{m.conns, m.extras.conns} {
		for i := range conns {
			if conns[i].usable() {
				return conns[i].id
			}
		}
	}
	return 0
}

// retiring calls fn for the connections that wait to be idle.
func (m *machine) retiring(fn func(id uint64)) {
	for _, conns := range [...][]connState{m.conns, m.extras.conns} {
		for i := range conns {
			if !conns[i].retired.IsZero() {
				fn(conns[i].id)
			}
		}
	}
}

func (m *machine) attempt(id uint64) int {
	return slices.IndexFunc(m.attempts, func(a attemptState) bool { return a.id == id })
}

// conn returns the index of one of the link's own connections, or -1.
func (m *machine) conn(id uint64) int {
	return slices.IndexFunc(m.conns, func(c connState) bool { return c.id == id })
}

// find returns a connection of either kind, or nil.
func (m *machine) find(id uint64) *connState {
	for _, conns := range [...][]connState{m.conns, m.extras.conns} {
		for i := range conns {
			if conns[i].id == id {
				return &conns[i]
			}
		}
	}
	return nil
}
