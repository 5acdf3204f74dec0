package call

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/mqrouter/mqrouter/internal/bounds"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// Bounds is what an answerer takes on at a time. A zero field takes the default.
type Bounds struct {
	PerPeer int   // calls of one peer; default 512
	Bytes   int64 // bodies of all calls; default 64 MiB
}

// ServerOptions tells a Server what to be.
type ServerOptions struct {
	// Handle does what is asked. ctx ends when nobody waits any more. An error that
	// is a *Fault is told to the caller; any other one stands for the end of
	// this node or of ctx, and the caller is told that there is no answer. body is
	// Handle's to keep. Required.
	Handle func(ctx context.Context, kind uint8, body []byte) ([]byte, error)
	// May returns why a peer that may call is not to make calls of a kind; nil lets each
	// make all.
	May    func(from zone.Node, kind uint8) error
	Bounds Bounds
	// KindName names a kind in metrics; nil = by its number.
	KindName func(kind uint8) string
	Meter    metric.Meter // nil measures nothing
}

// Server answers. It is safe for concurrent use.
type Server struct {
	o       ServerOptions
	metrics *metrics

	mu    sync.Mutex
	peers map[zone.Node]int // calls being served; guarded by mu
	bytes int64             // of their bodies; guarded by mu
	full  uint64            // calls refused for a bound; guarded by mu
}

// NewServer returns a Server.
func NewServer(o ServerOptions) (*Server, error) {
	if o.Bounds.PerPeer <= 0 {
		o.Bounds.PerPeer = 512
	}
	if o.Bounds.Bytes <= 0 {
		o.Bounds.Bytes = 64 << 20
	}
	m, err := newMetrics(o.Meter, "in", o.KindName)
	if err != nil {
		return nil, err
	}
	return &Server{o: o, metrics: m, peers: map[zone.Node]int{}}, nil
}

// Serve answers the call that began the session of a peer who may call, which the
// caller has judged. It returns when the answer was handed to the connection, or the
// session or ctx has ended; the error says why there was no answer.
func (s *Server) Serve(ctx context.Context, from zone.Node, st wire.Stream, first wire.Frame) error {
	x, err := wire.ParseCall(first.Payload)
	if err != nil {
		return errors.Join(err, s.refuse(ctx, st, wire.CodeMalformed, err.Error()))
	}
	if s.o.May != nil {
		if err := s.o.May(from, x.Kind); err != nil {
			return errors.Join(err, s.refuse(ctx, st, wire.CodeWrongIdentity, err.Error()))
		}
	}
	if text := s.enter(from, len(x.Body)); text != "" {
		return errors.Join(errors.New("call: "+text), s.refuse(ctx, st, wire.CodeTooMany, text))
	}
	defer s.leave(from, len(x.Body))
	ctx, cancel := context.WithTimeout(ctx, min(x.Time, MaxTime))
	defer cancel()
	var watch sync.WaitGroup
	work, gone := context.WithCancel(ctx)
	defer watch.Wait()
	defer gone()
	watch.Go(func() {
		for {
			f, err := st.Recv(work)
			if err != nil || f.Type != wire.TypeDrain { // the end, or what no caller sends
				gone()
				return
			}
		}
	})
	began := time.Now()
	body, err := s.o.Handle(work, x.Kind, x.Body)
	s.metrics.took(x.Kind, began, err)
	return s.answer(ctx, st, body, err)
}

// answer sends what became of a call.
func (s *Server) answer(ctx context.Context, st wire.Stream, body []byte, err error) error {
	r := wire.Reply{Body: body}
	var f *Fault
	switch {
	case errors.As(err, &f) && f.Kind != 0:
		r = wire.Reply{Fault: f.Kind, Text: f.Text}
	case err != nil:
		// The session ends without an answer: the call may have been done.
		return err
	case len(body) > wire.MaxCall:
		return fmt.Errorf("call: an answer of %d bytes; at most %d are allowed", len(body), wire.MaxCall)
	}
	return st.Send(ctx, wire.Frame{Type: wire.TypeReply, Payload: r.Append(nil)})
}

// refuse tells the caller that the call was not looked at.
func (s *Server) refuse(ctx context.Context, st wire.Stream, code wire.Code, text string) error {
	r := wire.Refuse{Code: code, Text: text}
	return st.Send(ctx, wire.Frame{Type: wire.TypeRefuse, Payload: r.Append(nil)})
}

// enter takes a place for a call, or says which bound is reached. A body larger
// than all the bytes is taken alone, so that no bound makes a legal call
// impossible.
func (s *Server) enter(from zone.Node, n int) (text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.peers[from] >= s.o.Bounds.PerPeer:
		text = fmt.Sprintf("%d calls of %s are being served", s.o.Bounds.PerPeer, from)
	case s.bytes > 0 && s.bytes+int64(n) > s.o.Bounds.Bytes:
		text = fmt.Sprintf("calls with %d bytes are being served", s.bytes)
	default:
		s.peers[from]++
		s.bytes += int64(n)
		return ""
	}
	s.full++
	return text
}

func (s *Server) leave(from zone.Node, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes -= int64(n)
	if s.peers[from]--; s.peers[from] == 0 {
		delete(s.peers, from)
	}
}

// Usage tells how many bytes of calls are being served.
func (s *Server) Usage() bounds.Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bounds.Usage{Name: "call.in", Unit: "By", Depth: s.bytes, Limit: s.o.Bounds.Bytes, Full: s.full}
}
