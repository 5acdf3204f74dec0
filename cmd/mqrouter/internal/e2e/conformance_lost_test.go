package e2e

import (
	"fmt"
	"slices"
	"time"
)

// lostScenarios lose answers of the server: a relay between client and server takes
// them, and what the client then does by itself must do no harm.
var lostScenarios = []scenario{
	{name: "lost receive", fifo: true, far: true, run: lostReceive},
	{name: "lost send", far: true, run: lostSend},
	{name: "lost send in order", fifo: true, far: true, run: lostSendInOrder},
	{name: "lost ack", far: true, run: lostAck},
	{name: "lost commit", far: true, run: lostCommit},
}

const (
	onceTopic     = "once"
	onceFIFOTopic = "once-in-order"
)

// Ways of a lost answer.
const (
	cut    = true
	silent = false
)

// resends publishes each message with the answer to its first attempt lost, and
// fails unless the client has sent each again by itself.
func (s *stage) resends(messages []message) []string {
	s.Helper()
	r := s.relay()
	producer := s.open("producer", map[string]any{"endpoint": r.at(rz01), "topics": []string{messages[0].topic}, "attempts": 3})
	var sent []string
	for i, m := range messages {
		r.lose("SendMessage", i != 1) // one of them in silence
		sent = append(sent, s.send(producer, m))
	}
	attempts := map[string]int{}
	for _, c := range r.answered("SendMessage") {
		for _, id := range c.ids {
			attempts[id]++
		}
	}
	for _, id := range sent {
		if attempts[id] < 2 {
			s.Fatalf("%s was sent %d times though its answer was lost: this client repeats nothing", id, attempts[id])
		}
	}
	return sent
}

// lostSend has each send stored and its answer lost: the client sends the message
// again, under the same id, and it is delivered once.
func lostSend(s *stage) {
	push := s.consumer("push", s.there(), onceTopic, s.tag())
	simple := s.consumer("simple", s.there(), onceTopic, s.tag())
	var messages []message
	for i := range 4 {
		messages = append(messages, message{topic: onceTopic, body: fmt.Sprint("pay ", i), tag: s.tag(), keys: []string{"k"}, properties: s.to()})
	}
	sent := s.resends(messages)
	s.same("simple", s.take(simple, len(sent)), sent)
	if again := s.receive(simple, 30*time.Second); len(again) > 0 {
		s.Errorf("after each had come once came %s", bodies(again))
	}
	s.same("push", s.pushed(push, len(sent)), sent)
	if all, _ := s.d.deliveries(push); len(all) != len(sent) {
		s.Errorf("%d deliveries of %d messages", len(all), len(sent))
	}
}

// lostSendInOrder is lostSend of a message group: each is delivered once and in order.
func lostSendInOrder(s *stage) {
	push := s.consumer("push", s.there(), onceFIFOTopic, s.tag())
	simple := s.consumer("simple", s.there(), onceFIFOTopic, s.tag(), s.soon())
	group := s.tag() + " account"
	var messages []message
	for i := range 4 {
		messages = append(messages, message{topic: onceFIFOTopic, body: fmt.Sprintf("%s|%d", group, i), tag: s.tag(), group: group, properties: s.to()})
	}
	sent := s.resends(messages)
	s.inOrder("simple", s.drain(simple, len(sent)), false)
	if again := s.receive(simple, 30*time.Second); len(again) > 0 {
		s.Errorf("after each had come once came %s", bodies(again))
	}
	s.same("push", s.pushed(push, len(sent)), sent)
	s.inOrder("push", s.delivered(push), false)
}

// lostReceive loses answers to receives that had messages of a message group: the
// group is not held up beyond the invisible time, and its order stays. A client
// that repeats its attempt id gets the same messages at once; the one for Java does
// so only after a time-out.
func lostReceive(s *stage) {
	const count = 5
	r := s.relay()
	there := map[string]any{"endpoint": r.at(s.there())}
	sent := s.interleaved(s.producer(rz01, fifoTopic), 1, count)
	r.lose("ReceiveMessage", cut)
	push := s.consumer("push", s.there(), fifoTopic, s.tag(), there)
	s.same("push", s.pushed(push, count), sent)
	s.inOrder("push", s.delivered(push), false)
	s.attemptsRepeated(r)

	simple := s.consumer("simple", s.there(), fifoTopic, s.tag(), there, s.soon())
	r.lose("ReceiveMessage", silent)
	for end := time.Now().Add(waitMost); ; { // until there was an answer to lose
		got, err := s.tryReceive(simple, 10*time.Second)
		if err != nil {
			break
		}
		if len(got) > 0 || time.Now().After(end) {
			s.Fatalf("came %s, though the answer was lost", bodies(got))
		}
	}
	got := s.drain(simple, count)
	s.inOrder("simple", got, false)
	if got[0].Attempt != 2 {
		s.Errorf("what came again has attempt %d", got[0].Attempt)
	}
}

// attemptsRepeated looks at receives whose answer was lost and at the next with the
// same attempt id, which must have been answered with the same messages.
func (s *stage) attemptsRepeated(r *clientRelay) {
	s.Helper()
	calls := r.answered("ReceiveMessage")
	for i, lost := range calls {
		if !lost.lost || lost.attempt == "" {
			continue
		}
		again := slices.IndexFunc(calls[i+1:], func(c relayedCall) bool { return c.attempt == lost.attempt })
		if again < 0 {
			if s.d.lang.name != "java" {
				s.Errorf("the client did not repeat the attempt %s", lost.attempt)
			}
			continue
		}
		if ids := calls[i+1+again].ids; !slices.Equal(ids, lost.ids) {
			s.Errorf("the attempt that was lost had %v, its repetition %v", lost.ids, ids)
		}
	}
}

// lostAck loses the answers to acknowledgements: what was acknowledged does not
// come again, whether the client says it again or not.
func lostAck(s *stage) {
	topic, to := s.plain()
	r := s.relay()
	there := map[string]any{"endpoint": r.at(s.there())}
	push := s.consumer("push", s.there(), topic, s.tag(), there)
	producer := s.producer(rz01, topic)
	r.lose("AckMessage", cut, silent)
	var sent []string
	for i := range 3 {
		sent = append(sent, s.send(producer, message{topic: topic, body: fmt.Sprint(i), tag: s.tag(), properties: to}))
	}
	s.same("push", s.pushed(push, len(sent)), sent)

	simple := s.consumer("simple", s.there(), topic, s.tag(), there)
	got := map[string]seen{}
	for end := time.Now().Add(waitMost); len(got) < len(sent) && time.Now().Before(end); {
		for _, m := range s.receive(simple, 12*time.Second) {
			got[m.MessageID] = m
			r.lose("AckMessage", cut)
			if err := s.ack(simple, m); err != nil {
				s.Logf("an acknowledgement whose answer was lost: %v", err)
			}
		}
	}
	s.same("simple", got, sent)
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if again := s.receive(simple, 30*time.Second); len(again) > 0 {
			s.Fatalf("after it was acknowledged came %s", bodies(again))
		}
	}
	if all, _ := s.d.deliveries(push); len(all) != len(sent) {
		s.Errorf("%d deliveries of %d messages: %v", len(all), len(sent), all)
	}
}

// lostCommit loses the answers to a commit and to a rollback: said again they are
// what they were.
func lostCommit(s *stage) {
	simple := s.consumer("simple", s.there(), transactionTopic, s.tag())
	r := s.relay()
	producer := s.open("producer", map[string]any{"endpoint": r.at(rz01), "topics": []string{transactionTopic}, "attempts": 1, "checks": true})
	m := message{topic: transactionTopic, body: "pay 10", tag: s.tag(), properties: s.to()}
	commit, first := s.half(producer, m)
	_, second := s.half(producer, m)
	for tx, yes := range map[int]bool{first: true, second: false} {
		r.lose("EndTransaction", cut)
		s.thrown("a transaction ends and the answer is lost", s.end(producer, tx, yes))
		s.must("end it again", s.end(producer, tx, yes))
	}
	s.same("simple", s.take(simple, 1), []string{commit})
	if again := s.receive(simple, 30*time.Second); len(again) > 0 {
		s.Errorf("after the transactions came %s", bodies(again))
	}
}
