package e2e

import (
	"errors"
	"time"
)

// delayScenarios have messages that are due later.
var delayScenarios = []scenario{
	{name: "delay", far: true, run: delay},
	{name: "recall", far: true, run: recall},
	{name: "delay refusals", run: delayRefusals},
}

const delayTopic = "reminders"

// delay publishes what is due at different times, the last first: each arrives
// when it is due and never before, and tells when that was.
func delay(s *stage) {
	push := s.consumer("push", s.there(), delayTopic, s.tag())
	simple := s.consumer("simple", s.there(), delayTopic, s.tag())
	producer := s.producer(rz01, delayTopic)
	delays := []time.Duration{6 * time.Second, 4 * time.Second, 2 * time.Second}
	due := map[string]int64{}
	var sent []string
	for _, d := range delays {
		before := time.Now()
		id := s.send(producer, message{topic: delayTopic, body: d.String(), tag: s.tag(), delay: d, properties: s.to()})
		sent, due[id] = append(sent, id), before.Add(d).UnixMilli()
	}
	for end := time.Now().Add(waitMost); len(due) > 0 && time.Now().Before(end); {
		for _, m := range s.receive(simple, 30*time.Second) {
			s.must("ack", s.ack(simple, m))
			s.punctual("simple", m, due[m.MessageID], time.Now())
			delete(due, m.MessageID)
		}
	}
	if len(due) > 0 {
		s.Errorf("simple: %d messages did not come", len(due))
	}
	s.same("push", s.pushed(push, len(sent)), sent)
	all, _ := s.d.deliveries(push)
	for _, d := range all {
		s.punctual("push", d.Message, 0, time.UnixMilli(d.Began))
	}
}

// punctual fails when a message came before it was due. A client may ask for a
// whole second: its own time counts, within a second of what was asked for.
func (s *stage) punctual(who string, m seen, asked int64, at time.Time) {
	s.Helper()
	if early := m.DeliveryTimestamp - at.UnixMilli(); early > 0 {
		s.Errorf("%s got %q %d ms before it was due", who, m.Body, early)
	}
	if off := m.DeliveryTimestamp - asked; asked > 0 && (off < -1000 || off > 1000) {
		s.Errorf("%s: %q says that it is due %d ms from what was asked for", who, m.Body, off)
	}
}

// trySendFor sends and returns the handle to recall the message with as well.
func (s *stage) trySendFor(producer string, m message) (id, handle string, err error) {
	var out struct{ MessageID, RecallHandle string }
	err = s.d.call("send", m.fields(producer), &out)
	return out.MessageID, out.RecallHandle, err
}

func (s *stage) recall(producer, topic, handle string) (string, error) {
	var out struct{ MessageID string }
	err := s.d.call("recall", map[string]any{"client": producer, "topic": topic, "handle": handle}, &out)
	return out.MessageID, err
}

// thrown fails unless the client threw an error.
func (s *stage) thrown(what string, err error) {
	s.Helper()
	var thrown *clientError
	if !errors.As(err, &thrown) {
		s.Errorf("%s: %v, want the client's error", what, err)
	}
}

// recall takes back one of two messages before it is due, and cannot take back the
// other afterwards.
func recall(s *stage) {
	simple := s.consumer("simple", s.there(), delayTopic, s.tag())
	producer := s.producer(rz01, delayTopic)
	send := func(body string, d time.Duration) (string, string) {
		id, handle, err := s.trySendFor(producer, message{topic: delayTopic, body: body, tag: s.tag(), delay: d, properties: s.to()})
		s.must("send", err)
		if handle == "" {
			s.Errorf("%q has no recall handle", body)
		}
		return id, handle
	}
	back, handle := send("never", 5*time.Second)
	kept, late := send("later", 7*time.Second)
	id, err := s.recall(producer, delayTopic, handle)
	s.must("recall", err)
	if id != back {
		s.Errorf("recalled %s, want %s", id, back)
	}
	if _, err := s.recall(producer, delayTopic, handle); err != nil {
		s.Logf("a second recall: %v", err)
	}
	s.same("simple", s.take(simple, 1), []string{kept})
	_, err = s.recall(producer, delayTopic, late)
	s.thrown("recall of what was delivered", err)
	_, err = s.recall(producer, delayTopic, "bm90IGEgaGFuZGxl")
	s.thrown("recall with what is no handle", err)
}

// delayRefusals asks for what a topic does not take: too far ahead, or another kind.
func delayRefusals(s *stage) {
	producer := s.producer(rz01, delayTopic)
	s.refused(producer, message{topic: delayTopic, body: "in 40 days", tag: s.tag(), delay: 40 * 24 * time.Hour, properties: s.to()}, "deliver", "delay")
	s.refused(producer, message{topic: delayTopic, body: "now", tag: s.tag(), properties: s.to()}, "message type not match", "type")
	s.send(producer, message{topic: delayTopic, body: "the next one", tag: s.tag(), delay: time.Second, properties: s.to()})
}
