package rocketmq

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	// clientTTL drops the state of a client that has not been heard of for so
	// long; clients send heartbeats every 10 s, Rust every 30 s.
	clientTTL = 120 * time.Second
	// aliveTTL is how long a client without a Telemetry stream counts as alive:
	// just above the slowest heartbeat. After a stream broke it may be less (gone.go).
	aliveTTL = 35 * time.Second
	// expireEvery is how often the state is swept.
	expireEvery = 10 * time.Second
)

// clientInfo is what a client said of itself. Immutable.
type clientInfo struct {
	kind     pb.ClientType
	language pb.Language
	poll     time.Duration // long_polling_timeout of its Settings as answered; 0 = none
	topics   declared      // of a producer
}

// client is the state of one client id.
type client struct {
	info     atomic.Pointer[clientInfo]
	lastSeen atomic.Int64 // nanoseconds since the registry began
	added    int64        // as lastSeen
	sessions []*session   // guarded by registry.mu; oldest first
	renews   atomic.Bool  // it is a push consumer: the broker renews what it received
	broke    int64        // when its last stream ended, as lastSeen; -1 = none has; guarded by registry.mu
	told     int64        // when the store was told of its end, as lastSeen; -1 = never; guarded by registry.mu

	silent atomic.Int32 // checks that it was sent since it last said anything of a half message

	id   string
	spot *spot[*client] // its place; guarded by registry.mu
}

// session is one Telemetry stream.
type session struct {
	end    chan struct{} // closed when the stream is to end
	once   sync.Once
	checks chan check    // for the stream's writer; capacity maxCommands
	lost   chan lostLite // likewise

	topics  []zone.Topic    // about which it is asked; guarded by registry.mu
	settled bool            // its Settings have come; guarded by registry.mu
	client  *client         // guarded by registry.mu; nil before attach
	from    netip.Addr      // of its client; set before attach
	spot    *spot[*session] // as client.spot
	counts  bool            // it is one of registry.streams; guarded by registry.mu
	written []writtenCheck  // checks, oldest first; its handler's
}

func newSession() *session {
	return &session{end: make(chan struct{}), checks: make(chan check, maxCommands), lost: make(chan lostLite, maxCommands)}
}

func (s *session) stop() { s.once.Do(func() { close(s.end) }) }

// registry holds the clients, bounded. It is safe for concurrent use. Time is the
// monotonic clock of package time.
type registry struct {
	max   int
	begin time.Time

	mu      sync.RWMutex
	clients map[string]*client // guarded by mu
	full    uint64             // guarded by mu; clients, or their streams, that found no place
	streams int                // guarded by mu; attached and not told to end, at most two for each client that may be: one may come back before its old one has ended
	away    map[string]*client // guarded by mu; of these: without a stream
	swept   int64              // guarded by mu; when forgetBrief has looked last
	left    []string           // guarded by mu; push consumers that said goodbye since the last takeGone

	crowd   crowd[*client]  // guarded by mu; of clients
	crowded crowd[*session] // guarded by mu; of streams

	producers map[zone.Topic]*roster // guarded by mu; of topics that have any
	came      func(zone.Topic)       // told of producers that can be asked; nil: nobody wants to know; set before use
}

func newRegistry(limit int) *registry {
	return &registry{max: limit, begin: time.Now(), clients: map[string]*client{}, away: map[string]*client{}, producers: map[zone.Topic]*roster{}}
}

func (r *registry) now() int64 { return int64(time.Since(r.begin)) }

// see notes that the client was heard of and returns what is known of it. A client
// that is not known is added, as far as the limit allows: known is false then.
func (r *registry) see(ctx context.Context, id string, kind pb.ClientType) (info clientInfo, known bool) {
	r.mu.RLock()
	c := r.clients[id]
	r.mu.RUnlock()
	if c == nil {
		from := clientAddr(ctx)
		r.mu.Lock()
		c = r.add(id, clientInfo{kind: kind}, from)
		r.mu.Unlock()
		if c == nil {
			return clientInfo{kind: kind}, false
		}
	}
	c.lastSeen.Store(r.now())
	if renewed(kind) && !c.renews.Load() {
		c.renews.Store(true)
	}
	old := c.info.Load()
	if old.kind != pb.ClientType_CLIENT_TYPE_UNSPECIFIED || kind == pb.ClientType_CLIENT_TYPE_UNSPECIFIED {
		return *old, true
	}
	// First heard of by a call that does not tell its type, such as an
	// acknowledgement after a restart of this server.
	next := *old
	next.kind = kind
	if !c.info.CompareAndSwap(old, &next) {
		next = *c.info.Load() // its Settings came at the same moment
	}
	return next, true
}

// heard notes that a client was heard of, if it is known: who only sends takes no place
// in the registry. Every send passes here.
func (r *registry) heard(id string) {
	r.mu.RLock()
	c := r.clients[id]
	r.mu.RUnlock()
	if c != nil {
		c.lastSeen.Store(r.now())
	}
}

// add returns the client, made if the limit allows; the caller holds mu.
func (r *registry) add(id string, info clientInfo, from netip.Addr) *client {
	if c := r.clients[id]; c != nil {
		return c
	}
	if len(r.clients) >= r.max && !r.forgetBrief() {
		r.full++
		s := r.crowd.yields(from)
		if s == nil {
			return nil
		}
		r.end(s.place)
	}
	c := &client{id: id, broke: -1, told: -1, added: r.now()}
	c.info.Store(&info)
	c.lastSeen.Store(c.added)
	c.spot = r.crowd.enter(from, c)
	r.clients[id], r.away[id] = c, c
	return c
}

// forget takes a client out of the registry, whatever streams it has. mu is held.
func (r *registry) forget(c *client) {
	r.leave(c.id, c)
	r.crowd.leave(c.spot)
	delete(r.clients, c.id)
	delete(r.away, c.id)
}

// end forgets a client and ends its streams. mu is held.
func (r *registry) end(c *client) {
	for _, s := range c.sessions {
		r.endStream(s)
	}
	r.forget(c)
}

// endStream has a stream end, which holds no place from now on. mu is held.
func (r *registry) endStream(s *session) {
	s.stop()
	r.unseat(s)
	r.uncount(s)
}

// uncount frees the place of a stream. mu is held.
func (r *registry) uncount(s *session) {
	if s.counts {
		s.counts = false
		r.streams--
		r.crowded.leave(s.spot)
	}
}

// A client that is gone gives its place to another when there is none, and so does one
// that was heard of for less than briefTime and has had no stream: clients open one at
// once, so that ids that are made up for a call each keep none of them out. It is looked
// for them every sweepBrief.
const (
	briefTime  = time.Second
	sweepBrief = 100 * time.Millisecond
)

// forgetBrief makes room and reports whether there is any; the caller holds mu.
func (r *registry) forgetBrief() bool {
	now := r.now()
	if r.swept > 0 && now-r.swept < int64(sweepBrief) {
		return false
	}
	r.swept = now
	for _, c := range r.away {
		seen := c.lastSeen.Load()
		brief := c.broke < 0 && seen-c.added < int64(briefTime) && now-seen >= int64(briefTime)
		if brief || !c.lives(now) {
			r.forget(c)
		}
	}
	return len(r.clients) < r.max
}

// attach makes s the newest stream of the client. The oldest beyond maxSessions is
// told to end. It reports false when the registry is full.
func (r *registry) attach(id string, s *session) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.streams >= 2*r.max {
		r.full++
		other := r.crowded.yields(s.from)
		if other == nil {
			return false
		}
		r.endStream(other.place)
	}
	c := r.add(id, clientInfo{}, s.from)
	if c == nil {
		return false
	}
	c.lastSeen.Store(r.now())
	delete(r.away, id)
	s.client = c
	s.counts, s.spot = true, r.crowded.enter(s.from, s)
	r.streams++
	c.sessions = append(c.sessions, s)
	if len(c.sessions) > maxSessions {
		r.endStream(c.sessions[0])
		c.sessions = c.sessions[1:]
	}
	return true
}

// settings stores what the client said on stream s, unless a newer stream exists.
func (r *registry) settings(id string, s *session, info clientInfo) {
	r.unasked(r.settle(id, s, info)...)
	r.tellCame(info.topics)
}

// settle is settings; it returns the streams that are asked no more.
func (r *registry) settle(id string, s *session, info clientInfo) (others []*session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.clients[id]
	if c == nil {
		return nil
	}
	c.lastSeen.Store(r.now())
	if n := len(c.sessions); n > 0 && c.sessions[n-1] == s {
		c.info.Store(&info)
		s.settled = true
		return r.seatAll(c, s, info.topics)
	}
	return nil
}

// detach forgets a stream that has ended; the client's state stays until it expires. If
// the client was asked over that stream, it is over the newest of the others.
func (r *registry) detach(id string, s *session) { r.tellCame(r.remove(id, s)) }

// remove is detach; it returns about what the client is asked over another stream.
func (r *registry) remove(id string, s *session) (seated declared) {
	r.mu.Lock()
	defer r.mu.Unlock()
	asked := len(s.topics) > 0
	r.unseat(s)
	r.uncount(s)
	if c := r.clients[id]; c != nil {
		had := len(c.sessions)
		c.sessions = slices.DeleteFunc(c.sessions, func(o *session) bool { return o == s })
		if had > 0 && len(c.sessions) == 0 {
			c.broke, r.away[id] = r.now(), c
		}
		if asked {
			return r.seatNewest(c)
		}
	}
	return nil
}

// drop forgets the client at its own word. Its streams end by themselves.
func (r *registry) drop(id string) { r.unasked(r.dismiss(id)...) }

// dismiss is drop; it returns the client's streams.
func (r *registry) dismiss(id string) (sessions []*session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.clients[id]; c != nil {
		sessions = c.sessions
		for _, s := range sessions {
			r.unseat(s)
		}
		r.forget(c)
	}
	return sessions
}

// kind returns the client's type, 0 when it is not known.
func (r *registry) kind(id string) pb.ClientType {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if c := r.clients[id]; c != nil {
		return c.info.Load().kind
	}
	return pb.ClientType_CLIENT_TYPE_UNSPECIFIED
}

// alive reports whether the client is there to finish what it received.
func (r *registry) alive(id string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	c := r.clients[id]
	return c != nil && c.lives(r.now())
}

// expire drops the clients that were not heard of for clientTTL and ends their
// streams, so that a stream without heartbeats holds no place for ever.
func (r *registry) expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for _, c := range r.clients {
		if now-c.lastSeen.Load() >= int64(clientTTL) {
			r.end(c)
		}
	}
}

// size returns the number of clients.
func (r *registry) size() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.clients)
}
