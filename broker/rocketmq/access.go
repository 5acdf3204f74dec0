package rocketmq

import (
	"context"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"go.opentelemetry.io/otel/metric"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/mqrouter/mqrouter/internal/loglimit"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/policy"
)

// AccessSource says who may do what. It is safe for concurrent use.
type AccessSource interface {
	// Watch returns what is in force, and a channel that is closed when something
	// else is. It does not block.
	Watch() (*policy.Access, <-chan struct{})
}

// Bounds of what is remembered of peers.
const (
	maxProven  = 1 << 14 // connections that have shown a good credential, the latest
	maxSuspect = 1 << 13 // addresses with failures, the latest
)

// Failures of one address: a burst of failBurst, then one each failEvery. The answer
// to what is beyond is held for a while, so that a client that repeats at once, as
// all do, and one that guesses, wait. What there is no room to hold is answered at
// once, and the connection rests (rest.go), so that failing is limited by time and not by
// what each failure costs here. Good credentials are not touched: nobody shuts out
// another by failing from the same address.
const (
	failEvery = 3 * time.Second
	failBurst = 20
	failHold  = time.Second
	maxHeld   = 256  // of one address
	maxHolds  = 4096 // of all; beyond, failures are answered at once

	failRests = 100 // failures of one address a second that are not held and have its connections rest no longer
)

// guard stands before every call: who is it, and may it do that? A nil guard lets
// everything through.
type guard struct {
	source AccessSource
	log    *slog.Logger
	denied metric.Int64Counter

	proven   *lru.Cache[string, *proven]      // by the connection's remote address
	suspects *lru.Cache[netip.Addr, *suspect] // by address, of an IPv6 one the /64
	held     atomic.Int64                     // answers to failures that are being held
	unheld   atomic.Uint64                    // failures that were not held for want of room
	hold     time.Duration
	stopping <-chan struct{}

	strangers, forbidden loglimit.Limit // lines about either

	mu    sync.Mutex
	calls map[*guarded]struct{} // guarded by mu: streams that can outlive what is in force
}

// suspect is an address from which something failed.
type suspect struct {
	fails *rate.Limiter
	rests *rate.Limiter // of those that are not held
	held  atomic.Int64

	resting atomic.Int64 // connections that rest
}

// proven is a credential that was found good on a connection. Clients sign the
// second, so many calls show the same one.
type proven struct {
	signed signed
	access *policy.Access
	user   *policy.User
}

func newGuard(o *Options, stopping <-chan struct{}) (*guard, error) {
	if o.Access == nil {
		return nil, nil
	}
	g := &guard{source: o.Access, log: o.Logger, calls: map[*guarded]struct{}{}, hold: failHold, stopping: stopping,
		strangers: loglimit.Limit{Lines: deniedLines, Window: time.Minute}, forbidden: loglimit.Limit{Lines: deniedLines, Window: time.Minute}}
	var err error
	if g.proven, err = lru.New[string, *proven](maxProven); err != nil {
		return nil, fmt.Errorf("rocketmq: access: %w", err)
	}
	if g.suspects, err = lru.New[netip.Addr, *suspect](maxSuspect); err != nil {
		return nil, fmt.Errorf("rocketmq: access: %w", err)
	}
	if g.denied, err = o.Meter.Int64Counter(metricDenied, metric.WithUnit("{request}"), metric.WithDescription("Requests refused by access control, by reason.")); err != nil {
		return nil, fmt.Errorf("rocketmq: access: %w", err)
	}
	return g, nil
}

// caller is who makes a call.
type caller struct {
	user   *policy.User
	cred   policy.Credential
	access *policy.Access // that accepted the credential
	origin
}

// who identifies the caller, or says why not.
func (g *guard) who(ctx context.Context, a *policy.Access) (caller, *pb.Status) {
	shown := signedOf(ctx)
	c := caller{origin: originOf(ctx), access: a}
	var ok bool
	if c.cred, ok = shown.credential(); !ok {
		return c, g.stranger(ctx, c, "the authorization header is not one of RocketMQ 5")
	}
	if c.cred.Key == "" {
		c.cred = policy.Credential{}
		if user, proof := a.Authenticate(c.cred, time.Now()); proof == policy.Accepted {
			c.user = user
			return c, nil
		}
		return c, g.stranger(ctx, c, "credentials are needed: give the client an access key and a secret")
	}
	before, known := g.proven.Get(c.conn)
	if known && before.access == a && before.signed.same(shown) && a.InTime(shown.date, time.Now()) {
		c.user = before.user
		used(ctx)
		return c, nil
	}
	user, proof := a.Authenticate(c.cred, time.Now())
	switch proof {
	case policy.Accepted:
		c.user = user
		g.proven.Add(c.conn, &proven{shown, a, user})
		used(ctx)
		return c, nil
	case policy.OutOfTime:
		return c, g.stranger(ctx, c, outOfTime(a, shown.date, time.Now()))
	}
	return c, g.stranger(ctx, c, "the access key or its signature is wrong")
}

// outOfTime says what is wrong with the date of a call, to somebody whose signature is good.
func outOfTime(a *policy.Access, date string, now time.Time) string {
	off, allowed, ok := a.OffTime(date, now)
	if !ok {
		return "the date of the request (x-mq-date-time), " + cut(date) + ", is none: write it like " + now.UTC().Format("20060102T150405Z")
	}
	return fmt.Sprintf("the date of the request, %s, is off by %v or more, and %v are allowed: set the client's clock, it is %s here",
		cut(date), off.Round(time.Second), allowed, now.UTC().Format("20060102T150405Z"))
}

func (s signed) same(o signed) bool {
	return s.date == o.date && subtle.ConstantTimeCompare([]byte(s.authorization), []byte(o.authorization)) == 1
}

// stranger refuses a caller. The answer may take a while; see failHold.
func (g *guard) stranger(ctx context.Context, c caller, why string) *pb.Status {
	g.count(ctx, "unauthorized")
	if missed, ok := g.strangers.Allow(time.Now()); ok {
		g.log.Warn("client not known", "peer", c.client, "via", c.via(), "access_key", cut(c.cred.Key), "err", why, "suppressed", missed)
	}
	if s := g.suspect(c.client); s != nil && !s.fails.Allow() {
		g.wait(ctx, s)
	}
	return refuse(pb.Code_UNAUTHORIZED, why)
}

// suspect returns what is remembered of the address, from now on if nothing was.
func (g *guard) suspect(peer string) *suspect {
	addr, ok := addressOf(peer)
	if !ok {
		return nil
	}
	if s, ok := g.suspects.Get(addr); ok {
		return s
	}
	s := &suspect{fails: rate.NewLimiter(rate.Every(failEvery), failBurst), rests: rate.NewLimiter(failRests, 1)}
	if other, ok, _ := g.suspects.PeekOrAdd(addr, s); ok {
		return other
	}
	return s
}

// wait holds an answer, if there is room for one more to be held. Else the call's
// connection rests.
func (g *guard) wait(ctx context.Context, s *suspect) {
	mine, all := s.held.Add(1), g.held.Add(1)
	defer s.held.Add(-1)
	defer g.held.Add(-1)
	if mine > maxHeld || all > maxHolds {
		g.unheld.Add(1)
		if l, ok := linkFrom(ctx); ok {
			l.rest(s)
		}
		return
	}
	timer := time.NewTimer(g.hold)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-g.stopping:
	}
}

// may judges what a caller wants; nil lets it.
func (g *guard) may(ctx context.Context, c caller, user *policy.User, needs []need) *pb.Status {
	for _, n := range needs {
		if n.met(user) {
			continue
		}
		g.count(ctx, "forbidden")
		if missed, ok := g.forbidden.Allow(time.Now()); ok {
			g.log.Warn("call forbidden", "peer", c.client, "via", c.via(), "user", user.Name(), "wanted", cut(n.String()), "suppressed", missed)
		}
		return refuse(pb.Code_FORBIDDEN, user.Name()+" may not "+n.String())
	}
	return nil
}

func (g *guard) count(ctx context.Context, reason string) {
	g.denied.Add(ctx, 1, metric.WithAttributes(attrError.String(reason)))
}

// unary is the interceptor of calls with one request and one answer.
func (g *guard) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	a, _ := g.source.Watch()
	c, st := g.who(ctx, a)
	if st == nil {
		st = g.may(ctx, c, c.user, needsOf(ctx, req))
	}
	if st == nil {
		return handler(owned(ctx, c.user), req)
	}
	if answer := refusalOf(req, st); answer != nil {
		return answer, nil
	}
	return nil, status.Error(codes.PermissionDenied, st.GetMessage())
}

// owned puts the user before the client id, which the client makes up: nobody
// becomes another user's client.
func owned(ctx context.Context, u *policy.User) context.Context {
	const key = "x-mq-client-id"
	id := metadata.ValueFromIncomingContext(ctx, key)
	if len(id) == 0 || id[0] == "" || len(id[0]) > maxClientID {
		return ctx // refused for that
	}
	md, _ := metadata.FromIncomingContext(ctx)
	md.Set(key, u.Key+"|"+id[0])
	return metadata.NewIncomingContext(ctx, md)
}

// addressOf is what failures of a peer are counted for: whoever has one IPv6 address
// has the /64 around it.
func addressOf(peer string) (netip.Addr, bool) {
	host, _, err := net.SplitHostPort(peer)
	if err != nil {
		return netip.Addr{}, false
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Addr{}, false
	}
	if addr = addr.Unmap().WithZone(""); addr.Is6() {
		if net, err := addr.Prefix(64); err == nil {
			addr = net.Addr()
		}
	}
	return addr, true
}

// maxTold bounds what a client wrote in logs and answers; bytes.
const maxTold = 128

// cut keeps a client's text short, and such that an answer can have it: headers may
// hold any bytes, and a string of the protocol must be UTF-8.
func cut(s string) string {
	if len(s) > maxTold {
		return strings.ToValidUTF8(s[:maxTold], "?") + "..."
	}
	return strings.ToValidUTF8(s, "?")
}
