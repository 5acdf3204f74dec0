package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/zone"
)

// inQueue publishes n messages into one queue of the topic.
func (s *station) inQueue(topic zone.Topic, queue, n int, prefix string) {
	s.t.Helper()
	for i := range n {
		m := s.message(topic, fmt.Sprintf("%s-%d", prefix, i))
		m.Queue = queue
		s.publish(m)
	}
}

func (s *station) pull(r PullRequest) Pulled {
	s.t.Helper()
	if !r.Filter.All && len(r.Filter.Tags) == 0 {
		r.Filter.All = true
	}
	got, err := s.Pull(s.t.Context(), r)
	if err != nil {
		s.t.Fatal(err)
	}
	return got
}

func pulledIDs(p Pulled) []string {
	ids := []string{}
	for _, d := range p.Messages {
		ids = append(ids, string(d.Record.MessageID()))
	}
	return ids
}

func (s *station) reset(r ResetRequest) []ResetQueue {
	s.t.Helper()
	got, err := s.ResetGroup(s.t.Context(), r)
	if err != nil {
		s.t.Fatal(err)
	}
	return got
}

func TestPullReadsAQueueFromAnOffset(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	s.inQueue("orders", 3, 5, "a")
	s.inQueue("orders", 1, 1, "other")
	tagged := s.message("orders", "tagged")
	tagged.Queue, tagged.Tag = 3, "red"
	s.publish(tagged)
	base := PullRequest{Group: billing, Topic: "orders", Queue: 3, Max: 32}
	for _, c := range []struct {
		edit func(*PullRequest)
		ids  []string
		next uint64
	}{
		{func(*PullRequest) {}, []string{"a-0", "a-1", "a-2", "a-3", "a-4", "tagged"}, 6},
		{func(r *PullRequest) { r.Offset, r.Max = 2, 2 }, []string{"a-2", "a-3"}, 4},
		{func(r *PullRequest) { r.Filter.Tags = []string{"red"} }, []string{"tagged"}, 6},
		{func(r *PullRequest) { r.Filter.Tags = []string{"blue"} }, []string{}, 6},
		{func(r *PullRequest) { r.Offset = 6 }, []string{}, 6},
		{func(r *PullRequest) { r.MaxBytes = 1 }, []string{"a-0"}, 1},
	} {
		r := base
		c.edit(&r)
		got := s.pull(r)
		if !slices.Equal(pulledIDs(got), c.ids) || got.Next != c.next {
			t.Errorf("%+v: %v, next %d; want %v, %d", r, pulledIDs(got), got.Next, c.ids, c.next)
		}
	}
	if got := s.drain(billing, "orders"); len(got) != 7 {
		t.Errorf("after the pulls %d messages were there to receive, want all 7", len(got))
	}
	base.Offset = 7
	_, err := s.Pull(t.Context(), base)
	var outside *OffsetError
	if KindOf(err) != KindOffset || !errors.As(err, &outside) || outside.Nearest() != 6 || outside.First != 0 || outside.Next != 6 {
		t.Errorf("a pull behind the end: %v", err)
	}
	base.Queue = 8
	if _, err := s.Pull(t.Context(), base); KindOf(err) != KindInvalid {
		t.Errorf("a pull from a queue that is not there: %v", err)
	}
	base.Queue, base.Group = 0, "nobody"
	if _, err := s.Pull(t.Context(), base); KindOf(err) != KindGroupUnknown {
		t.Errorf("a pull of an unknown group: %v", err)
	}
}

func TestPullWaitsForTheFirstMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
		r := PullRequest{Group: billing, Topic: "orders", Queue: 1, Max: 32, Wait: 20 * time.Second}
		began := time.Now()
		if got := s.pull(r); len(got.Messages) != 0 || got.Next != 0 || time.Since(began) != 20*time.Second {
			t.Errorf("%+v after %v", got, time.Since(began))
		}
		var got Pulled
		var wg sync.WaitGroup
		wg.Go(func() { got = s.pull(r) })
		time.Sleep(5 * time.Second)
		s.inQueue("orders", 0, 1, "elsewhere")
		s.inQueue("orders", 1, 1, "here")
		wg.Wait()
		if !slices.Equal(pulledIDs(got), []string{"here-0"}) || got.Next != 1 {
			t.Errorf("%v, next %d", pulledIDs(got), got.Next)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r.Offset, r.Filter.All = 1, true
		if _, err := s.Pull(ctx, r); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a pull whose caller went: %v", err)
		}
		wg.Go(func() {
			if _, err := s.Pull(t.Context(), r); KindOf(err) != KindClosed {
				t.Errorf("a pull at a broker that closes: %v", err)
			}
		})
		synctest.Wait()
		s.Close()
		wg.Wait()
	})
}

// TestOffsetsOfPullersAreDurable: an offset that was set is there after a power cut,
// and holds the log back as acknowledgements do.
func TestOffsetsOfPullersAreDurable(t *testing.T) {
	mem, topo := disk.NewMem(), sample(t)
	s := open(t, mem, "rz02-a-1", topo, testLimits())
	s.inQueue("orders", 2, 10, "m")
	if at, err := s.Offset(t.Context(), billing, QueueName{Topic: "orders", Queue: 2}); err != nil || at != 0 {
		t.Fatalf("a declared group begins at %d, %v", at, err)
	}
	if err := s.SetOffset(t.Context(), billing, QueueName{Topic: "orders", Queue: 2}, 7); err != nil {
		t.Fatal(err)
	}
	end := s.log.Committed()
	if err := s.SetOffset(t.Context(), billing, QueueName{Topic: "orders", Queue: 2}, 7); err != nil || s.log.Committed() != end {
		t.Errorf("the same offset again: %v, and the log grew by %d", err, s.log.Committed()-end)
	}
	after := open(t, mem.Crash(rand.New(rand.NewPCG(1, 2))), "rz02-a-1", topo, testLimits())
	if at, err := after.Offset(t.Context(), billing, QueueName{Topic: "orders", Queue: 2}); err != nil || at != 7 {
		t.Errorf("after a power cut the offset is %d, %v; want 7", at, err)
	}
	if got := after.drain(billing, "orders"); len(got) != 3 {
		t.Errorf("%d messages to receive, want those behind the offset", len(got))
	}
	if err := s.SetOffset(t.Context(), billing, QueueName{Topic: "orders", Queue: 2}, 11); KindOf(err) != KindOffset {
		t.Errorf("an offset behind the end: %v", err)
	}
	lag := func() uint64 {
		for _, g := range s.Status().Groups {
			if g.Group == billing && g.Topic == "orders" {
				return g.Lag
			}
		}
		return 0
	}
	if got := lag(); got != 3 {
		t.Errorf("lag %d, want 3", got)
	}
	floor, _ := s.floor()
	if err := s.SetOffset(t.Context(), billing, QueueName{Topic: "orders", Queue: 2}, 2); err != nil || lag() != 8 {
		t.Errorf("back to 2: %v, lag %d", err, lag())
	}
	if err := s.snapshot(t.Context()); err != nil { // two: the floor is no snapshot's then
		t.Fatal(err)
	}
	s.inQueue("orders", 2, 1, "more")
	if err := s.snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	back, _ := s.floor()
	third, err := s.state.topics["orders"].queues[2].index.Get(2)
	if err != nil || back > third.Position {
		t.Errorf("the log is needed from %d on (before the offset was set back: %d), message 2 is at %d, %v", back, floor, third.Position, err)
	}
}

func TestUndeclaredGroupHasNoOffsetUntilItSetsOne(t *testing.T) {
	topo := sample(t, "unknown_groups: refuse", "unknown_groups: newest")
	s := open(t, disk.NewMem(), "rz02-a-1", topo, testLimits())
	s.inQueue("orders", 0, 3, "m")
	if _, err := s.Offset(t.Context(), "stranger", QueueName{Topic: "orders", Queue: 0}); KindOf(err) != KindNoOffset {
		t.Errorf("offset of a group that was never here: %v", err)
	}
	if err := s.SetOffset(t.Context(), "stranger", QueueName{Topic: "orders", Queue: 0}, 1); err != nil {
		t.Fatal(err)
	}
	s.restart()
	if at, err := s.Offset(t.Context(), "stranger", QueueName{Topic: "orders", Queue: 0}); err != nil || at != 1 {
		t.Errorf("offset %d, %v", at, err)
	}
}

func TestOffsetsAreFoundByTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, disk.NewMem(), "rz02-a-1", sample(t), Limits{SegmentBytes: 16 << 10})
		var stored []time.Time
		for i := range 200 {
			time.Sleep(time.Minute)
			m := s.message("orders", fmt.Sprint(i))
			m.Queue, m.Body = 2, make([]byte, 500)
			s.publish(m)
			stored = append(stored, time.Now())
		}
		if times, err := s.log.SegmentTimes(t.Context()); err != nil || len(times) < 4 {
			t.Fatalf("%d segments, %v: too few to tell", len(times), err)
		}
		find := func(w Where, at time.Time) uint64 {
			t.Helper()
			offset, err := s.FindOffset(t.Context(), QueueName{Topic: "orders", Queue: 2}, w, at)
			if err != nil {
				t.Fatal(err)
			}
			return offset
		}
		for i, at := range stored {
			if got := find(WhereTime, at); got != uint64(i) {
				t.Errorf("at message %d: offset %d", i, got)
			}
			if got := find(WhereTime, at.Add(time.Second)); got != uint64(i)+1 {
				t.Errorf("behind message %d: offset %d", i, got)
			}
		}
		if a, z, now := find(WhereEarliest, time.Time{}), find(WhereLatest, time.Time{}), find(WhereTime, time.Now().Add(time.Hour)); a != 0 || z != 200 || now != 200 {
			t.Errorf("earliest %d, latest %d, in an hour %d", a, z, now)
		}
	})
}

// TestResetMovesAGroupWhileItConsumes: what consumers have in hands counts no more,
// even with a handle that is kept over a restart.
func TestResetMovesAGroupWhileItConsumes(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	s.inQueue("orders", 0, 20, "m")
	list := s.receive(billing, "orders", 12, time.Hour)
	s.ack(billing, list[:10]...)
	s.restart() // the two in hands stay so
	preview := s.reset(ResetRequest{Group: billing, Topic: "orders", Queue: 0, To: WhereOffset, Offset: 4, Preview: true})
	want := ResetQueue{Queue: 0, From: 10, To: 4, Again: 6, Skipped: 0, InHands: 2, Extent: Extent{0, 20}}
	if len(preview) != 1 || preview[0] != want {
		t.Errorf("preview %+v, want %+v", preview, want)
	}
	if at, _ := s.Offset(t.Context(), billing, QueueName{Topic: "orders", Queue: 0}); at != 10 {
		t.Errorf("the preview moved the offset to %d", at)
	}
	if done := s.reset(ResetRequest{Group: billing, Topic: "orders", Queue: EveryQueue, To: WhereEarliest}); len(done) != 4 || done[0].Again != 10 {
		t.Errorf("done %+v", done)
	}
	refused := func(d Delivery) {
		t.Helper()
		var he *consumer.HandleError
		if err := s.Ack(t.Context(), billing, "orders", d.Handle); KindOf(err) != KindHandle || !errors.As(err, &he) || he.Reason != consumer.ReasonReset {
			t.Errorf("acknowledgement of %s from before the reset: %v", d.Record.MessageID(), err)
		}
		if _, err := s.ChangeInvisible(t.Context(), billing, "orders", d.Handle, 0); KindOf(err) != KindHandle {
			t.Errorf("change of %s from before the reset: %v", d.Record.MessageID(), err)
		}
	}
	refused(list[10])
	s.restart()
	refused(list[11])
	again := s.receive(billing, "orders", 32, time.Minute)
	if len(again) != 20 || again[0].Attempt != 1 {
		t.Fatalf("%d messages came again", len(again))
	}
	s.ack(billing, again...)
	s.restart()
	if got := s.drain(billing, "orders"); len(got) != 0 {
		t.Errorf("%v came once more", got)
	}
	if done := s.reset(ResetRequest{Group: billing, Topic: "orders", Queue: 0, To: WhereLatest}); done[0].Skipped != 0 || done[0].Again != 0 {
		t.Errorf("a reset to where the group is: %+v", done)
	}
	for name, c := range map[string]struct {
		r    ResetRequest
		kind Kind
	}{
		"a group that is not there": {ResetRequest{Group: "nobody", Topic: "orders", Queue: EveryQueue, To: WhereLatest}, KindGroupUnknown},
		"a topic that is not there": {ResetRequest{Group: billing, Topic: "nothing", Queue: EveryQueue, To: WhereLatest}, KindTopicUnknown},
		"an offset behind the end":  {ResetRequest{Group: billing, Topic: "orders", Queue: 1, To: WhereOffset, Offset: 5}, KindOffset},
		"a queue that is not there": {ResetRequest{Group: billing, Topic: "orders", Queue: 99, To: WhereLatest}, KindInvalid},
		"no place":                  {ResetRequest{Group: billing, Topic: "orders", Queue: EveryQueue}, KindInvalid},
		"the marks of dead letters": {ResetRequest{Group: replayGroup, Topic: "orders", Queue: EveryQueue, To: WhereLatest}, KindInvalid},
	} {
		if _, err := s.ResetGroup(t.Context(), c.r); KindOf(err) != c.kind {
			t.Errorf("reset of %s: %v", name, err)
		}
	}
}

// TestResetIsOneRecord cuts the power after every change of the disk while a group is
// reset forth and back: it is where one of the resets left it, in all queues alike,
// and at the last one that was answered or a later one.
func TestResetIsOneRecord(t *testing.T) {
	mem, rng, topo := disk.NewMem(), rand.New(rand.NewPCG(3, 9)), sample(t)
	limits := Limits{SegmentBytes: 16 << 10}
	s := open(t, mem, "rz02-a-1", topo, limits)
	for q := range 4 {
		s.inQueue("orders", q, 6, fmt.Sprint(q))
	}
	s.ack(billing, s.receive(billing, "orders", 20, time.Hour)...)
	s.restart()
	type cut struct {
		kept *disk.Mem
		done int
	}
	var mu sync.Mutex
	var cuts []cut
	done := 0
	steps := []uint64{5, 0, 3, 6, 1}
	mem.AfterOp(func(int) {
		mu.Lock()
		defer mu.Unlock()
		cuts = append(cuts, cut{mem.Crash(rng), done})
	})
	for i, to := range steps {
		s.reset(ResetRequest{Group: billing, Topic: "orders", Queue: EveryQueue, To: WhereOffset, Offset: to})
		mu.Lock()
		done = i + 1
		mu.Unlock()
		if i == 2 {
			if err := s.snapshot(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	mem.AfterOp(nil)
	for i, c := range cuts {
		after := open(t, c.kept, "rz02-a-1", topo, limits)
		var at []uint64
		for q := range 4 {
			offset, err := after.Offset(t.Context(), billing, QueueName{Topic: "orders", Queue: q})
			if err != nil {
				t.Fatal(err)
			}
			at = append(at, offset)
		}
		same := slices.Min(at) == slices.Max(at)
		switch {
		case c.done == 0 && !same: // where the acknowledgements left it
		case same && slices.Contains(steps[max(c.done-1, 0):], at[0]):
		default:
			t.Fatalf("cut %d, after %d resets: offsets %v", i, c.done, at)
		}
		whole := c.kept.Crash(rand.New(rand.NewPCG(1, 1)))
		after.Close()
		removeSnapshots(t, whole)
		again := open(t, whole, "rz02-a-1", topo, limits)
		if offset, err := again.Offset(t.Context(), billing, QueueName{Topic: "orders", Queue: 3}); err != nil || offset != at[3] {
			t.Fatalf("cut %d: a fold from scratch has offset %d, %v; want %d", i, offset, err, at[3])
		}
		again.Close()
	}
	if len(cuts) < 5 {
		t.Fatalf("only %d power cuts", len(cuts))
	}
}

// TestFoldFromScratchKnowsResets compares the whole state of a fold from a snapshot
// and its tail with that of a fold of the whole log.
func TestFoldFromScratchKnowsResets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, topo := disk.NewMem(), sample(t)
		s := open(t, mem, "rz02-a-1", topo, testLimits())
		rng := rand.New(rand.NewPCG(8, 8))
		for round := range 20 {
			s.inQueue("orders", rng.IntN(3), 5, fmt.Sprint(round))
			if list := s.receive(billing, "orders", 6, time.Minute); len(list) > 2 {
				s.ack(billing, list[:2]...)
				if err := s.DeadLetter(t.Context(), billing, "orders", list[2].Handle); err != nil {
					t.Fatal(err)
				}
			}
			q := rng.IntN(3)
			to := rng.Uint64N(s.state.topics["orders"].queues[q].index.Next() + 1)
			s.reset(ResetRequest{Group: billing, Topic: "orders", Queue: q, To: WhereOffset, Offset: to})
			if round == 10 {
				if err := s.snapshot(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(time.Second)
		whole := mem.Crash(rand.New(rand.NewPCG(1, 1)))
		tail := mem.Crash(rand.New(rand.NewPCG(1, 1)))
		removeSnapshots(t, whole)
		a, b := open(t, tail, "rz02-a-1", topo, testLimits()), open(t, whole, "rz02-a-1", topo, testLimits())
		if !bytes.Equal(scrub(t, a, nil), scrub(t, b, nil)) {
			t.Error("fold from scratch differs from snapshot and tail")
		}
		if a.Status().Counts.OffsetsSet != 20 {
			t.Errorf("%d offsets were set, want 20", a.Status().Counts.OffsetsSet)
		}
	})
}

func TestOffsetsBodyIsChecked(t *testing.T) {
	o := &offsetsBody{key: subKey{"g", "t"}, incarnation: 9, queues: []queueOffset{{0, 1}, {7, 1 << 40}}}
	b := o.append(nil)
	back, err := parseOffsets(b)
	if err != nil || !bytes.Equal(back.append(nil), b) || !slices.Equal(back.queues, o.queues) {
		t.Fatalf("%+v, %v", back, err)
	}
	for n := range len(b) {
		if _, err := parseOffsets(b[:n]); err == nil {
			t.Errorf("%d of %d bytes were read", n, len(b))
		}
	}
}

// TestOffsetsAreAskedOfTheBrokerThatHasTheQueue: at another broker of the zone, by
// whichever of the two a client asks.
func TestOffsetsAreAskedOfTheBrokerThatHasTheQueue(t *testing.T) {
	topo := sample(t)
	a, b := open(t, disk.NewMem(), "rz01-a-1", topo, testLimits()), open(t, disk.NewMem(), "rz01-b-1", topo, testLimits())
	b.inQueue("orders", 2, 6, "m")
	q := QueueName{Broker: "rz01-b", Topic: "orders", Queue: 2}
	if _, err := a.Offset(t.Context(), billing, q); KindOf(err) != KindUnavailable {
		t.Errorf("without a way to the broker: %v", err)
	}
	a.SetCaller(zoneOf{"rz01-b": b.Broker})
	if err := a.SetOffset(t.Context(), billing, q, 4); err != nil {
		t.Fatal(err)
	}
	here, err := b.Offset(t.Context(), billing, QueueName{Topic: "orders", Queue: 2})
	there, err2 := a.Offset(t.Context(), billing, q)
	if here != 4 || there != 4 || err != nil || err2 != nil {
		t.Errorf("offset %d, %v at the broker and %d, %v at the other", here, err, there, err2)
	}
	if end, err := a.FindOffset(t.Context(), q, WhereLatest, time.Time{}); err != nil || end != 6 {
		t.Errorf("the end is %d, %v", end, err)
	}
	if first, err := a.FindOffset(t.Context(), q, WhereTime, time.Now().Add(-time.Hour)); err != nil || first != 0 {
		t.Errorf("an hour ago was %d, %v", first, err)
	}
	for kind, err := range map[Kind]error{
		KindOffset:       a.SetOffset(t.Context(), billing, q, 7),
		KindInvalid:      a.SetOffset(t.Context(), billing, QueueName{Broker: "rz02-a", Topic: "orders"}, 0),
		KindGroupUnknown: a.SetOffset(t.Context(), "nobody", q, 0),
	} {
		if KindOf(err) != kind {
			t.Errorf("%v, want %s", err, kind)
		}
	}
	whole := (&offsetCall{what: offsetSet, group: "g", queue: q}).append(nil)
	for n := range len(whole) {
		if _, err := b.ServeCall(t.Context(), CallOffset, whole[:n]); KindOf(err) != KindInvalid {
			t.Errorf("a call of %d bytes: %v", n, err)
		}
	}
}

// TestOffsetThatIsSetVoidsWhatIsNotLoggedYet sets the offset at which a group stands
// by the log, while it has acknowledged more, which is logged a little later, and has
// something in hands: it goes on at that offset nevertheless.
func TestOffsetThatIsSetVoidsWhatIsNotLoggedYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
		s.inQueue("orders", 0, 6, "m")
		list := s.receive(billing, "orders", 4, time.Hour)
		if len(list) != 4 {
			t.Fatalf("%d messages", len(list))
		}
		s.ack(billing, list[:2]...)
		if err := s.SetOffset(t.Context(), billing, QueueName{Topic: "orders"}, 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if at, err := s.Offset(t.Context(), billing, QueueName{Topic: "orders"}); err != nil || at != 0 {
			t.Errorf("the group stands at %d, %v; it was set to 0", at, err)
		}
		if got := s.drain(billing, "orders"); len(got) != 6 {
			t.Errorf("%d messages come, want all 6: %v", len(got), got)
		}
	})
}

// On a full disk offsets are set at a rate only: what the log keeps back is for
// acknowledgements, too.
func TestOffsetsOnAFullDiskLeaveRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := disk.NewMem()
		s := open(t, mem, "rz02-a-1", sample(t), testLimits())
		defer s.Close()
		const group = "orders-billing"
		s.inQueue("orders", 0, 10, "m")
		m := s.message("orders", "big")
		m.Body = make([]byte, 200<<10)
		s.fill(mem, m)
		at := uint64(1)
		set := func(n int) (done int) {
			for range n {
				switch err := s.SetOffset(t.Context(), group, QueueName{Topic: "orders"}, 3-at); {
				case err == nil:
					done, at = done+1, 3-at
				case KindOf(err) != KindDiskFull || !strings.Contains(err.Error(), "10 offsets a second"):
					t.Fatal(err)
				}
			}
			return done
		}
		if n := set(1000); n != offsetsAtOnce {
			t.Errorf("%d of 1000 offsets were set, want %d", n, offsetsAtOnce)
		}
		time.Sleep(time.Second)
		if n := set(1000); n != offsetsOnFull {
			t.Errorf("%d of 1000 offsets were set a second later, want %d", n, offsetsOnFull)
		}
		if _, err := s.ResetGroup(t.Context(), ResetRequest{Group: group, Topic: "orders", Queue: EveryQueue, To: WhereLatest}); KindOf(err) != KindDiskFull {
			t.Errorf("a reset beyond the rate: %v", err)
		}
		mem.SetLimit(0)
		time.Sleep(5 * time.Second)
		if n := set(1000); n != 1000 {
			t.Errorf("%d of 1000 offsets were set with room on the disk", n)
		}
	})
}
