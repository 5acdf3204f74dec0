package rocketmq

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/mqrouter/mqrouter/internal/bounds"
	"github.com/mqrouter/mqrouter/zone"
)

// Upstream is the front end of a broker group's master. Upstream values are compared:
// TLS is the same pointer as long as the rest is the same.
type Upstream struct {
	Node  zone.Node // "" = the group has no master now
	Epoch uint64    // in which it leads
	Addr  string    // host:port of its client address
	// TLS has this node's certificate for it; nil is plaintext, over which the master
	// believes nothing that is said of clients.
	TLS *tls.Config
}

// ForwarderOptions configure a Forwarder. Zero values of all but Master are useful.
type ForwarderOptions struct {
	// Master returns the group's master as it is known now, and a channel that is
	// closed when another is. It does not block.
	Master func() (Upstream, <-chan struct{})
	// Dial connects over TCP; nil takes the operating system's network.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	TLS            *tls.Config   // as in Options
	Fellow         *tls.Config   // as in Options
	PlaintextOff   bool          // as in Options
	Grace          time.Duration // as in Options
	MaxConnections int           // as in Options
	MaxStreams     int           // as in Options
	MaxRequests    int           // as in Options: bytes of requests that are on their way

	// Hold is how long a request waits for a master at most, and no longer than
	// shortly before its client gives it up; 0 means 5 s. MaxHeld bounds the requests
	// that wait at one time; 0 means 4,096.
	Hold    time.Duration
	MaxHeld int

	Logger *slog.Logger // nil discards
}

var errNoMaster = errors.New("rocketmq: a forwarder needs to know the master")

// Forwarder is the front end of a node that is not the master of its group: every call
// of a client goes on to the master's front end as it came, and the answer back. It
// reads no message and judges nobody. Its methods are safe for concurrent use.
//
// Each connection of a client has one of its own to the master, so that clients share
// no window and no fate, and the master sees a client's connection end when it does.
// When the master changes, the calls that are on their way to the old one end; the
// next go to the new one, over the same connection of the client.
type Forwarder struct {
	o       ForwarderOptions
	grpc    *grpc.Server
	memory  *memory
	answers *answers
	dials   *dials
	sniff   atomic.Pointer[sniffer] // nil before Run

	held    atomic.Int64  // calls that wait for a master
	unheld  atomic.Uint64 // calls that found too many of them
	refused atomic.Uint64 // calls that were answered without a master

	stopping context.Context // ends when the forwarder begins to stop
	stop     context.CancelFunc
	once     sync.Once      // guards Run
	readers  sync.WaitGroup // of requests

	mu      sync.Mutex
	clients map[*through]struct{} // guarded by mu: open connections
}

// NewForwarder makes a forwarder; Run starts it.
func NewForwarder(o ForwarderOptions) (*Forwarder, error) {
	if o.Master == nil {
		return nil, errNoMaster
	}
	shared := Options{PlaintextOff: o.PlaintextOff, TLS: o.TLS, Grace: o.Grace, MaxConnections: o.MaxConnections,
		MaxStreams: o.MaxStreams, MaxRequests: o.MaxRequests, Logger: o.Logger}
	if shared.PlaintextOff && shared.TLS == nil {
		return nil, errNoTransport
	}
	shared = shared.withDefaults()
	o.Grace, o.MaxConnections, o.MaxStreams, o.MaxRequests, o.Logger = shared.Grace, shared.MaxConnections, shared.MaxStreams, shared.MaxRequests, shared.Logger
	if o.Hold <= 0 {
		o.Hold = 5 * time.Second
	}
	if o.MaxHeld <= 0 {
		o.MaxHeld = 4096
	}
	if o.Dial == nil {
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	f := &Forwarder{o: o, memory: newMemory(int64(o.MaxRequests)), answers: newAnswers(int64(o.MaxRequests)), dials: newDials(o.Dial), clients: map[*through]struct{}{}}
	f.memory.anybody = true
	f.stopping, f.stop = context.WithCancel(context.Background())
	f.grpc = grpc.NewServer(append(bounded(f.memory, o.MaxStreams),
		grpc.ForceServerCodecV2(frameCodec{}),
		grpc.ChainStreamInterceptor(f.memory.arriving),
		grpc.UnknownServiceHandler(f.forward),
	)...)
	return f, nil
}

// Run serves the listener, which it takes over, until ctx ends or the listener fails.
// Then polls and Telemetry streams end at once, other calls have Grace to end, and
// everything is joined. It returns nil after ctx ended.
func (f *Forwarder) Run(ctx context.Context, l net.Listener) error {
	err := errRan
	f.once.Do(func() { err = f.run(ctx, l) })
	return err
}

func (f *Forwarder) run(ctx context.Context, l net.Listener) error {
	shared := Options{TLS: f.o.TLS, Fellow: f.o.Fellow, PlaintextOff: f.o.PlaintextOff, MaxConnections: f.o.MaxConnections, Logger: f.o.Logger}
	sniff := newSniffer(l, &shared, func(string) {}, f.answers)
	f.sniff.Store(sniff)
	serving := serving{grpc: f.grpc, stop: f.stop, grace: f.o.Grace, logger: f.o.Logger}
	err := serving.run(ctx, &throughs{Listener: sniff, f: f}, f.follow, f.sweepLoop)
	f.readers.Wait()
	if err != nil {
		return fmt.Errorf("rocketmq: forward: %w", err)
	}
	return nil
}

// follow ends what is on its way to a node that is master no more.
func (f *Forwarder) follow() {
	for {
		to, changed := f.o.Master()
		f.mu.Lock()
		all := make([]*through, 0, len(f.clients))
		for c := range f.clients {
			all = append(all, c)
		}
		f.mu.Unlock()
		for _, c := range all {
			c.leave(to)
		}
		select {
		case <-f.stopping.Done():
			return
		case <-changed:
		}
	}
}

// Usage tells how full the forwarder's bounds are.
func (f *Forwarder) Usage() []bounds.Usage {
	all := []bounds.Usage{f.memory.Usage(), f.answers.Usage(),
		{Name: "client.masterless", Unit: "request", Depth: f.held.Load(), Limit: int64(f.o.MaxHeld), Full: f.unheld.Load()},
		{Name: "client.dialling", Unit: "connection", Depth: int64(len(f.dials.places)), Limit: maxDials, Full: f.dials.waited.Load()}}
	if l := f.sniff.Load(); l != nil {
		all = append(all, l.Usage()...)
	}
	return all
}

// Refused returns how many calls were answered without a master.
func (f *Forwarder) Refused() uint64 { return f.refused.Load() }
