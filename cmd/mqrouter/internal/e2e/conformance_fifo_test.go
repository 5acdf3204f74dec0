package e2e

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// fifoScenarios have messages in groups, each of them in order.
var fifoScenarios = []scenario{
	{name: "fifo killed consumer", fifo: true, far: true, run: fifoKilledConsumer},
	{name: "fifo order", fifo: true, far: true, run: fifoOrder},
	{name: "fifo one in flight", fifo: true, far: true, run: fifoOneInFlight},
	{name: "fifo retry", fifo: true, far: true, run: fifoRetry},
	{name: "fifo silent consumer", fifo: true, far: true, run: fifoSilentConsumer},
	{name: "fifo dead letter", fifo: true, attempts: 2, far: true, run: fifoDeadLetter},
}

const fifoTopic = "ledger-entries"

// soon has a receive end early: with one message of a group at a time, many find
// nothing at the broker that they ask. Apache refuses such short polls.
func (s *stage) soon() map[string]any {
	if s.apache != nil {
		return map[string]any{"await": 3000}
	}
	return map[string]any{"await": 1000}
}

// interleaved publishes to several message groups in turn; a body is the group
// and the number within it.
func (s *stage) interleaved(producer string, groups, count int) []string {
	s.Helper()
	var sent []string
	for i := range count {
		for g := range groups {
			group := fmt.Sprintf("%s account %d", s.tag(), g)
			sent = append(sent, s.send(producer, message{topic: fifoTopic, body: fmt.Sprintf("%s|%d", group, i), tag: s.tag(), group: group, properties: s.to()}))
		}
	}
	return sent
}

// inOrder fails unless each group's messages came in the order of their numbers,
// from 0 and without a hole; repetitions of what was there may come between when
// again is true.
func (s *stage) inOrder(who string, got []seen, again bool) {
	s.Helper()
	next := map[string]int{}
	for _, m := range got {
		group, number, _ := strings.Cut(string(m.Body), "|")
		if m.MessageGroup != group {
			s.Errorf("%s: message group %q of %q", who, m.MessageGroup, m.Body)
		}
		var n int
		if _, err := fmt.Sscan(number, &n); err != nil {
			s.Fatalf("%s: body %q", who, m.Body)
		}
		if again && n < next[group] {
			continue
		}
		if n != next[group] {
			s.Errorf("%s: %q came where number %d of its group is due; all: %s", who, m.Body, next[group], bodies(got))
			return
		}
		next[group]++
	}
}

func bodies(all []seen) string {
	var b strings.Builder
	for _, m := range all {
		fmt.Fprintf(&b, "%s (%d) ", m.Body, m.Attempt)
	}
	return b.String()
}

// delivered are the messages of a push consumer's deliveries that it took.
func (s *stage) delivered(consumer string) []seen {
	all, _ := s.d.deliveries(consumer)
	var got []seen
	for _, d := range all {
		if d.OK {
			got = append(got, d.Message)
		}
	}
	return got
}

// drain receives and acknowledges one after the other until n messages have come.
func (s *stage) drain(consumer string, n int) []seen {
	s.Helper()
	var got []seen
	for end := time.Now().Add(2 * waitMost); len(got) < n; {
		if time.Now().After(end) {
			s.Fatalf("%s: %d of %d messages: %s", consumer, len(got), n, bodies(got))
		}
		for _, m := range s.receive(consumer, 30*time.Second) {
			got = append(got, m)
			s.must("ack", s.ack(consumer, m))
		}
	}
	return got
}

// fifoOrder has three message groups interleaved: each arrives in order, at both
// kinds of consumers, and a push consumer has one of a group at a time.
func fifoOrder(s *stage) {
	const groups, count = 3, 6
	push := s.consumer("push", s.there(), fifoTopic, s.tag(), map[string]any{"hold": 20})
	simple := s.consumer("simple", s.there(), fifoTopic, s.tag(), s.soon())
	sent := s.interleaved(s.producer(rz01, fifoTopic), groups, count)
	s.inOrder("simple", s.drain(simple, len(sent)), false)
	s.same("push", s.pushed(push, len(sent)), sent)
	s.inOrder("push", s.delivered(push), false)
	all, _ := s.d.deliveries(push)
	ended := map[string]int64{}
	for _, d := range all {
		if group := d.Message.MessageGroup; d.Began < ended[group] {
			s.Errorf("%q began %d ms before the one before it of its group ended", d.Message.Body, ended[group]-d.Began)
		} else {
			ended[group] = d.Ended
		}
	}
}

// fifoOneInFlight receives and does not acknowledge: nothing more of those groups
// comes, to nobody of the consumer group.
func fifoOneInFlight(s *stage) {
	first := s.consumer("simple", s.there(), fifoTopic, s.tag())
	second := s.consumer("simple", s.there(), fifoTopic, s.tag())
	s.interleaved(s.producer(rz01, fifoTopic), 1, 4)
	got := s.first(first)
	if string(got[0].Body[len(got[0].Body)-2:]) != "|0" {
		s.Errorf("the first of the group is %q", got[0].Body)
	}
	for _, consumer := range []string{first, second} {
		if more := s.receive(consumer, 30*time.Second); len(more) > 0 {
			s.Errorf("%s, of which nothing is acknowledged, were followed by %s", bodies(got), bodies(more))
		}
	}
	for _, m := range got {
		s.must("ack", s.ack(first, m))
	}
	s.inOrder("simple", append(got, s.drain(second, 4-len(got))...), false)
}

// first waits for the first messages of a simple consumer.
func (s *stage) first(consumer string) []seen {
	s.Helper()
	for end := time.Now().Add(waitMost); time.Now().Before(end); {
		if got := s.receive(consumer, 30*time.Second); len(got) > 0 {
			return got
		}
	}
	s.Fatalf("%s: no message within %v", consumer, waitMost)
	return nil
}

// fifoRetry fails the first delivery of each message: what follows in the group
// waits until it is consumed.
func fifoRetry(s *stage) {
	const groups, count = 2, 3
	push := s.consumer("push", s.there(), fifoTopic, s.tag(), map[string]any{"fail": 1})
	simple := s.consumer("simple", s.there(), fifoTopic, s.tag(), s.soon())
	sent := s.interleaved(s.producer(rz01, fifoTopic), groups, count)
	var done []seen
	for end := time.Now().Add(2 * waitMost); len(done) < len(sent); {
		if time.Now().After(end) {
			s.Fatalf("%d of %d messages: %s", len(done), len(sent), bodies(done))
		}
		failed := map[string]bool{}
		for _, m := range s.receive(simple, 30*time.Second) {
			if failed[m.MessageGroup] {
				continue // what came with it comes again after it
			}
			if m.Attempt == 1 {
				failed[m.MessageGroup] = true
				s.must("change the invisible time", s.invisible(simple, m, time.Second))
				continue
			}
			done = append(done, m)
			s.must("ack", s.ack(simple, m))
		}
	}
	s.inOrder("simple", done, false)
	s.same("push", s.pushed(push, len(sent)), sent)
	s.inOrder("push", s.delivered(push), false)
}

// fifoSilentConsumer has a consumer that takes a message and says nothing any
// more: another gets it when its time is up, and then what follows.
func fifoSilentConsumer(s *stage) {
	silent := s.consumer("simple", s.there(), fifoTopic, s.tag())
	s.interleaved(s.producer(rz01, fifoTopic), 1, 4)
	var got []seen
	for end := time.Now().Add(waitMost); len(got) == 0 && time.Now().Before(end); {
		got = s.receive(silent, 10*time.Second)
	}
	other := s.consumer("simple", s.there(), fifoTopic, s.tag())
	all := s.drain(other, 4)
	s.inOrder("the other", all, true)
	if m := all[0]; m.Attempt < 2 || !strings.HasSuffix(string(m.Body), "|0") {
		s.Errorf("the other begins with %q, attempt %d", m.Body, m.Attempt)
	}
}

// fifoKilledConsumer kills a push consumer in the middle of a group, while it has the
// second message: the next one begins with that, and leaves nothing out. It has all
// before a message is back that another consumer took at that time and hid for a
// minute; Apache's proxy takes two.
func fifoKilledConsumer(s *stage) {
	const count = 4
	doomed := &stage{T: s.T, d: startDriver(s.T, s.d.lang), at: s.at, apache: s.apache, scenario: s.scenario, leave: true}
	defer doomed.report()
	push := doomed.consumer("push", s.there(), fifoTopic, s.tag(), map[string]any{"stall": 1})
	sent := s.interleaved(s.producer(rz01, fifoTopic), 1, count)
	if held := doomed.stalled(push); held.MessageID != sent[1] {
		s.Errorf("in its hands is %q, want number 1", held.Body)
	}
	silent := s.consumer("simple", s.there(), fifoTopic, s.tag(), s.soon())
	for end := time.Now().Add(waitMost); len(s.receive(silent, time.Minute)) == 0; {
		if time.Now().After(end) {
			s.Fatalf("the silent consumer got no message within %v", waitMost)
		}
	}
	doomed.d.kill()
	heir := s.consumer("push", s.there(), fifoTopic, s.tag())
	eventually(s.T, "the rest is consumed", 3*waitMost, func() error {
		if got := s.delivered(heir); len(got) == 0 || got[len(got)-1].MessageID != sent[count-1] {
			return fmt.Errorf("the other has %s", bodies(got))
		}
		return nil
	})
	if back := s.receive(silent, time.Minute); len(back) > 0 && s.apache == nil {
		s.Errorf("before the other had all, came what was hidden for a minute: %s", bodies(back))
	}
	// That it consumed the first may not have been told when it was killed.
	taken := slices.CompactFunc(append(doomed.delivered(push), s.delivered(heir)...), func(a, b seen) bool { return a.MessageID == b.MessageID })
	s.inOrder("both", taken, false)
}

// stalled waits for a delivery that will not end.
func (s *stage) stalled(consumer string) seen {
	s.Helper()
	for end := time.After(waitMost); ; {
		all, more := s.d.stalled(consumer)
		if len(all) > 0 {
			return all[0]
		}
		select {
		case <-more:
		case <-end:
			s.Fatalf("%s: no delivery stalls within %v", consumer, waitMost)
		}
	}
}

// fifoDeadLetter fails every delivery: the group goes on after each dead letter.
func fifoDeadLetter(s *stage) {
	const count = 3
	push := s.consumer("push", s.there(), fifoTopic, s.tag(), map[string]any{"fail": 99})
	sent := s.interleaved(s.producer(rz01, fifoTopic), 1, count)
	letters := s.consumer("simple", s.there(), "%DLQ%"+groupName(s.d.lang, s.scenario, "push"), "*")
	s.same("dead letters", s.take(letters, count), sent)
	all, _ := s.d.deliveries(push)
	var ids []string
	for _, d := range all {
		ids = append(ids, d.Message.MessageID)
	}
	if order := slices.Compact(slices.Clone(ids)); !slices.Equal(order, sent) || len(ids) != 2*count {
		s.Errorf("deliveries before they were dead letters: %v, want each of %v twice", ids, sent)
	}
}
