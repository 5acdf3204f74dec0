package broker

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// wantReader is a cachesync's end of a session.
type wantReader struct {
	t     *testing.T
	s     wire.Stream
	done  chan error
	found wire.Found
	bytes uint64
	next  uint64
}

func readLandings(t *testing.T, s *site, w wire.Want) *wantReader {
	t.Helper()
	a, b := flow.Pipe()
	r := &wantReader{t: t, s: a, done: make(chan error, 1)}
	first := wire.Frame{Type: wire.TypeWant, Session: 42, Payload: w.Append(nil)}
	go func() { r.done <- s.ServeWant(s.ctx, b, first) }()
	f, err := a.Recv(t.Context())
	if err != nil || f.Type != wire.TypeFound || f.Session != 42 {
		t.Fatalf("%s frame, %v; want found", f.Type, err)
	}
	if r.found, err = wire.ParseFound(f.Payload); err != nil {
		t.Fatal(err)
	}
	r.next = r.found.Next
	return r
}

// read returns the ids of the next n landings.
func (r *wantReader) read(n int) []string {
	r.t.Helper()
	var ids []string
	for len(ids) < n {
		f, err := r.s.Recv(r.t.Context())
		if err != nil {
			r.t.Fatal(err)
		}
		l, err := wire.ParseLanded(f.Payload)
		if err != nil || l.First != r.next {
			r.t.Fatalf("landed from %d, %v; want %d", l.First, err, r.next)
		}
		r.next += uint64(l.Count)
		r.bytes += uint64(len(l.Data))
		for range l.Count {
			env, rest, err := wire.NextItem(l.Data)
			if err != nil {
				r.t.Fatal(err)
			}
			rec, rest, err := wire.NextItem(rest)
			if err != nil {
				r.t.Fatal(err)
			}
			l.Data = rest
			var e record.Envelope
			if _, err := record.ParseEnvelope(env, &e); err != nil || e.Number == 0 {
				r.t.Fatalf("envelope %+v, %v", e, err)
			}
			v, err := record.Parse(rec)
			if err != nil {
				r.t.Fatal(err)
			}
			ids = append(ids, string(v.MessageID()))
		}
	}
	return ids
}

// envelope returns the envelope of the next landing and ignores those that came
// with it.
func (r *wantReader) envelope() record.Envelope {
	r.t.Helper()
	f, err := r.s.Recv(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	l, err := wire.ParseLanded(f.Payload)
	if err != nil {
		r.t.Fatal(err)
	}
	env, _, err := wire.NextItem(l.Data)
	if err != nil {
		r.t.Fatal(err)
	}
	var e record.Envelope
	if _, err := record.ParseEnvelope(env, &e); err != nil {
		r.t.Fatal(err)
	}
	r.next += uint64(l.Count)
	return e
}

func (r *wantReader) applied(offset uint64, c wire.Credit) {
	r.t.Helper()
	a := wire.Applied{Offset: offset, Credit: c}
	if err := r.s.Send(r.t.Context(), wire.Frame{Type: wire.TypeApplied, Session: 42, Payload: a.Append(nil)}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *wantReader) end() {
	r.t.Helper()
	r.s.Close(wire.CodeOK)
	if err := <-r.done; err != nil {
		r.t.Fatalf("ServeWant: %v", err)
	}
}

func TestWantReadsLandingsAndMovesTheSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sample(t), testLimits(), "rz02-a-1", "cz-sh-a-1", "cz-hz-a-1", "cz-sz-a-1")
		defer w.close()
		from, here := w.sites["rz02-a"], w.sites["cz-sh-a"]
		publish := func(prefix string, n int) (ids []string) {
			for i := range n {
				ids = append(ids, fmt.Sprintf("%s-%d", prefix, i))
				from.publish(from.message("member", ids[i]))
			}
			return ids
		}
		ids := publish("a", 10)
		w.settled()
		want := wire.Want{Subscription: "member-cache", Topic: "member", Credit: wire.Credit{Number: 4, Bytes: 1 << 20}}
		r := readLandings(t, here, want)
		if r.found.Group != "cz-sh-a" || r.found.Next != 0 || r.found.Head != 10 || r.found.Incarnation != here.log.Incarnation() {
			t.Fatalf("found %+v", r.found)
		}
		got := r.read(5) // offsets 0 to 4: no more is covered by the credit
		synctest.Wait()
		r.applied(5, wire.Credit{Number: 1000, Bytes: 1 << 20})
		got = append(got, r.read(5)...)
		ids = append(ids, publish("b", 3)...)
		got = append(got, r.read(3)...)
		if fmt.Sprint(got) != fmt.Sprint(ids) {
			t.Fatalf("read %v, want %v", got, ids)
		}
		r.applied(8, wire.Credit{})
		time.Sleep(time.Second)
		r.end()
		here.bounce()
		// A reader that has forgotten where it was goes on behind what it applied.
		want.Credit = wire.Credit{Number: 100, Bytes: 1 << 20}
		r = readLandings(t, here, want)
		if r.found.Next != 8 {
			t.Fatalf("next %d after a restart, want 8", r.found.Next)
		}
		r.end()
		// One that comes from another city's group gets everything.
		want.Incarnation, want.Offset = 1, 5000
		r = readLandings(t, here, want)
		if r.found.Next != 0 || len(r.read(13)) != 13 {
			t.Fatalf("next %d for a foreign offset", r.found.Next)
		}
		r.end()
		// Credit without bound is credit.
		want.Offset, want.Credit = 0, wire.Credit{Number: math.MaxUint64, Bytes: math.MaxUint64}
		r = readLandings(t, here, want)
		if n := len(r.read(13)); n != 13 {
			t.Fatalf("%d landings for unbounded credit", n)
		}
		r.end()
		want.Incarnation, want.Offset = here.log.Incarnation(), 11
		r = readLandings(t, here, want)
		if r.found.Next != 11 {
			t.Fatalf("next %d, want the 11 asked for", r.found.Next)
		}
		r.end()
	})
}

func TestWantIsRefusedWithAReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sample(t), testLimits(), "cz-sh-a-1")
		defer w.close()
		here := w.sites["cz-sh-a"]
		for name, c := range map[string]struct {
			want wire.Want
			code wire.Code
		}{
			"unknown subscription": {wire.Want{Subscription: "x", Topic: "member"}, wire.CodeUnknownGroup},
			"not a cache":          {wire.Want{Subscription: "member-watch", Topic: "member"}, wire.CodeUnknownGroup},
			"unknown topic":        {wire.Want{Subscription: "member-cache", Topic: "ledger"}, wire.CodeUnknownGroup},
		} {
			a, b := flow.Pipe()
			done := make(chan error, 1)
			go func() {
				done <- here.ServeWant(context.Background(), b, wire.Frame{Type: wire.TypeWant, Payload: c.want.Append(nil)})
			}()
			f, err := a.Recv(t.Context())
			if err != nil {
				t.Fatal(name, err)
			}
			r, err := wire.ParseRefuse(f.Payload)
			if err != nil || r.Code != c.code || r.Text == "" {
				t.Errorf("%s: %+v, %v", name, r, err)
			}
			if err := <-done; err == nil {
				t.Errorf("%s: no error", name)
			}
		}
	})
}
