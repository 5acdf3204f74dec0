package admin

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Node is what a node shows. Methods are safe for concurrent use.
type Node interface {
	// Status returns the node's state. It does not block on the network.
	Status() Status
	// Topology returns the topology file in force.
	Topology() []byte
	// Find returns where the node has a message id. It reads the disk; it
	// returns ErrNotServed on a node without a log.
	Find(ctx context.Context, id string) ([]Sighting, error)
	// CacheGet returns a cache entry; ErrNotServed on a node without a cache.
	CacheGet(ctx context.Context, key string) (CacheEntry, error)
}

// ErrNotServed is returned by a Node for a question that its role has no answer to.
var ErrNotServed = errors.New("admin: not served by a node of this role")

// Limits of the server. A reader of status pages needs no more.
const (
	headerTimeout = 5 * time.Second
	writeTimeout  = 60 * time.Second // a message search reads the disk
	idleTimeout   = 60 * time.Second
	maxHeader     = 16 << 10 // bytes
	shutdownGrace = 3 * time.Second
	maxSearches   = 4 // requests that read the log at a time; a further one is refused with 503
	maxPages      = 4 // pages of metrics at a time; likewise
)

// Server serves one node.
type Server struct {
	ln      net.Listener
	http    *http.Server
	log     *slog.Logger
	metrics http.Handler

	operator func(*tls.ConnectionState) error // see Options
	conns    *conns

	searches, pages turns // of requests that read the log, and of pages of metrics

	mu      sync.Mutex
	over    bool           // guarded by mu; Run is about to return
	running sync.WaitGroup // requests; net/http does not wait for those that it cuts off
}

// Options configure a server.
type Options struct {
	Addr    string       // host:port; a loopback host unless TLS is set
	TLS     *tls.Config  // nil: plain HTTP on loopback
	Node    Node         // required
	Metrics http.Handler // required; see Meters.Handler
	Logger  *slog.Logger // required
	// Listen replaces TCP, for simulated networks; nil means TCP.
	Listen func(ctx context.Context, addr string) (net.Listener, error)

	DeadLetters  DeadLetters  // nil on a node without
	Flows        Flows        // nil on a node without
	Groups       Groups       // nil on a node without
	Waiting      Waiting      // nil on a node without
	BrokerGroups BrokerGroups // nil on a node without
	Tails        Tails        // nil on a node without
	// Operator, with TLS, judges who may change something; nil lets everybody
	// whom TLS lets in.
	Operator func(*tls.ConnectionState) error
}

// Listen binds the address. It refuses a non-loopback address without mutual TLS.
func Listen(ctx context.Context, o Options) (*Server, error) {
	if err := checkAddr(o.Addr, o.TLS); err != nil {
		return nil, err
	}
	if o.Listen == nil {
		o.Listen = func(ctx context.Context, addr string) (net.Listener, error) {
			var lc net.ListenConfig
			return lc.Listen(ctx, "tcp", addr)
		}
	}
	ln, err := o.Listen(ctx, o.Addr)
	if err != nil {
		return nil, fmt.Errorf("admin: listen on %s: %w", o.Addr, err)
	}
	if o.TLS != nil {
		ln = tls.NewListener(ln, o.TLS)
	}
	s := &Server{ln: ln, log: o.Logger, metrics: o.Metrics, operator: o.Operator, searches: turns{max: maxSearches}, pages: turns{max: maxPages}, conns: newConns(maxConns)}
	s.http = &http.Server{
		Handler:           s.joined(s.routes(&o)),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       headerTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ConnContext:       s.conns.open,
		ConnState:         s.conns.changed,
		ErrorLog:          slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug),
	}
	return s, nil
}

func checkAddr(addr string, cfg *tls.Config) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("admin: address %q: %w; write host:port", addr, err)
	}
	if cfg != nil && cfg.ClientAuth != tls.NoClientCert {
		return nil
	}
	if ip := net.ParseIP(host); (ip != nil && ip.IsLoopback()) || host == "localhost" {
		return nil
	}
	return fmt.Errorf("admin: address %q is not a loopback address: use one, or turn mutual TLS on for it (--admin-tls)", addr)
}

// Addr returns the bound address.
func (s *Server) Addr() string { return s.ln.Addr().String() }

// joined counts the requests that h serves, so that Run can wait for them.
func (s *Server) joined(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		over := s.over
		if !over {
			s.running.Add(1)
		}
		s.mu.Unlock()
		if over {
			http.Error(w, "stopping", http.StatusServiceUnavailable)
			return
		}
		defer s.running.Done()
		defer s.conns.serving(r)()
		h.ServeHTTP(w, r)
	})
}

// Run serves until ctx ends, then lets running requests finish for a moment,
// cuts off the others, and returns when none is left.
func (s *Server) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- s.http.Serve(s.ln) }()
	select {
	case err := <-done:
		return fmt.Errorf("admin: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	if err := s.http.Shutdown(grace); err != nil {
		s.http.Close()
	}
	<-done
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.running.Wait()
	return nil
}

func (s *Server) routes(o *Options) http.Handler {
	n := o.Node
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", ready(n))
	mux.HandleFunc("GET /readyz/publish", readyToPublish(n))
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		place := s.pages.take(w)
		if place == nil {
			http.Error(w, fmt.Sprintf("%d pages of metrics are being made, which is the limit: try again", maxPages), http.StatusServiceUnavailable)
			return
		}
		defer place.leave()
		s.metrics.ServeHTTP(place, r)
	})
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		s.answer(w, n.Status(), nil)
	})
	mux.HandleFunc("GET /v1/topology", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/yaml")
		if _, err := w.Write(n.Topology()); err != nil {
			s.log.Debug("admin client went away", "err", err)
		}
	})
	mux.HandleFunc("GET /v1/messages/{id}", func(w http.ResponseWriter, r *http.Request) {
		place := s.admit(w)
		if place == nil {
			return
		}
		defer place.leave()
		found, err := n.Find(r.Context(), r.PathValue("id"))
		s.answer(place, orEmpty(found), err)
	})
	mux.HandleFunc("GET /v1/cache/{key...}", func(w http.ResponseWriter, r *http.Request) {
		entry, err := n.CacheGet(r.Context(), r.PathValue("key"))
		s.answer(w, entry, err)
	})
	if o.DeadLetters != nil {
		s.deadLetterRoutes(mux, o.DeadLetters)
	}
	if o.Flows != nil {
		s.flowRoutes(mux, o.Flows)
	}
	if o.Groups != nil {
		s.groupRoutes(mux, o.Groups)
	}
	if o.Waiting != nil {
		s.waitingRoutes(mux, o.Waiting)
	}
	if o.BrokerGroups != nil {
		s.brokerGroupRoutes(mux, o.BrokerGroups)
	}
	if o.Tails != nil {
		s.tailRoutes(mux, o.Tails)
	}
	return mux
}

func (s *Server) answer(w http.ResponseWriter, v any, err error) {
	var wrong *RequestError
	switch {
	case errors.As(err, &wrong):
		http.Error(w, err.Error(), wrong.Status)
		return
	case errors.Is(err, ErrNotServed):
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		s.log.Debug("admin client went away", "err", err)
	}
}
