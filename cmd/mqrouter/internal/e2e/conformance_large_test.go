package e2e

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
)

// largeScenarios have bodies of many bytes or none, and bodies that are packed.
var largeScenarios = []scenario{
	{name: "large", far: true, run: large},
	{name: "huge", far: true, cities: true, run: huge}, // a limit of the topic's own
	{name: "empty", far: true, run: empty},
	{name: "packed", far: true, run: packed},
}

const (
	slimTopic = "slim" // bodies that every client can receive
	hugeTopic = "huge"
)

// alphabet is the body of so many bytes that drivers make.
func alphabet(size int) []byte {
	return bytes.Repeat([]byte("abcdefghijklmnopqrstuvwxyz"), size/26+1)[:size]
}

// large sends bodies up to the limit and one byte above, and then goes on with the
// same producer.
func large(s *stage) {
	topic, limit := "transfer", 4<<20
	if s.d.lang.maxBody < limit {
		topic, limit = slimTopic, 4032<<10
	}
	push := s.consumer("push", s.there(), topic, s.tag())
	simple := s.consumer("simple", s.there(), topic, s.tag())
	producer := s.producer(rz01, topic, "transfer", "small")
	var sent []string
	for _, size := range []int{1 << 20, limit} {
		sent = append(sent, s.send(producer, message{topic: topic, size: size, tag: s.tag(), properties: s.to()}))
	}
	// The client knows the largest of its topics' limits and keeps to it; one
	// topic's own is the server's to say.
	s.refused(producer, message{topic: topic, size: 4<<20 + 1, properties: s.to()}, fmt.Sprint(4<<20))
	s.refused(producer, message{topic: "small", size: 1<<10 + 1}, "1025 bytes, the limit of the topic small is 1024")
	sent = append(sent, s.send(producer, message{topic: topic, body: "the next one", tag: s.tag(), properties: s.to()}))
	got := s.pushed(push, len(sent))
	s.same("push", got, sent)
	s.same("simple", s.take(simple, len(sent)), sent)
	if m := got[sent[1]]; m.Size != limit || m.SHA256 != sum(alphabet(limit)) {
		s.Errorf("the body at the limit came with %d bytes, checksum %s", m.Size, m.SHA256)
	}
}

func sum(body []byte) string { return fmt.Sprintf("%x", sha256.Sum256(body)) }

// huge has a topic with a limit above the usual, and one with the usual: each is
// held to its own. What the client cannot receive another one does.
func huge(s *stage) {
	const most, usual = 7 << 20, 4 << 20
	producer := s.producer(rz01, hugeTopic, "transfer")
	// Until its settings have come a producer of Python's has a limit of its own.
	s.eventually("the producer knows its topics' limits", waitMost, func() error {
		_, err := s.trySend(producer, message{topic: hugeTopic, size: most + 1, properties: s.to()})
		if err != nil && strings.Contains(err.Error(), fmt.Sprint("max size=", usual)) {
			return err
		}
		return nil
	})
	s.refused(producer, message{topic: hugeTopic, size: most + 1, properties: s.to()}, fmt.Sprint(most))
	s.refused(producer, message{topic: "transfer", size: usual + 1, properties: s.to()}, "4194305 bytes, the limit of the topic transfer is 4194304")
	for topic, size := range map[string]int{hugeTopic: most, "transfer": usual} {
		id := s.send(producer, message{topic: topic, size: size, tag: s.tag(), properties: s.to()})
		if s.d.lang.maxBody < size {
			s.takenByGo(topic, id, size)
			continue
		}
		push := s.pushed(s.consumer("push", s.there(), topic, s.tag()), 1)
		simple := s.take(s.consumer("simple", s.there(), topic, s.tag()), 1)
		for who, got := range map[string]map[string]seen{"push": push, "simple": simple} {
			s.same(who+", "+topic, got, []string{id})
			if m := got[id]; m.Size != size || m.SHA256 != sum(alphabet(size)) {
				s.Errorf("%s: the body of %d bytes came with %d, checksum %s", who, size, m.Size, m.SHA256)
			}
		}
	}
}

// takenByGo receives a message with the Go client.
func (s *stage) takenByGo(topic, id string, size int) {
	s.Helper()
	c, err := rocketmqclient.NewSimpleConsumer(s.Context(), rocketmqclient.Config{Endpoint: s.at(s.there())}, groupName(s.d.lang, s.scenario, "simple"),
		3*time.Second, rocketmqclient.Subscription{Topic: topic, Tags: s.tag()})
	s.must("start a consumer", err)
	defer c.Close()
	for end := time.Now().Add(waitMost); time.Now().Before(end); {
		got, err := c.Receive(s.Context(), 1, 30*time.Second)
		s.must("receive", err)
		if len(got) == 0 {
			continue
		}
		if m := got[0]; m.MessageID != id || sum(m.Body) != sum(alphabet(size)) {
			s.Errorf("the body of %d bytes of %s came as %s with %d", size, id, m.MessageID, len(m.Body))
		}
		s.must("ack", c.Ack(s.Context(), got...))
		return
	}
	s.Errorf("the body of %d bytes does not come", size)
}

// empty sends a body of no bytes: it is refused, and the producer goes on.
func empty(s *stage) {
	topic, to := s.plain()
	push := s.consumer("push", s.there(), topic, s.tag())
	producer := s.producer(rz01, topic)
	s.refused(producer, message{topic: topic, tag: s.tag(), properties: to}, "body")
	sent := []string{s.send(producer, message{topic: topic, body: "the next one", tag: s.tag(), properties: to})}
	s.same("push", s.pushed(push, 1), sent)
}
