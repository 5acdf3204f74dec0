package broker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// homes is a zone of two groups that reach each other, or not.
type homes struct {
	a, b  *station
	down  atomic.Bool
	calls atomic.Int64
}

func newHomes(t *testing.T, topo *zone.Topology) *homes {
	h := &homes{}
	h.a, h.b = open(t, disk.NewMem(), "rz01-a-1", topo, testLimits()), open(t, disk.NewMem(), "rz01-b-1", topo, testLimits())
	h.connect()
	return h
}

func (h *homes) connect() {
	h.a.SetCaller(h)
	h.b.SetCaller(h)
}

// Call implements Caller.
func (h *homes) Call(ctx context.Context, group zone.Group, kind CallKind, body []byte) ([]byte, error) {
	h.calls.Add(1)
	if h.down.Load() {
		return nil, &Error{Op: "call", Kind: KindUnavailable, Text: "group " + string(group)}
	}
	return zoneOf{"rz01-a": h.a.Broker, "rz01-b": h.b.Broker}.Call(ctx, group, kind, body)
}

// stored is how often the message is in the two groups' queues together.
func (h *homes) stored(topic zone.Topic, id string) (n int) {
	for _, s := range []*station{h.a, h.b} {
		found, err := s.FindMessage(s.t.Context(), id)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, f := range found {
			if f.Topic == topic {
				n++
			}
		}
	}
	return n
}

// Whichever broker of the zone takes a copy, the home of the message knows it.
func TestAnyBrokerOfTheZoneKnowsACopy(t *testing.T) {
	h := newHomes(t, onceSample(t))
	byGroup := map[zone.Group]int{}
	for i := range 100 {
		topic := zone.Topic([]string{"orders", "transfer"}[i%2])
		m := h.a.message(topic, fmt.Sprint(i), "userId", []string{"1001", "1065"}[i/2%2]) // of this zone, or of rz04
		first := h.a.send(m)
		m.Topic = h.b.Topology().FindTopic(topic)
		second := h.b.send(m)
		if first.Err != nil || where(first) != where(second) || first.Destination.Zone.Name != second.Destination.Zone.Name {
			t.Fatalf("message %d: %+v at one broker and %+v at the other", i, first, second)
		}
		if z := first.Destination.Zone; z != h.a.Topology().FindZone(z.Name) {
			t.Fatalf("message %d: a destination of another topology", i)
		}
		if topic == "orders" {
			byGroup[first.Destination.Group.Name]++
		}
		m.Body = []byte("another body")
		if r := h.a.send(m); KindOf(r.Err) != KindConflict {
			t.Fatalf("message %d with another body: %+v", i, r)
		}
	}
	if byGroup["rz01-a"] < 10 || byGroup["rz01-b"] < 10 {
		t.Errorf("homes %v", byGroup)
	}
	got := h.a.drain(billing, "orders")
	for id, n := range h.b.drain(billing, "orders") {
		got[id] += n
	}
	for i := 0; i < 100; i += 2 {
		if got[fmt.Sprint(i)] != 1 {
			t.Errorf("message %d was delivered %d times", i, got[fmt.Sprint(i)])
		}
	}
}

// A home that cannot be reached is waited for: nobody else stores the message.
func TestSendIsRefusedWithoutItsHome(t *testing.T) {
	h := newHomes(t, onceSample(t))
	h.down.Store(true)
	refused := 0
	for i := range 50 {
		id := fmt.Sprint(i)
		r := h.a.send(h.a.message("orders", id))
		var e *Error
		switch {
		case r.Err == nil && r.Destination.Group.Name == "rz01-a":
			continue
		case KindOf(r.Err) != KindUnavailable:
			t.Fatalf("message %s: %+v", id, r)
		case !errors.As(r.Err, &e):
			t.Fatalf("message %s: %v", id, r.Err)
		}
		if !e.Retryable() || h.stored("orders", id) != 0 {
			t.Errorf("message %s: retryable %v, stored %d times", id, e.Retryable(), h.stored("orders", id))
		}
		refused++
	}
	if refused < 10 {
		t.Fatalf("only %d messages have the other group as home", refused)
	}
	h.down.Store(false)
	for i := range 50 {
		id := fmt.Sprint(i)
		if r := h.a.send(h.a.message("orders", id)); r.Err != nil || h.stored("orders", id) != 1 {
			t.Errorf("message %s again: %+v, stored %d times", id, r, h.stored("orders", id))
		}
	}
}

// A batch goes to each home in one call, and the messages of a group keep their
// order.
func TestBatchIsDividedByHome(t *testing.T) {
	h := newHomes(t, onceSample(t))
	var msgs []Message
	for i := range 200 {
		m := h.a.message("transfer", fmt.Sprint(i), "userId", "1001") // of this zone
		m.MessageGroup = fmt.Sprint("group-", i%7)
		msgs = append(msgs, m)
	}
	out := h.a.publish(msgs...)
	if n := h.calls.Load(); n != 1 {
		t.Errorf("%d calls for a batch with two homes, one of them near", n)
	}
	last := map[string]int64{}
	for i, r := range out {
		at := msgs[i].MessageGroup + string(r.Destination.Group.Name)
		if r.Level == LevelStored {
			at += fmt.Sprint(r.Queue)
		}
		if before, ok := last[at]; ok && r.Offset <= before {
			t.Errorf("message %d of %s at %d, behind %d", i, at, r.Offset, before)
		}
		last[at] = r.Offset
	}
	// More than a call takes.
	msgs = msgs[:0]
	for i := range 6 {
		m := h.a.message("orders", fmt.Sprint("large", i))
		m.Body = make([]byte, 3<<20)
		msgs = append(msgs, m)
	}
	h.a.publish(msgs...)
	for i, r := range h.b.publish(msgs...) {
		if n := h.stored("orders", msgs[i].ID); n != 1 {
			t.Errorf("large message %d: %+v, stored %d times", i, r, n)
		}
	}
}

// Copies at both brokers at once, restarts of both, and time.
func TestZoneStoresOnce(t *testing.T) {
	for seed := range uint64(6) {
		synctest.Test(t, func(t *testing.T) {
			h, rng := newHomes(t, onceSample(t)), rand.New(rand.NewPCG(seed, 5))
			defer func() { h.a.Close(); h.b.Close() }()
			places, at, stored := map[string]string{}, map[string]time.Time{}, map[string]int{}
			for range 150 {
				id := fmt.Sprint(rng.IntN(40))
				results := make([]PublishResult, 4)
				var wg sync.WaitGroup
				for i := range results {
					s := []*station{h.a, h.b}[i%2]
					wg.Go(func() { results[i] = s.send(s.message("orders", id)) })
				}
				wg.Wait()
				if _, known := at[id]; !known || time.Since(at[id]) >= window {
					places[id], at[id] = where(results[0]), time.Now()
					stored[id]++
				}
				for _, r := range results {
					if r.Err != nil || where(r) != places[id] {
						t.Fatalf("message %s: %+v, want %s", id, r, places[id])
					}
				}
				switch rng.IntN(12) {
				case 0:
					h.a.restart()
					h.connect()
				case 1:
					h.b.restart()
					h.connect()
				case 2, 3:
					time.Sleep(window / 4)
				}
			}
			got := h.a.drain(billing, "orders")
			for id, n := range h.b.drain(billing, "orders") {
				got[id] += n
			}
			for id, n := range stored {
				if got[id] != n {
					t.Errorf("message %s was stored %d times and delivered %d times", id, n, got[id])
				}
			}
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// A group whose topology has another home for the message stores nothing and passes
// nothing on.
func TestCallForAnotherHomeIsRefused(t *testing.T) {
	h := newHomes(t, onceSample(t))
	for i := range 20 {
		body, _ := appendSends([]Message{h.a.message("orders", fmt.Sprint(i))})
		_, errA := h.a.ServeCall(t.Context(), CallPublish, body)
		_, errB := h.b.ServeCall(t.Context(), CallPublish, body)
		if (errA == nil) == (errB == nil) || KindOf(errA)+KindOf(errB) != KindUnavailable {
			t.Errorf("message %d: %v and %v", i, errA, errB)
		}
	}
	if n := h.calls.Load(); n != 0 {
		t.Errorf("%d calls were passed on", n)
	}
}

// fill sets every field of a struct to a value of its own.
func fill(t *testing.T, v reflect.Value) {
	for i := range v.NumField() {
		f := v.Field(i)
		switch x := f.Addr().Interface().(type) {
		case *string:
			*x = "text of " + v.Type().Field(i).Name
		case *time.Time:
			*x = time.UnixMicro(1_700_000_000_000_000 + int64(i)).UTC()
		case *[]byte:
			*x = []byte{byte(i), 2, 3}
		case *[]string:
			*x = []string{"", "key", "键"}
		case *map[string]string:
			*x = map[string]string{"k": "v", "": "empty", "e": ""}
		case *time.Duration:
			*x = time.Duration(i) * time.Second
		case *record.Digest:
			*x = record.Digest{Type: 2, Checksum: "AB"}
		case **zone.TopicInfo, *zone.Destination, *error:
		default:
			switch {
			case f.CanInt():
				f.SetInt(int64(10 + i))
			case f.CanUint():
				f.SetUint(uint64(10 + i))
			default:
				t.Fatalf("field %s of %s is not known to this test, and perhaps not to the codec", v.Type().Field(i).Name, v.Type())
			}
		}
	}
}

// Whatever a message and a result have travels: a field that is added and forgotten
// in the codec is found here.
func TestSendsTravelWhole(t *testing.T) {
	v := newView(onceSample(t), "rz01-a-1", "rz01-a")
	var m Message
	fill(t, reflect.ValueOf(&m).Elem())
	m.Topic = v.topo.FindTopic("orders")
	empty := Message{Topic: v.topo.FindTopic("member"), Queue: AnyQueue}
	body, n := appendSends([]Message{m, empty})
	got, err := parseSends(v.topo, body)
	if err != nil || n != 2 || len(got) != 2 {
		t.Fatalf("%d of %d messages: %v", len(got), n, err)
	}
	got[1].Body = nil // empty or nil
	for i, want := range []Message{m, empty} {
		if !reflect.DeepEqual(got[i], want) {
			t.Errorf("got %+v\nwant %+v", got[i], want)
		}
	}
	var r PublishResult
	fill(t, reflect.ValueOf(&r).Elem())
	r.Destination = zone.Destination{Zone: v.zone, Group: v.group}
	failed := PublishResult{Offset: -1, Err: &Error{Op: "publish", Kind: KindBudget, Topic: "orders", Text: "full"}}
	back := make([]PublishResult, 2)
	reply := appendSent(nil, []PublishResult{r, failed})
	if err := v.parseSent(reply, []Message{m, m}, back); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(back[0], r) {
		t.Errorf("got %+v\nwant %+v", back[0], r)
	}
	if KindOf(back[1].Err) != KindBudget || !strings.Contains(back[1].Err.Error(), "full") || back[1].Offset != -1 {
		t.Errorf("a failure arrives as %+v", back[1])
	}
	for n := range body {
		if _, err := parseSends(v.topo, body[:n]); err == nil {
			t.Errorf("%d of %d bytes of messages are accepted", n, len(body))
		}
	}
	for n := range reply {
		if err := v.parseSent(reply[:n], []Message{m, m}, back); err == nil {
			t.Errorf("%d of %d bytes of results are accepted", n, len(reply))
		}
	}
}

// FuzzSends gives any bytes to who reads messages and results of another broker.
func FuzzSends(f *testing.F) {
	v := newView(onceSample(f), "rz01-a-1", "rz01-a")
	m := Message{Topic: v.topo.FindTopic("orders"), ID: "id", Keys: []string{"k"}, Properties: map[string]string{"a": "b"}, Body: []byte("body")}
	body, _ := appendSends([]Message{m})
	f.Add(body)
	f.Add(appendSent(nil, []PublishResult{{Queue: 1, Offset: 2, Level: LevelStored, Destination: zone.Destination{Zone: v.zone}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if msgs, err := parseSends(v.topo, b); err == nil {
			again, n := appendSends(msgs)
			if more, err := parseSends(v.topo, again); err != nil || n != len(msgs) || len(more) != n {
				t.Errorf("%d messages, then %d: %v", len(msgs), len(more), err)
			}
		}
		out := make([]PublishResult, 1)
		if v.parseSent(b, []Message{m}, out) == nil && v.parseSent(appendSent(nil, out), []Message{m}, out) != nil {
			t.Error("results that were read cannot be read again")
		}
	})
}
