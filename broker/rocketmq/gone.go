package rocketmq

import (
	"time"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// A push consumer holds what it received for as long as it lives: the broker renews it.
// So its end must be seen soon, or its message groups stand still, and never while it is
// only slow. What is seen of an end:
//
//   - The client says so (NotifyClientTermination).
//   - Its Telemetry stream breaks: the process ended, its machine was silent for the
//     50 s of the keepalive, or something between reset the connection. A client that
//     lives then opens a stream again, or calls, within the time of comesBack.
//   - A client without a stream, as after a restart of this server, is silent for
//     aliveTTL; one with a stream for clientTTL.
//
// A new stream counts as life, and so does each call: heartbeats, sends, decisions about
// transactions, receives, settlements, questions for routes and all others. A client that
// pauses for less than that, as in a garbage collection, keeps its stream and so what it
// holds.

// goneEvery is how often it is looked for them.
const goneEvery = 500 * time.Millisecond

// comesBack is how long a client that lives may be silent after its last stream broke.
// Java and Node.js open the next one a second later; 5 s leave it room for two attempts
// to connect that fail. Go, Python, C# and C++ do so after minutes or never, but send
// heartbeats every 10 s, whose timeout is 3 s. Rust sends them every 30 s, and of the
// others nothing is known.
func comesBack(l pb.Language) time.Duration {
	switch l {
	case pb.Language_JAVA, pb.Language_NODE_JS:
		return 5 * time.Second
	case pb.Language_GOLANG, pb.Language_PYTHON, pb.Language_DOT_NET, pb.Language_CPP:
		return 15 * time.Second
	}
	return aliveTTL
}

// lives reports whether the client is there to finish what it received. registry.mu is
// held.
func (c *client) lives(now int64) bool {
	seen := c.lastSeen.Load()
	switch {
	case len(c.sessions) > 0:
		return true
	case c.broke >= 0 && seen <= c.broke:
		return now-c.broke < int64(comesBack(c.info.Load().language))
	}
	return now-seen < int64(aliveTTL)
}

// renewed reports whether the broker renews what a client of that type received.
func renewed(k pb.ClientType) bool {
	return k == pb.ClientType_PUSH_CONSUMER || k == pb.ClientType_LITE_PUSH_CONSUMER
}

// leave notes that a client is being forgotten. mu is held. What is too much waits for
// its next renewal.
func (r *registry) leave(id string, c *client) {
	if c.renews.Load() && len(r.left) < r.max {
		r.left = append(r.left, id)
	}
}

// Alive reports whether a client is there to finish what it received: it is connected
// or was heard of lately and, with a link, the connection of that number still stands.
// The broker asks it whether to renew a delivery (SetLiveness). It does not block.
func (s *Server) Alive(clientID string, link uint64) bool {
	return (link == 0 || s.answers.isOpen(link)) && s.clients.alive(clientID)
}

// takeGone returns the push consumers whose end was seen since the last call.
func (r *registry) takeGone() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.left
	r.left = nil
	now := r.now()
	for id, c := range r.away {
		if c.renews.Load() && c.lastSeen.Load() > c.told && !c.lives(now) {
			c.told = now
			list = append(list, id)
		}
	}
	return list
}

// goneLoop tells the store of push consumers that are gone, all of them at a time: it
// looks at everything in hands.
func (s *Server) goneLoop() {
	tick := time.NewTicker(goneEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.stopping.Done():
			return
		case <-tick.C:
			if gone := s.clients.takeGone(); len(gone) > 0 {
				s.opts.Logger.Debug("push consumers are gone", "clients", len(gone), "one", gone[0])
				s.store.ClientsGone(gone)
			}
		}
	}
}
