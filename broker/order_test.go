package broker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/zone"
)

// orderedTopology is the sample with the topic steps of kind fifo, read by the group
// steps-worker, which does not say fifo, and by steps-loose, which wants no order.
func orderedTopology(t testing.TB, edits ...string) *zone.Topology {
	return sample(t, append([]string{
		"  - name: orders\n    route: local\n", "  - name: orders\n    route: local\n  - name: steps\n    kind: fifo\n    route: local\n",
		"consumer_groups:\n", "consumer_groups:\n  - {name: steps-worker, topics: [steps], max_attempts: 3}\n  - {name: steps-loose, topics: [steps], fifo: false}\n",
	}, edits...)...)
}

func (s *station) step(group string, n int) Message {
	m := s.message("steps", fmt.Sprintf("%s-%d", group, n))
	m.MessageGroup = group
	return m
}

// steps publishes n messages of each message group, one round after the other.
func (s *station) steps(n int, groups ...string) {
	s.t.Helper()
	for i := range n {
		var msgs []Message
		for _, g := range groups {
			msgs = append(msgs, s.step(g, i))
		}
		s.publish(msgs...)
	}
}

const worker = zone.ConsumerGroup("steps-worker")

// ask receives under an attempt id.
func (s *station) ask(attempt string, n int) []Delivery {
	s.t.Helper()
	list, err := s.Receive(s.t.Context(), ReceiveRequest{Group: worker, Topic: "steps", Filter: Filter{All: true}, Max: n,
		Invisible: time.Minute, ClientID: "client", AttemptID: attempt})
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

// ids returns the message ids of deliveries.
func ids(list []Delivery) string {
	var out []string
	for _, d := range list {
		out = append(out, string(d.Record.MessageID()))
	}
	return strings.Join(out, " ")
}

func wantIDs(t testing.TB, list []Delivery, want string) []Delivery {
	t.Helper()
	if got := ids(list); got != want {
		t.Fatalf("received %q, want %q", got, want)
	}
	return list
}

// TestO1_FIFOTopicIsInOrderThoughTheGroupForgotToSayIt has several consumers of a
// group that the topology does not call fifo work at once: within each message group
// everything comes in order, one at a time.
func TestO1_FIFOTopicIsInOrderThoughTheGroupForgotToSayIt(t *testing.T) {
	const groups, each, consumers = 7, 60, 6
	s := open(t, disk.NewMem(), "rz05-a-1", orderedTopology(t), testLimits())
	var names []string
	for g := range groups {
		names = append(names, fmt.Sprint("g", g))
	}
	s.steps(each, names...)
	var mu sync.Mutex // guards what follows
	next, busy, done := map[string]int{}, map[string]bool{}, 0
	var wg sync.WaitGroup
	for c := range consumers {
		wg.Go(func() {
			for range groups * each * 100 {
				list, err := s.Receive(context.Background(), ReceiveRequest{Group: worker, Topic: "steps", Filter: Filter{All: true}, Max: 1 + c, Invisible: time.Minute})
				if err != nil {
					t.Error(err)
					return
				}
				for _, d := range list {
					group, id := string(d.Record.MessageGroup()), string(d.Record.MessageID())
					mu.Lock()
					if want := fmt.Sprintf("%s-%d", group, next[group]); id != want || busy[group] {
						t.Errorf("consumer %d got %s, want %s; another of its message group in hands: %v", c, id, want, busy[group])
					}
					busy[group] = true
					mu.Unlock()
				}
				mu.Lock()
				for _, d := range list {
					group := string(d.Record.MessageGroup())
					next[group]++
					busy[group] = false
					done++
				}
				over := done == groups*each
				mu.Unlock()
				s.ack(worker, list...)
				if over || t.Failed() {
					return
				}
			}
		})
	}
	wg.Wait()
	if done != groups*each {
		t.Errorf("%d of %d messages came", done, groups*each)
	}
}

// TestO4_SlowMessageGroupHoldsNobodyUp has one message group whose consumer does not
// come back, with a deep backlog in front of and between those of others: they come
// in full and in order, and the slow one waits where it is.
func TestO4_SlowMessageGroupHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, disk.NewMem(), "rz05-a-1", orderedTopology(t), testLimits())
		s.steps(3000, "slow")
		names := []string{"slow"}
		for g := range 100 {
			names = append(names, fmt.Sprint("g", g))
		}
		s.steps(5, names...)
		slow := wantIDs(t, s.receive(worker, "steps", 1, time.Hour), "slow-0")
		for round := range 5 {
			got := s.receive(worker, "steps", 1000, time.Minute)
			if len(got) != 100 {
				t.Fatalf("round %d: %d messages, want one of each other group", round, len(got))
			}
			for _, d := range got {
				if want := fmt.Sprintf("%s-%d", d.Record.MessageGroup(), round); string(d.Record.MessageID()) != want {
					t.Fatalf("round %d: got %s, want %s", round, d.Record.MessageID(), want)
				}
			}
			s.ack(worker, got...)
		}
		wantIDs(t, s.receive(worker, "steps", 10, time.Minute), "")
		time.Sleep(time.Second) // acknowledgements are folded
		for _, g := range s.Status().Groups {
			if g.Group == worker && (g.Moving != 1 || g.Behind != 3004 || g.Lag != 3005) {
				t.Errorf("status: %d message groups have one in hands, %d messages are behind, lag %d", g.Moving, g.Behind, g.Lag)
			}
		}
		s.ack(worker, slow...)
		wantIDs(t, s.receive(worker, "steps", 10, time.Minute), "slow-1")
	})
}

// TestOrderOutlivesCrashes has a message in hands over a crash: its message group
// waits for it, the handle of before is good, and then the next comes.
func TestOrderOutlivesCrashes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := disk.NewMem()
		s := open(t, mem, "rz05-a-1", orderedTopology(t), testLimits())
		s.steps(3, "a", "b")
		got := wantIDs(t, s.receive(worker, "steps", 10, time.Minute), "a-0 b-0")
		time.Sleep(time.Second) // the progress loop logs what is in hands
		mem = s.crash(mem, 1)
		wantIDs(t, s.receive(worker, "steps", 10, time.Minute), "")
		s.ack(worker, got[0])
		next := wantIDs(t, s.receive(worker, "steps", 10, time.Minute), "a-1")
		time.Sleep(time.Second)
		s.crash(mem, 2)
		s.ack(worker, next[0])
		wantIDs(t, s.receive(worker, "steps", 10, time.Hour), "a-2")
		time.Sleep(2 * time.Minute) // b's consumer does not come back
		back := wantIDs(t, s.receive(worker, "steps", 10, time.Minute), "b-0")
		if back[0].Attempt != 2 {
			t.Errorf("attempt %d over two crashes, want 2", back[0].Attempt)
		}
		s.restart()
		s.ack(worker, back[0])
		wantIDs(t, s.receive(worker, "steps", 10, time.Minute), "b-1")
	})
}

// crash cuts the power and starts again.
func (s *station) crash(mem *disk.Mem, seed uint64) *disk.Mem {
	s.t.Helper()
	kept := mem.Crash(rand.New(rand.NewPCG(seed, 1)))
	_ = s.Close()
	s.fs = kept
	s.start()
	return kept
}

// TestLostAnswerIsGivenAgain repeats an attempt id: the batch comes once more, with
// handles that work, also from the next process; afterwards the id is worth nothing.
func TestLostAnswerIsGivenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := disk.NewMem()
		s := open(t, mem, "rz05-a-1", orderedTopology(t), testLimits())
		s.steps(2, "a", "b", "c")
		lost := wantIDs(t, s.ask("one", 2), "a-0 b-0")
		wantIDs(t, s.ask("two", 9), "c-0")
		again := wantIDs(t, s.ask("one", 2), "a-0 b-0")
		if again[0].Attempt != 1 || again[0].Handle == lost[0].Handle {
			t.Errorf("again: attempt %d, handle replaced: %v", again[0].Attempt, again[0].Handle != lost[0].Handle)
		}
		if err := s.Ack(t.Context(), worker, "steps", lost[0].Handle); KindOf(err) != KindHandle {
			t.Errorf("ack with the handle of the lost answer: %v", err)
		}
		s.ack(worker, again[0])
		time.Sleep(time.Second)
		s.crash(mem, 3)
		after := wantIDs(t, s.ask("one", 2), "b-0")
		s.ack(worker, after...)
		wantIDs(t, s.ask("one", 9), "a-1 b-1")
	})
}

// TestDeadLetterLetsTheNextGoOn lets a message use up its attempts, and has another
// one moved by its consumer: each time the next of its message group comes after.
func TestDeadLetterLetsTheNextGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, disk.NewMem(), "rz05-a-1", orderedTopology(t), testLimits())
		s.steps(4, "a")
		for attempt := range 3 {
			got := wantIDs(t, s.receive(worker, "steps", 9, time.Minute), "a-0")
			if got[0].Attempt != attempt+1 {
				t.Fatalf("attempt %d, want %d", got[0].Attempt, attempt+1)
			}
			if attempt == 1 { // put off by its consumer, the others expire
				if _, err := s.ChangeInvisible(t.Context(), worker, "steps", got[0].Handle, 10*time.Second); err != nil {
					t.Fatal(err)
				}
				wantIDs(t, s.receive(worker, "steps", 9, time.Minute), "")
			}
			time.Sleep(61 * time.Second)
		}
		second := wantIDs(t, s.receive(worker, "steps", 9, time.Minute), "a-1")
		if err := s.DeadLetter(t.Context(), worker, "steps", second[0].Handle); err != nil {
			t.Fatal(err)
		}
		third := wantIDs(t, s.receive(worker, "steps", 9, time.Minute), "a-2")
		handle, err := s.Suspend(t.Context(), worker, "steps", third[0].Handle, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Ack(t.Context(), worker, "steps", handle+"x"); KindOf(err) != KindHandle {
			t.Errorf("ack with another handle: %v", err)
		}
		time.Sleep(2 * time.Second)
		third = wantIDs(t, s.receive(worker, "steps", 9, time.Minute), "a-2")
		if third[0].Attempt != 1 {
			t.Errorf("a suspended message has attempt %d, want 1", third[0].Attempt)
		}
		s.ack(worker, third...)
		wantIDs(t, s.receive(worker, "steps", 9, time.Minute), "a-3")
		wantIDs(t, s.receive(worker, DeadLetterTopic(worker), 9, time.Minute), "a-0 a-1")
	})
}

// TestGroupWithoutOrderReadsFIFOTopics hands everything out at once to a group that
// says fifo: false, filters by tag included.
func TestGroupWithoutOrderReadsFIFOTopics(t *testing.T) {
	s := open(t, disk.NewMem(), "rz05-a-1", orderedTopology(t), testLimits())
	s.steps(3, "a", "b")
	tagged := s.step("a", 3)
	tagged.Tag = "red"
	s.publish(tagged)
	wantIDs(t, s.receive("steps-loose", "steps", 3, time.Minute), "a-0 b-0 a-1")
	list, err := s.Receive(t.Context(), ReceiveRequest{Group: "steps-loose", Topic: "steps", Filter: Filter{Tags: []string{"red"}}, Max: 9, Invisible: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	wantIDs(t, list, "a-3")
}

// TestChangeOfFilterSettlesInOrder excludes what is in front by a filter: the next
// of the message group that matches comes in the same call.
func TestChangeOfFilterSettlesInOrder(t *testing.T) {
	s := open(t, disk.NewMem(), "rz05-a-1", orderedTopology(t), testLimits())
	s.steps(5, "a")
	tagged := s.step("a", 5)
	tagged.Tag = "red"
	s.publish(tagged)
	first := wantIDs(t, s.receive(worker, "steps", 9, time.Minute), "a-0")
	red := func() []Delivery {
		list, err := s.Receive(t.Context(), ReceiveRequest{Group: worker, Topic: "steps", Filter: Filter{Tags: []string{"red"}}, Max: 9, Invisible: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	wantIDs(t, red(), "")
	s.ack(worker, first...)
	wantIDs(t, red(), "a-5")
}

// TestTopologyChangesTheOrder takes order away from a group with messages in hands
// and gives it back: handles stay good, and nothing comes out of order once the
// order is in force.
func TestTopologyChangesTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, disk.NewMem(), "rz05-a-1", orderedTopology(t), testLimits())
		apply := func(n int, fifo string) {
			t.Helper()
			e := epoch(n)
			topo := orderedTopology(t, e[0], e[1], "topics: [steps], max_attempts: 3}", "topics: [steps], max_attempts: 3"+fifo+"}")
			if err := s.ApplyTopology(t.Context(), topo); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // the progress loop changes the order
		}
		s.steps(6, "a")
		first := wantIDs(t, s.receive(worker, "steps", 9, time.Minute), "a-0")
		apply(2, ", fifo: false")
		loose := wantIDs(t, s.receive(worker, "steps", 3, time.Minute), "a-1 a-2 a-3")
		s.ack(worker, first[0], loose[1])
		apply(3, "")
		wantIDs(t, s.receive(worker, "steps", 9, time.Minute), "")
		s.ack(worker, loose[2])
		wantIDs(t, s.receive(worker, "steps", 9, time.Minute), "") // a-1 is in hands
		s.ack(worker, loose[0])
		last := wantIDs(t, s.receive(worker, "steps", 9, time.Minute), "a-4")
		s.ack(worker, last...)
		wantIDs(t, s.receive(worker, "steps", 9, time.Minute), "a-5")
	})
}

// TestAnyBrokerOfTheZoneKeepsTheOrder publishes each message of a message group to
// another broker of the zone: its home stores them in the order in which they were
// acknowledged, whether they stay in the zone or leave it on the home's flow.
func TestAnyBrokerOfTheZoneKeepsTheOrder(t *testing.T) {
	topo := sample(t,
		"  - name: orders\n    route: local\n", "  - name: orders\n    route: local\n  - name: steps\n    kind: fifo\n    route: local\n  - name: hops\n    kind: fifo\n    route: {shard: message_group}\n",
		"consumer_groups:\n", "consumer_groups:\n  - {name: steps-worker, topics: [steps]}\n")
	h := newHomes(t, topo)
	const groups, each = 20, 6
	for i := range each {
		for g := range groups {
			s := []*station{h.a, h.b}[(i+g)%2]
			if r := s.send(s.step(fmt.Sprint(g), i)); r.Err != nil || r.Level != LevelStored {
				t.Fatalf("message %d of %d: %+v", i, g, r)
			}
			hop := s.message("hops", fmt.Sprintf("hop-%d-%d", g, i))
			hop.MessageGroup = "1065" // of another zone
			if r := s.send(hop); r.Err != nil || r.Level != LevelOrigin {
				t.Fatalf("hop %d of %d: %+v", i, g, r)
			}
		}
	}
	homes := map[string]string{}
	for name, s := range map[string]*station{"a": h.a, "b": h.b} {
		for i := range each {
			got := s.receive(worker, "steps", groups, time.Minute)
			for _, d := range got {
				group := string(d.Record.MessageGroup())
				if want := fmt.Sprintf("%s-%d", group, i); string(d.Record.MessageID()) != want || homes[group] != "" && homes[group] != name {
					t.Fatalf("broker %s, round %d: %s, want %s; home %q", name, i, d.Record.MessageID(), want, homes[group])
				}
				homes[group] = name
			}
			s.ack(worker, got...)
		}
	}
	if len(homes) != groups {
		t.Errorf("%d of %d message groups came", len(homes), groups)
	}
	if a, b := len(h.a.state.out), len(h.b.state.out); a+b != 1 {
		t.Errorf("the message group left on %d flows of one broker and %d of the other", a, b)
	}
	h.down.Store(true)
	refused := 0
	for g := range groups {
		if r := h.a.send(h.a.step(fmt.Sprint(g), each)); KindOf(r.Err) == KindUnavailable {
			refused++
		} else if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	if refused == 0 || refused == groups {
		t.Errorf("%d of %d message groups were refused while their home was away", refused, groups)
	}
}
