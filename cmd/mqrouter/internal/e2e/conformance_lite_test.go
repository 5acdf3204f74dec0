package e2e

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// liteScenarios have lite topics, which consumers choose by name.
var liteScenarios = []scenario{
	{name: "lite", far: true, cities: true, run: liteTopics},
	{name: "lite retry", attempts: 3, far: true, cities: true, run: liteRetry},
	{name: "lite fifo", fifo: true, far: true, cities: true, run: liteRetry},
	{name: "lite handover", far: true, cities: true, run: liteHandover},
	{name: "lite exclusive", lite: "exclusive", far: true, cities: true, run: liteExclusive},
	{name: "lite all", lite: "all", far: true, cities: true, run: liteAll},
	{name: "lite offsets", far: true, cities: true, run: liteOffsets},
	{name: "lite limits", cities: true, run: liteLimits},
	{name: "lite refusals", cities: true, run: liteRefusals},
}

const (
	liteTopic  = "chats"
	tightTopic = "few-chats-" // and the language: two lite topics may live
)

// own makes the name of a lite topic the scenario's own.
func (s *stage) own(name string) string {
	return groupName(s.d.lang, s.scenario, name)
}

// chooser is a lite consumer of the scenario's group.
func (s *stage) chooser(topic string, names []string, extra map[string]any) string {
	s.Helper()
	list := []string{}
	for _, name := range names {
		list = append(list, s.own(name))
	}
	fields := map[string]any{"endpoint": s.at(s.there()), "group": groupName(s.d.lang, s.scenario, "push"), "topic": topic, "liteTopics": list}
	for k, v := range extra {
		fields[k] = v
	}
	return s.open("lite", fields)
}

// chat publishes n messages of each lite topic, in turn; a body is the lite topic and
// the number in it.
func (s *stage) chat(producer string, n int, names ...string) (sent []string) {
	s.Helper()
	for i := range n {
		for _, name := range names {
			sent = append(sent, s.send(producer, message{topic: liteTopic, body: fmt.Sprint(name, " ", i), lite: s.own(name), properties: s.to()}))
		}
	}
	return sent
}

// liteInOrder checks that a push consumer got each message of each lite topic once, in
// order, and returns how many of each.
func (s *stage) liteInOrder(consumer string) map[string]int {
	s.Helper()
	all, _ := s.d.deliveries(consumer)
	next := map[string]int{}
	for _, d := range all {
		name, _, _ := strings.Cut(string(d.Message.Body), " ")
		if d.Message.LiteTopic != s.own(name) || d.Message.Topic != liteTopic {
			s.Errorf("%q came as one of lite topic %q of %s", d.Message.Body, d.Message.LiteTopic, d.Message.Topic)
		}
		if want := fmt.Sprint(name, " ", next[name]); string(d.Message.Body) != want {
			s.Errorf("%q came, want %q: %s", d.Message.Body, want, s.told(all))
		}
		if d.OK {
			next[name]++
		}
	}
	return next
}

func (s *stage) told(all []delivery) string {
	var list []string
	for _, d := range all {
		list = append(list, fmt.Sprintf("%s:%t", d.Message.Body, d.OK))
	}
	return strings.Join(list, ", ")
}

func (s *stage) subscribe(consumer, name string, from string, n int64) {
	s.Helper()
	fields := map[string]any{"client": consumer, "liteTopic": s.own(name)}
	if from != "" {
		fields["from"], fields["n"] = from, n
	}
	s.must("subscribe to "+name, s.d.call("subscribe", fields, nil))
}

// liteTopics has a consumer get what it named and nothing else, whether it was sent
// before or after, and give up one.
func liteTopics(s *stage) {
	producer := s.producer(rz01, liteTopic)
	sent := s.chat(producer, 3, "a", "b", "c")
	consumer := s.chooser(liteTopic, []string{"a", "b", "later"}, nil)
	sent = append(sent, s.chat(producer, 2, "later")...)
	s.pushed(consumer, 8)
	if got := s.liteInOrder(consumer); got["a"] != 3 || got["b"] != 3 || got["later"] != 2 || len(got) != 3 {
		s.Errorf("of a, b and later came %v", got)
	}
	s.subscribe(consumer, "c", "", 0)
	s.same(consumer, s.pushed(consumer, 11), sent)
	s.liteInOrder(consumer)
	s.must("unsubscribe", s.d.call("unsubscribe", map[string]any{"client": consumer, "liteTopic": s.own("a")}, nil))
	s.send(producer, message{topic: liteTopic, body: "a 3", lite: s.own("a"), properties: s.to()})
	more := s.send(producer, message{topic: liteTopic, body: "b 3", lite: s.own("b"), properties: s.to()})
	s.same(consumer, s.pushed(consumer, 12), append(sent, more))
	var out struct{ LiteTopics []string }
	s.must("lite topics", s.d.call("liteTopics", map[string]any{"client": consumer}, &out))
	if want := []string{s.own("b"), s.own("c"), s.own("later")}; !slices.Equal(out.LiteTopics, want) {
		s.Errorf("the client thinks that it has %v, want %v", out.LiteTopics, want)
	}
}

// liteRetry fails the first delivery of each message: none overtakes it in its lite
// topic, and lite topics do not wait for each other.
func liteRetry(s *stage) {
	consumer := s.chooser(liteTopic, []string{"a", "b"}, map[string]any{"fail": 1})
	producer := s.producer(rz01, liteTopic)
	sent := s.chat(producer, 3, "a", "b")
	s.same(consumer, s.pushed(consumer, len(sent)), sent)
	s.liteInOrder(consumer)
}

// liteHandover has one consumer after the other take a lite topic: the next goes on
// where the first ended.
func liteHandover(s *stage) {
	producer := s.producer(rz01, liteTopic)
	first := s.chooser(liteTopic, []string{"a"}, nil)
	sent := s.chat(producer, 3, "a")
	s.same(first, s.pushed(first, 3), sent)
	s.must("unsubscribe", s.d.call("unsubscribe", map[string]any{"client": first, "liteTopic": s.own("a")}, nil))
	var later []string
	for i := 3; i < 6; i++ {
		later = append(later, s.send(producer, message{topic: liteTopic, body: fmt.Sprint("a ", i), lite: s.own("a"), properties: s.to()}))
	}
	second := s.chooser(liteTopic, []string{"a"}, nil)
	s.same(second, s.pushed(second, 3), later)
}

// liteExclusive has a second consumer of an exclusive group take a lite topic from the
// first.
func liteExclusive(s *stage) {
	producer := s.producer(rz01, liteTopic)
	first := s.chooser(liteTopic, []string{"a", "b"}, nil)
	sent := s.chat(producer, 2, "a", "b")
	s.same(first, s.pushed(first, 4), sent)
	second := s.chooser(liteTopic, []string{"a"}, nil)
	var later []string
	for i := 2; i < 5; i++ {
		later = append(later, s.send(producer, message{topic: liteTopic, body: fmt.Sprint("a ", i), lite: s.own("a"), properties: s.to()}))
	}
	s.same(second, s.pushed(second, 3), later)
	if s.d.lang.name != "java" { // the others do not listen to the command
		return
	}
	for end := time.Now().Add(waitMost); ; {
		var out struct{ LiteTopics []string }
		s.must("lite topics", s.d.call("liteTopics", map[string]any{"client": first}, &out))
		if slices.Equal(out.LiteTopics, []string{s.own("b")}) {
			return
		}
		if time.Now().After(end) {
			s.Fatalf("the first consumer still thinks that it has %v", out.LiteTopics)
		}
	}
}

// liteAll has an ordinary push consumer get all lite topics, each in order.
func liteAll(s *stage) {
	push := s.consumer("push", s.there(), liteTopic, s.tag())
	producer := s.producer(rz01, liteTopic)
	var sent []string
	for i := range 3 {
		for _, name := range []string{"a", "b", "c"} {
			sent = append(sent, s.send(producer, message{topic: liteTopic, body: fmt.Sprint(name, " ", i), tag: s.tag(), lite: s.own(name), properties: s.to()}))
		}
	}
	s.same(push, s.pushed(push, len(sent)), sent)
	s.liteInOrder(push)
}

// liteOffsets has a group that has consumed a lite topic go on where its next consumer
// says.
func liteOffsets(s *stage) {
	if s.d.lang.name == "python" {
		s.Skip("skipped: its client cannot say where to go on")
	}
	producer := s.producer(rz01, liteTopic)
	places := []struct {
		from string
		n    int64
		want int // of the four that were consumed
	}{{"tail", 1, 1}, {"offset", 2, 2}, {"time", 1, 4}, {"min", 0, 4}, {"last", 0, 0}, {"max", 0, 0}}
	var names []string
	for _, p := range places {
		names = append(names, p.from)
	}
	first := s.chooser(liteTopic, names, nil)
	sent := s.chat(producer, 4, names...)
	s.same(first, s.pushed(first, len(sent)), sent)
	for _, name := range names {
		s.must("unsubscribe", s.d.call("unsubscribe", map[string]any{"client": first, "liteTopic": s.own(name)}, nil))
	}
	second := s.chooser(liteTopic, nil, nil)
	var want []string
	for i, p := range places {
		s.subscribe(second, p.from, p.from, p.n)
		for n := 4 - p.want; n < 4; n++ {
			want = append(want, sent[n*len(places)+i])
		}
		want = append(want, s.send(producer, message{topic: liteTopic, body: p.from + " 4", lite: s.own(p.from), properties: s.to()}))
	}
	s.same(second, s.pushed(second, len(want)), want)
}

// liteLimits asks for more lite topics than there may be.
func liteLimits(s *stage) {
	topic := tightTopic + s.d.lang.name
	producer := s.producer(rz02, topic)
	for _, name := range []string{"a", "b"} {
		s.send(producer, message{topic: topic, body: name, lite: name})
	}
	s.refused(producer, message{topic: topic, body: "c", lite: "c"}, "lite topics live")
	consumer := s.open("lite", map[string]any{"endpoint": s.at(rz02), "group": groupName(s.d.lang, s.scenario, "push"), "topic": topic, "liteTopics": []string{"a", "b"}})
	s.pushed(consumer, 2)
	s.thrown("a third subscription", s.d.call("subscribe", map[string]any{"client": consumer, "liteTopic": "c"}, nil))
}

// liteRefusals asks for what is not to be had: the client is told so.
func liteRefusals(s *stage) {
	fields := map[string]any{"client": s.name("lite"), "endpoint": s.at(rz01), "group": groupName(s.d.lang, s.scenario, "push"), "topic": "orders", "liteTopics": []string{"a"}}
	s.thrown("a lite consumer of a topic without lite topics starts", s.d.call("lite", fields, nil))
	_, err := s.trySend(s.producer(rz01, "orders"), message{topic: "orders", body: "b", tag: s.tag(), lite: "a"})
	s.thrown("a lite message is sent to a topic without lite topics", err)
	producer := s.producer(rz01, liteTopic)
	for _, m := range []message{{body: "none"}, {body: "long", lite: strings.Repeat("x", 65)}, {body: "blank", lite: "a b"}, {body: "letter", lite: "ü"}} {
		m.topic, m.properties = liteTopic, s.to()
		_, err := s.trySend(producer, m)
		s.thrown("a message with "+m.body+" is sent", err)
	}
}
