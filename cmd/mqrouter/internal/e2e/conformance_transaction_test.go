package e2e

import (
	"maps"
	"slices"
	"time"
)

// transactionScenarios have messages that wait for the end of a transaction.
var transactionScenarios = []scenario{
	{name: "transaction", far: true, run: transaction},
	{name: "transaction ended twice", far: true, run: transactionEndedTwice},
	{name: "transaction checks", far: true, run: transactionChecks},
	{name: "transaction unresolved", far: true, run: transactionUnresolved},
}

const transactionTopic = "payments"

// checked is a topic whose checks come soon and are few. Any producer of a topic may
// be asked, so each language has its own.
func checked(l language) string { return "checked-" + l.name }

// half sends a message that waits for the end of its transaction.
func (s *stage) half(producer string, m message) (id string, tx int) {
	s.Helper()
	var out struct {
		MessageID string
		Tx        int
	}
	s.must("send a half message", s.d.call("half", m.fields(producer), &out))
	return out.MessageID, out.Tx
}

func (s *stage) end(producer string, tx int, commit bool) error {
	return s.d.call("end", map[string]any{"client": producer, "tx": tx, "commit": commit}, nil)
}

func (s *stage) transactional(topic string) string {
	s.Helper()
	return s.open("producer", map[string]any{"endpoint": s.at(rz01), "topics": []string{topic}, "attempts": 1, "checks": true})
}

// transaction commits one message and rolls back another: nothing is there before,
// and only the first afterwards.
func transaction(s *stage) {
	push := s.consumer("push", s.there(), transactionTopic, s.tag())
	simple := s.consumer("simple", s.there(), transactionTopic, s.tag())
	producer := s.transactional(transactionTopic)
	m := message{topic: transactionTopic, body: "pay 10", tag: s.tag(), keys: []string{"k"}, properties: s.to()}
	commit, first := s.half(producer, m)
	rollback, second := s.half(producer, m)
	if early := s.receive(simple, 30*time.Second); len(early) > 0 { // waits for the await time
		s.Errorf("before the commit came %s", bodies(early))
	}
	s.must("roll back "+rollback, s.end(producer, second, false))
	s.must("commit", s.end(producer, first, true))
	got := s.take(simple, 1)
	s.same("simple", got, []string{commit})
	s.same("push", s.pushed(push, 1), []string{commit})
	if m := got[commit]; string(m.Body) != "pay 10" || !slices.Equal(m.Keys, []string{"k"}) || m.Attempt != 1 {
		s.Errorf("committed %+v", m)
	}
	if late := s.receive(simple, 30*time.Second); len(late) > 0 {
		s.Errorf("after the committed one came %s", bodies(late))
	}
}

// transactionEndedTwice ends transactions again: the first decision holds, a
// repetition of it is no error and the opposite is one.
func transactionEndedTwice(s *stage) {
	simple := s.consumer("simple", s.there(), transactionTopic, s.tag())
	producer := s.transactional(transactionTopic)
	m := message{topic: transactionTopic, body: "once", tag: s.tag(), properties: s.to()}
	commit, first := s.half(producer, m)
	_, second := s.half(producer, m)
	s.must("commit", s.end(producer, first, true))
	s.must("roll back", s.end(producer, second, false))
	for what, err := range map[string]error{"commit again": s.end(producer, first, true), "roll back again": s.end(producer, second, false)} {
		if err != nil {
			s.Errorf("%s: %v", what, err)
		}
	}
	s.thrown("roll back what is committed", s.end(producer, first, false))
	s.thrown("commit what is rolled back", s.end(producer, second, true))
	s.same("simple", s.take(simple, 1), []string{commit})
	if late := s.receive(simple, 30*time.Second); len(late) > 0 {
		s.Errorf("after the committed one came %s", bodies(late))
	}
}

// asked makes a message whose checks are answered in this way.
func (s *stage) asked(answers string) message {
	p := maps.Clone(s.to())
	p["checks"] = answers
	return message{topic: checked(s.d.lang), body: answers, tag: s.tag(), properties: p}
}

// transactionChecks leaves transactions open: the server asks until it is told.
func transactionChecks(s *stage) {
	simple := s.consumer("simple", s.there(), checked(s.d.lang), s.tag())
	producer := s.transactional(checked(s.d.lang))
	commit, _ := s.half(producer, s.asked("unknown,none,commit"))
	rollback, _ := s.half(producer, s.asked("rollback"))
	s.same("simple", s.take(simple, 1), []string{commit})
	if late := s.receive(simple, 30*time.Second); len(late) > 0 {
		s.Errorf("after both were resolved came %s", bodies(late))
	}
	if got, _ := s.d.checked(commit); len(got) < 3 || got[0] != "unknown" || got[1] != "none" || got[2] != "commit" {
		s.Errorf("the checks were answered with %v", got)
	}
	if got, _ := s.d.checked(rollback); len(got) == 0 {
		s.Errorf("nobody was asked about what was rolled back")
	}
}

// transactionUnresolved never tells: the checks end, and the message is not delivered.
func transactionUnresolved(s *stage) {
	simple := s.consumer("simple", s.there(), checked(s.d.lang), s.tag())
	id, _ := s.half(s.transactional(checked(s.d.lang)), s.asked("unknown"))
	var times int
	for end := time.Now().Add(waitMost); time.Now().Before(end); {
		if got := s.receive(simple, 30*time.Second); len(got) > 0 { // waits for the await time
			s.Errorf("unresolved, and came: %s", bodies(got))
		}
		got, _ := s.d.checked(id)
		if len(got) >= 3 && len(got) == times {
			return // asked no more
		}
		times = len(got)
	}
	s.Errorf("asked %d times within %v and not done", times, waitMost)
}
