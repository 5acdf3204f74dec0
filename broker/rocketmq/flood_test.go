package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// address numbers addresses.
func address(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

// TestOneAddressTakesNoPlaceFromOthers: random comers of some addresses; whoever comes
// from an address with few has a place, at the cost of the one with most.
func TestOneAddressTakesNoPlaceFromOthers(t *testing.T) {
	var c crowd[int]
	var spots []*spot[int]
	for i := range 100 {
		spots = append(spots, c.enter(address(1), i))
	}
	spots = append(spots, c.enter(address(2), 100))
	if s := c.yields(address(1)); s != nil {
		t.Errorf("%d makes room for one more of the address that has most", s.place)
	}
	if s := c.oldest(address(2)); s.place != 0 {
		t.Errorf("the oldest is %d, want 0", s.place)
	}
	had := map[netip.Addr]int{address(1): 100, address(2): 1}
	for i := range 1000 {
		from := address(2 + i%9)
		s := c.yields(from)
		if s == nil {
			if most := c.order[0].places.Len(); most > had[from]+1 {
				t.Fatalf("nobody makes room for one with %d, and another has %d", had[from], most)
			}
			continue
		}
		c.leave(s)
		c.leave(s)
		had[s.party.addr]--
		had[from]++
		spots = append(spots, c.enter(from, i))
	}
	for a, n := range had {
		if got := c.parties[a].places.Len(); got != n || n < 10 || n > 11 {
			t.Errorf("%v has %d, counted were %d, want a tenth of 101", a, got, n)
		}
	}
	for _, s := range spots {
		c.leave(s)
	}
	if c.size != 0 || len(c.parties) != 0 || len(c.order) != 0 || c.yields(address(1)) != nil || c.oldest(address(1)) != nil {
		t.Errorf("%d places are left, of %d addresses", c.size, len(c.parties))
	}
}

// from opens a stream of a client at an address.
func (r *registry) from(at netip.Addr, id string) (*session, bool) {
	s := newSession()
	s.from = at
	ok := r.attach(id, s)
	if ok {
		r.settings(id, s, clientInfo{kind: pb.ClientType_PRODUCER, topics: declared{"tx": res("tx")}})
	}
	return s, ok
}

// ended reports whether a stream was told to end.
func (s *session) ended() bool {
	select {
	case <-s.end:
		return true
	default:
		return false
	}
}

// TestStreamsOfOneAddressKeepNobodyOut: an address has as many streams with Settings as
// there may be, each of a client of its own, or several of each; a client of another
// address has a place for itself and its stream, and one more of the same has none.
func TestStreamsOfOneAddressKeepNobodyOut(t *testing.T) {
	const limit = 24
	for each := range 12 {
		r := newRegistry(limit)
		var all []*session
		taken := func(i int) bool {
			s, ok := r.from(address(1), fmt.Sprint("made up ", i/(each+1)))
			if ok {
				all = append(all, s)
			}
			return ok
		}
		for i := 0; taken(i); i++ {
		}
		if n := len(r.clients) + r.streams; n < 2*limit {
			t.Fatalf("%d clients with %d streams fill it", len(r.clients), r.streams)
		}
		for i := range limit / 2 {
			id := fmt.Sprint("client ", i)
			s, ok := r.from(address(2+i), id)
			if !ok || s.ended() || r.clients[id] == nil {
				t.Fatalf("streams by %d: no place for %s", each+1, id)
			}
			defer r.detach(id, s)
		}
		if len(r.clients) > limit || r.streams > 2*limit {
			t.Errorf("%d clients, %d streams", len(r.clients), r.streams)
		}
		for i, s := range all {
			r.detach(fmt.Sprint("made up ", i/(each+1)), s)
		}
		if r.streams != limit/2 || r.crowded.size != limit/2 || r.crowd.size != len(r.clients) || len(r.producers["tx"].seats) != limit/2 {
			t.Errorf("then %d streams count, %d by address; %d clients, %d by address; %d are asked", r.streams, r.crowded.size, len(r.clients), r.crowd.size, len(r.producers["tx"].seats))
		}
	}
}

// placing is a listener whose connections come from made-up addresses.
type placing struct {
	net.Listener
	next atomic.Int64 // the address of those that come
}

type placed struct {
	net.Conn
	at net.Addr
}

func (p placed) RemoteAddr() net.Addr { return p.at }

// Accept implements net.Listener.
func (p *placing) Accept() (net.Conn, error) {
	c, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	ip := address(int(p.next.Load()))
	return placed{c, &net.TCPAddr{IP: ip.AsSlice(), Port: c.RemoteAddr().(*net.TCPAddr).Port}}, nil
}

// sniffing is a running sniffer whose connections come from made-up addresses.
type sniffing struct {
	*sniffer
	t    *testing.T
	from *placing
}

func startSniffing(t *testing.T, limit int) *sniffing {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &placing{Listener: inner}
	s := newSniffer(p, &Options{MaxConnections: limit, Logger: slog.New(slog.DiscardHandler)}, func(string) {}, newAnswers(leastRequests))
	t.Cleanup(func() { s.Close() })
	return &sniffing{s, t, p}
}

// connect connects from an address, and shows something if it is not empty.
func (s *sniffing) connect(from int, show string) net.Conn {
	s.t.Helper()
	s.from.next.Store(int64(from))
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, show); err != nil {
		s.t.Fatal(err)
	}
	return c
}

// accept returns the next connection that is served.
func (s *sniffing) accept() net.Conn {
	s.t.Helper()
	defer time.AfterFunc(enough, func() { s.Close() }).Stop() // ends Accept
	c, err := s.Accept()
	if err != nil {
		s.t.Fatal("nobody is served: ", err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

// gone fails unless the other side has closed the connection.
func gone(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(enough)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !isReset(err) && !errors.Is(err, io.EOF) {
		t.Errorf("%v, want a closed connection", err)
	}
}

// TestConnectionsOfOneAddressKeepNobodyOut: an address has as many connections as there
// may be, all in use. Another one has a place, and it is the newest that ends for it;
// one more of the first address is refused.
func TestConnectionsOfOneAddressKeepNobodyOut(t *testing.T) {
	const limit = 8
	s := startSniffing(t, limit)
	var crowd []net.Conn
	for range limit {
		crowd = append(crowd, s.connect(1, "P"))
		s.accept().(*conn).link.stream() // in use
	}
	gone(t, s.connect(1, ""))
	s.connect(2, "P")
	if at := s.accept().RemoteAddr().String(); !strings.HasPrefix(at, address(2).String()+":") {
		t.Errorf("served is %s", at)
	}
	gone(t, crowd[limit-1])
	s.connect(2, "P")
	s.accept()
	gone(t, crowd[limit-2])
	if n := s.Usage()[0].Full; n != 3 {
		t.Errorf("%d found the limit reached, want 3", n)
	}
}

// TestSilentConnectionsOfOneAddressEndEachOther: a client's handshake takes longer than
// an address needs to open as many connections as may be in theirs.
func TestSilentConnectionsOfOneAddressEndEachOther(t *testing.T) {
	s := startSniffing(t, 10_000)
	client := s.connect(2, "")
	for range maxHandshakes + 50 {
		s.connect(1, "")
	}
	await(t, "all have come", func() bool { return s.Usage()[1].Full >= 50 })
	if _, err := io.WriteString(client, "PRI"); err != nil {
		t.Fatal(err)
	}
	if at := s.accept().RemoteAddr().String(); !strings.HasPrefix(at, address(2).String()+":") {
		t.Errorf("served is %s", at)
	}
}

// TestSettingsThatAreKeptLeaveRoomForMessages: clients of many connections say large
// Settings, which are kept to be repeated. All are answered, and a consumer receives.
func TestSettingsThatAreKeptLeaveRoomForMessages(t *testing.T) {
	const limit, conns, each = 1 << 20, 16, 10
	b := startReal(t, func(o *Options) { o.unread = limit })
	c := b.dial(t, nil)
	mustSend(t, c, msg("t", "A", nil))
	var topics []string
	for i := range 250 {
		topics = append(topics, fmt.Sprintf("topic-with-a-long-name-%d", i))
	}
	for i := range conns {
		conn := b.dial(t, nil)
		for k := range each {
			reply(t, stream(t, conn, fmt.Sprintf("c%d-%d", i, k), producerSettings(topics...)))
		}
	}
	await(t, "the answers are written", func() bool { return b.answers.used.Load() == b.answers.kept.Load() })
	if kept := b.answers.kept.Load(); kept == 0 || kept > limit/8 {
		t.Errorf("%d bytes are kept, want some, and at most %d", kept, limit/8)
	}
	if got := pull(t, c, simple("g", "t", 1)); len(got.msgs) != 1 {
		t.Errorf("a consumer gets %v, and %d messages", got.status, len(got.msgs))
	}
	b.stop()
	if u, k := b.answers.used.Load(), b.answers.kept.Load(); u != 0 || k != 0 {
		t.Errorf("%d bytes are unread and %d kept when all is over", u, k)
	}
}

// TestRequestsThatArriveForEverKeepNobodyOut: an address has as many requests arriving
// as there may be. One more is refused, one of another address ends the oldest, and what
// arrives for long goes, whoever has it.
func TestRequestsThatArriveForEverKeepNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(leastRequests)
		m.most = 32
		begin := func(from int) (context.Context, error) {
			l := &link{Addr: &net.TCPAddr{}, from: address(from)}
			return m.begin(peer.NewContext(t.Context(), &peer.Peer{Addr: l}), nil)
		}
		var all []context.Context
		for range m.most {
			ctx, err := begin(1)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, ctx)
		}
		if _, err := begin(1); status.Code(err) != codes.Unavailable {
			t.Errorf("one more: %v, want UNAVAILABLE", err)
		}
		time.Sleep(cutEvery)
		client, err := begin(2)
		if err != nil || client.Err() != nil {
			t.Fatalf("of another address: %v", err)
		}
		if n := m.most / cutPart; !errors.Is(all[n-1].Err(), context.DeadlineExceeded) || all[n].Err() != nil {
			t.Errorf("the oldest ended with %v, the next with %v", all[n-1].Err(), all[n].Err())
		}
		time.Sleep(patience)
		for range m.most / cutPart {
			if _, err := begin(1); err != nil {
				t.Errorf("when the others are old: %v", err)
			}
			time.Sleep(cutEvery)
		}
		if client.Err() != nil {
			t.Errorf("the client's ended with %v, though another address has more", client.Err())
		}
		for e := m.line.Front(); e != nil; e = m.line.Front() {
			m.whole(e.Value.(*receiving))
		}
	})
}
