package peer

import (
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
)

// Stats counts what happened since a Dialer or Listener was made.
type Stats struct {
	Connected       uint64 // connections greeted
	Failed          uint64 // attempts, or accepted connections, that did not get that far
	Refused         uint64 // accepted connections above a bound, closed at once
	RefusedSessions uint64 // sessions refused: too many, draining, opening frame too large
	Overflows       uint64 // sessions reset because their receive queue was full
	SlowPeers       uint64 // sessions and connections reset because no bytes were taken
	Ignored         uint64 // frames of no session
	BytesIn         uint64 // after TLS, headers included
	BytesOut        uint64 // before TLS, headers included
	Held            int64  // payload bytes that wait in sessions now
}

type counters struct {
	connected, failed, refused, refusedSessions atomic.Uint64
	overflows, slowPeers, ignored               atomic.Uint64
	bytesIn, bytesOut                           atomic.Uint64
}

func (c *counters) stats(held int64) Stats {
	return Stats{
		Connected: c.connected.Load(), Failed: c.failed.Load(), Refused: c.refused.Load(),
		RefusedSessions: c.refusedSessions.Load(), Overflows: c.overflows.Load(), SlowPeers: c.slowPeers.Load(),
		Ignored: c.ignored.Load(), BytesIn: c.bytesIn.Load(), BytesOut: c.bytesOut.Load(), Held: held,
	}
}

// State is where a connection is.
type State string

// The states.
const (
	StateConnecting State = "connecting" // between dial and the end of the greeting
	StateOpen       State = "open"
	StateDraining   State = "draining" // takes no new session
	StateDown       State = "down"     // the last attempt failed, or the connection ended
)

// ConnStatus describes a connection, or the last attempt at one.
type ConnStatus struct {
	Link     string // node and address dialled, or the remote address
	Target   Target // zero for accepted connections
	State    State
	Since    time.Time // when State began
	Peer     wire.Hello
	Sessions int
	RTT      time.Duration // 0 = not measured yet
	Held     int64         // payload bytes that wait in its sessions
	Err      error         // why it is down; nil otherwise
}

func (c *conn) status() ConnStatus {
	st := ConnStatus{
		Link: c.link, State: StateOpen, Since: c.started, Peer: c.peer, Sessions: c.count(),
		RTT: time.Duration(c.rtt.Load()), Held: c.held.Load(),
	}
	if c.draining.Load() {
		st.State = StateDraining
	}
	return st
}

// complainLimit is how many failed handshakes are logged in a second.
const complainLimit = 5
