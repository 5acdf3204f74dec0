package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// accessScenarios have clients that sign their requests.
var accessScenarios = []scenario{
	{name: "access", far: true, cities: true, run: access},
}

// guardedTopic is open only to those in the access file of conformanceDev.
const (
	guardedTopic = "guarded"
	writerSecret = "the-secret-of-the-writer"
	readerSecret = "the-secret-of-the-reader"
)

// conformanceAccess writes an access file: clients without credentials may do all
// but with the guarded topic, one user may publish to it, another receive from it.
func conformanceAccess(t *testing.T, dir string) string {
	t.Helper()
	// What nobody declares is open as well: what says so is the topology.
	names := []string{`no-such-topic`, `"%RETRY%*"`, `"RMQ_SYS_*"`, `"SCHEDULE_*"`}
	for _, c := range conformanceTopics {
		if c.name != guardedTopic {
			names = append(names, c.name)
		}
	}
	slices.Sort(names)
	file := filepath.Join(dir, "acl.yaml")
	text := fmt.Sprintf(`anonymous:
  publish: [%[1]s]
  consume: [%[1]s]
  groups: ["*"]
users:
  - {access_key: writer, secret: %[2]s, publish: [%[4]s]}
  - {access_key: reader, secret: %[3]s, consume: [%[4]s], groups: ["*"]}
`, strings.Join(names, ", "), writerSecret, readerSecret, guardedTopic)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// access publishes and receives with credentials: good ones work in both cities,
// wrong ones, none, and those of somebody who may do something else do not.
func access(s *stage) {
	as := func(key, secret string) map[string]any { return map[string]any{"accessKey": key, "secretKey": secret} }
	m := message{topic: guardedTopic, body: "for your eyes", tag: s.tag(), properties: s.to()}
	publish := func(what string, credentials map[string]any) {
		name := s.name("producer")
		fields := map[string]any{"client": name, "endpoint": s.at(rz01), "topics": []string{guardedTopic}, "attempts": 1}
		for k, v := range credentials {
			fields[k] = v
		}
		err := s.d.call("producer", fields, nil)
		if err == nil {
			s.Cleanup(func() { s.d.closing.Go(func() { s.d.close(name) }) })
			_, err = s.trySend(name, m)
		}
		s.thrown(what+" publishes", err)
		s.Logf("%s: %v", what, err)
	}
	publish("a wrong secret", as("writer", readerSecret))
	publish("an unknown key", as("nobody", writerSecret))
	publish("who may only receive", as("reader", readerSecret))
	publish("who has no credentials", nil)

	simple := s.consumer("simple", s.there(), guardedTopic, s.tag(), as("reader", readerSecret))
	push := s.consumer("push", s.there(), guardedTopic, s.tag(), as("reader", readerSecret))
	fields := as("writer", writerSecret)
	fields["endpoint"], fields["topics"], fields["attempts"] = s.at(rz01), []string{guardedTopic}, 1
	sent := []string{s.send(s.open("producer", fields), m)}
	s.same("simple", s.take(simple, 1), sent)
	s.same("push", s.pushed(push, 1), sent)

	name := s.name("simple")
	fields = as("writer", writerSecret)
	fields["client"], fields["endpoint"], fields["group"], fields["topics"], fields["await"] = name, s.at(s.there()), groupName(s.d.lang, s.scenario, "simple"), map[string]string{guardedTopic: s.tag()}, 3000
	err := s.d.call("simple", fields, nil)
	if err == nil {
		s.Cleanup(func() { s.d.closing.Go(func() { s.d.close(name) }) })
		_, err = s.tryReceive(name, 30*time.Second)
	}
	s.thrown("who may only publish receives", err)
	s.Logf("receive: %v", err)
}
