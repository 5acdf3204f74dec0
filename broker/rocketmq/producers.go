package rocketmq

import (
	"slices"

	"github.com/mqrouter/mqrouter/broker"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	// maxCommands bounds what waits for one stream: a check is small, and its message
	// is read when it is written. Full: the broker tries another stream, or later.
	maxCommands = 256
	// nodeMessage is the largest message that a Node client takes on a stream, less
	// what gRPC and the command put around the record; bytes.
	nodeMessage = 4<<20 - 4<<10
)

// check is a question about a half message that waits for a stream.
type check struct {
	back     *broker.CheckBack
	resource *pb.Resource // the topic as the client named it
}

// confirmIn is how long a check that was written may turn out to be lost: when its
// stream ends within that time, and its client said nothing since, it was not read.
const confirmIn = aliveTTL

// writtenCheck is a check that was written to a stream.
type writtenCheck struct {
	back *broker.CheckBack
	at   int64 // as client.lastSeen
}

// wrote notes that a check was written to the stream. Its handler calls it.
func (r *registry) wrote(s *session, c *broker.CheckBack) {
	now := r.now()
	s.written = slices.DeleteFunc(s.written, func(w writtenCheck) bool { return now-w.at >= int64(confirmIn) })
	if len(s.written) < maxCommands {
		s.written = append(s.written, writtenCheck{c, now})
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if s.client != nil {
		s.client.silent.Add(1)
	}
}

// giveUp tells of the checks of a stream that has ended which nobody can have read.
// Its handler calls it.
func (r *registry) giveUp(s *session) {
	r.mu.RLock()
	c := s.client
	r.mu.RUnlock()
	now := r.now()
	for _, w := range s.written {
		if now-w.at < int64(confirmIn) && c != nil && c.lastSeen.Load() <= w.at {
			w.back.Lost(true)
		}
	}
	r.unasked(s)
}

// unasked gives up the checks that wait for a stream which is asked no more.
func (r *registry) unasked(list ...*session) {
	for _, s := range list {
		for more := true; more; {
			select {
			case c := <-s.checks:
				c.back.Lost(false)
			default:
				more = false
			}
		}
	}
}

// seat is a stream of a producer of a topic.
type seat struct {
	client   *client
	session  *session
	resource *pb.Resource
}

// roster are the streams of a topic's producers. Guarded by registry.mu.
type roster struct {
	seats []seat
	next  int // who is asked first
}

// declared are the topics of kind transaction that a producer's Settings list, as
// the client names them.
type declared map[zone.Topic]*pb.Resource

// seatAll makes s the only stream of the client that is asked, also about the
// topics, and returns the others. mu is held.
func (r *registry) seatAll(c *client, s *session, topics declared) (others []*session) {
	for _, o := range c.sessions {
		if o != s {
			r.unseat(o)
			others = append(others, o)
		}
	}
	for name, resource := range topics {
		r.seat(c, s, name, resource)
	}
	return others
}

// seat adds a stream to the topic's producers. mu is held.
func (r *registry) seat(c *client, s *session, name zone.Topic, resource *pb.Resource) {
	if slices.Contains(s.topics, name) {
		return
	}
	s.topics = append(s.topics, name)
	if r.producers[name] == nil {
		r.producers[name] = &roster{}
	}
	r.producers[name].seats = append(r.producers[name].seats, seat{c, s, resource})
}

// unseat takes a stream off all topics. mu is held.
func (r *registry) unseat(s *session) {
	for _, name := range s.topics {
		o := r.producers[name]
		if o.seats = slices.DeleteFunc(o.seats, func(x seat) bool { return x.session == s }); len(o.seats) == 0 {
			delete(r.producers, name)
		}
	}
	s.topics = nil
}

// seatNewest has the client asked over its newest stream whose Settings have come, and
// returns about what. mu is held.
func (r *registry) seatNewest(c *client) declared {
	for _, s := range slices.Backward(c.sessions) {
		if s.settled {
			topics := c.info.Load().topics
			for name, resource := range topics {
				r.seat(c, s, name, resource)
			}
			return topics
		}
	}
	return nil
}

// tellCame tells that somebody can be asked about the topics.
func (r *registry) tellCame(topics declared) {
	if r.came == nil {
		return
	}
	for name := range topics {
		r.came(name)
	}
}

// answered notes that a client has said something of a half message.
func (r *registry) answered(id string) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if c := r.clients[id]; c != nil && c.silent.Load() != 0 {
		c.silent.Store(0)
	}
}

// produces notes that the client has sent a half message of the topic, for clients
// whose Settings said nothing of it: its newest stream is asked about the topic, too.
func (r *registry) produces(id string, name zone.Topic, resource *pb.Resource) {
	r.mu.RLock()
	c := r.clients[id]
	known := c == nil || len(c.sessions) == 0 || slices.Contains(c.sessions[len(c.sessions)-1].topics, name)
	r.mu.RUnlock()
	if known {
		return
	}
	r.mu.Lock()
	seated := false
	if c := r.clients[id]; c != nil && len(c.sessions) > 0 {
		if s := c.sessions[len(c.sessions)-1]; s.settled {
			r.seat(c, s, name, resource)
			seated = true
		}
	}
	r.mu.Unlock()
	if seated {
		r.tellCame(declared{name: resource})
	}
}

// ask queues a check for one of the topic's producers: first those that were heard of
// lately, of these the one that was sent the fewest checks since it last said anything of
// a half message, and of equals each in turn. So one that answers nothing is asked no more than
// the others, and hardly at all beside one that does. It does not block.
func (r *registry) ask(c *broker.CheckBack) broker.CheckOutcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.producers[c.Topic]
	if o == nil {
		return broker.CheckNobody
	}
	outcome := broker.CheckNobody
	now := r.now()
	for _, stale := range []bool{false, true} {
		best, least := -1, int32(0)
		for i := range o.seats {
			at := (o.next + i) % len(o.seats)
			s := &o.seats[at]
			if (now-s.client.lastSeen.Load() >= int64(aliveTTL)) != stale || !s.takes(c.Size) {
				continue
			}
			if len(s.session.checks) == cap(s.session.checks) {
				outcome = broker.CheckFull
				continue
			}
			// What waits for the stream was not asked yet, and counts as well.
			if n := s.client.silent.Load() + int32(len(s.session.checks)); best < 0 || n < least {
				best, least = at, n
			}
			if least == 0 {
				break
			}
		}
		if best < 0 {
			continue
		}
		s := &o.seats[best]
		select {
		case s.session.checks <- check{c, s.resource}: // only ask fills it, and holds mu
			o.next = (best + 1) % len(o.seats)
			return broker.CheckQueued
		default:
			outcome = broker.CheckFull
		}
	}
	return outcome
}

// takes reports whether the client can receive a message of that size on its stream.
func (s *seat) takes(size int) bool {
	return size <= nodeMessage || s.client.info.Load().language != pb.Language_NODE_JS
}
