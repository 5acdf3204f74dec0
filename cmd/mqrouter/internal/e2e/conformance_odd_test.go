package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// oddScenarios have messages with much or little of something.
var oddScenarios = []scenario{
	{name: "priority", far: true, run: priority},
	{name: "large properties", far: true, run: largeProperties},
}

const priorityTopic = "ranked"

// priority publishes the lowest first: each message keeps its priority, and of what
// one broker has the highest comes first.
func priority(s *stage) {
	producer := s.producer(rz01, priorityTopic)
	push := s.consumer("push", s.there(), priorityTopic, s.tag())
	var sent []string
	for level := 1; level <= 3; level++ {
		for i := range 2 {
			sent = append(sent, s.send(producer, message{topic: priorityTopic, body: fmt.Sprint(level, i), tag: s.tag(), priority: &level, properties: s.to()}))
		}
	}
	s.same("push", s.pushed(push, len(sent)), sent)
	simple := s.consumer("simple", s.there(), priorityTopic, s.tag()) // all are there
	got := s.drain(simple, len(sent))
	byID := map[string]seen{}
	var levels []int
	for _, m := range got {
		byID[m.MessageID] = m
		if m.Priority == nil || fmt.Sprint(*m.Priority) != string(m.Body[:1]) {
			s.Errorf("%q came with priority %v", m.Body, m.Priority)
			continue
		}
		levels = append(levels, *m.Priority)
	}
	s.same("simple", byID, sent)
	oneBroker := s.far() || s.apache != nil // rz01 has two
	if oneBroker && !slices.IsSortedFunc(levels, func(a, b int) int { return b - a }) {
		s.Errorf("priorities in the order of receipt: %v", levels)
	}
}

// largeProperties publishes as many bytes of properties as a message may have.
func largeProperties(s *stage) {
	simple := s.consumer("simple", s.there(), "transfer", s.tag())
	producer := s.producer(rz01, "transfer")
	p := maps.Clone(s.to())
	for i := range 100 {
		p[fmt.Sprint("Ключ-", i)] = strings.Repeat("é", 300)
	}
	id := s.send(producer, message{topic: "transfer", body: "b", tag: s.tag(), properties: p})
	if got := s.take(simple, 1)[id]; !maps.Equal(got.Properties, p) {
		s.Errorf("%d properties came, %d were sent", len(got.Properties), len(p))
	}
	p["one-too-many"] = strings.Repeat("x", 10<<10)
	s.refused(producer, message{topic: "transfer", body: "b", tag: s.tag(), properties: p}, "propert")
}
