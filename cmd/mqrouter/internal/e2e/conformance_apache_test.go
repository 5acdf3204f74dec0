package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// difference is what the same scenario shows otherwise at Apache RocketMQ.
type difference struct {
	scenarios string // a regular expression that matches the name as a whole
	languages string // likewise; empty: all
	text      string // a regular expression for what is seen there
	reason    string // what it is, and what mqrouter does
	sometimes bool   // does not show in every run
}

// comparison gathers what scenarios that hold at mqrouter show at Apache.
type comparison struct {
	mu    sync.Mutex
	found []finding // guarded by mu
}

type finding struct{ scenario, language, text string }

func (c *comparison) add(s *stage, text string) {
	s.Helper()
	s.Logf("differs: %s", text)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.found = append(c.found, finding{s.scenario, s.d.lang.name, text})
}

// Errorf fails the scenario at mqrouter and is a difference at Apache.
func (s *stage) Errorf(format string, args ...any) {
	s.Helper()
	if s.apache == nil {
		s.T.Errorf(format, args...)
		return
	}
	s.apache.add(s, fmt.Sprintf(format, args...))
}

// Fatalf is Errorf and ends the scenario.
func (s *stage) Fatalf(format string, args ...any) {
	s.Helper()
	if s.apache == nil {
		s.T.Fatalf(format, args...)
	}
	s.apache.add(s, fmt.Sprintf(format, args...))
	s.SkipNow()
}

// Fatal is Fatalf.
func (s *stage) Fatal(args ...any) {
	s.Helper()
	s.Fatalf("%s", fmt.Sprint(args...))
}

// TestApache plays the scenarios with the same clients against Apache RocketMQ's
// own servers and prints every difference. It fails when one is not declared in
// differences, or a declared one does not show. `make apache` runs it.
func TestApache(t *testing.T) {
	if os.Getenv("MQROUTER_APACHE") == "" {
		t.Skip("skipped: make apache compares with Apache RocketMQ")
	}
	c := &comparison{}
	t.Run("all", func(t *testing.T) {
		server := startApache(t, apacheSetup{})
		var scenes []scenario
		for _, s := range scenarios {
			if !s.cities {
				scenes = append(scenes, s)
			}
		}
		server.play(t, c, scenes)
	})
	t.Run("lite", func(t *testing.T) { startApache(t, apacheSetup{apart: true}).play(t, c, liteScenarios) })
	t.Run("access", func(t *testing.T) {
		server := startApache(t, apacheSetup{guarded: true})
		server.admin("createUser", "-u", "writer", "-p", writerSecret, "-t", "Normal")
		server.admin("createUser", "-u", "reader", "-p", readerSecret, "-t", "Normal")
		server.admin("createAcl", "-s", "User:writer", "-r", "Topic:"+guardedTopic, "-a", "Pub", "-d", "Allow")
		server.admin("createAcl", "-s", "User:reader", "-r", "Topic:"+guardedTopic+",Group:*", "-a", "Sub", "-d", "Allow")
		server.play(t, c, accessScenarios)
	})
	t.Run("restarts", func(t *testing.T) { apacheRestarts(t, c) })
	report(t, c.found)
}

// play plays scenarios with every client, the clients beside each other.
func (a *apacheServer) play(t *testing.T, c *comparison, scenes []scenario) {
	scenes = slices.Clone(scenes)
	for i := range scenes {
		scenes[i].far = false
	}
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			if !l.there(t) {
				t.Skip("skipped: its client is missing")
			}
			driver := startDriver(t, l, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH="+a.ca)
			play(t, scenes, func(t *testing.T, name string) *stage {
				return &stage{T: t, d: driver, at: func(int) string { return a.endpoint }, apache: c, scenario: name}
			})
		})
	}
}

// apacheRestarts kills Apache's broker and its proxy while clients run, and both
// while messages of each kind wait.
func apacheRestarts(t *testing.T, c *comparison) {
	a := startApache(t, apacheSetup{apart: true})
	var stages []*stage
	for _, l := range languages {
		if l.there(t) {
			stages = append(stages, &stage{T: t, d: startDriver(t, l), at: func(int) string { return a.endpoint }, apache: c, scenario: "broker restart", leave: true})
		}
	}
	each := func(what string, f func(*stage)) {
		for _, s := range stages {
			t.Run(what+" "+s.d.lang.name, func(t *testing.T) {
				s.T = t
				f(s)
			})
		}
	}
	running, left := map[*stage]*outliving{}, map[*stage]*waiting{}
	publish := func(round string) func(*stage) {
		return func(s *stage) { running[s].publish(round, 8, waitMost) }
	}
	each("start", func(s *stage) { running[s] = outlive(s) })
	each("before", publish("before"))
	a.broker.kill()
	a.startBroker()
	each("after the broker's death", publish("after the broker's death"))
	a.proxy.kill()
	a.startProxy()
	each("after the proxy's death", publish("after the proxy's death"))
	each("receive", func(s *stage) { running[s].settle() })
	each("leave", func(s *stage) { left[s] = leaveWaiting(s) })
	a.broker.kill()
	a.proxy.kill()
	a.startBroker()
	a.startProxy()
	each("come", func(s *stage) { left[s].come() })
}

// report prints the differences that were found, and fails on those that are not
// declared and on declared ones that were not found.
func report(t *testing.T, found []finding) {
	seen := map[string]map[string]bool{} // reason -> "scenario (language)"
	for _, f := range found {
		i := slices.IndexFunc(differences, func(d difference) bool {
			return whole(d.scenarios, f.scenario) && (d.languages == "" || whole(d.languages, f.language)) && regexp.MustCompile(d.text).MatchString(f.text)
		})
		if i < 0 {
			t.Errorf("not declared: %s, %s: %s", f.scenario, f.language, f.text)
			continue
		}
		reason := differences[i].reason
		if seen[reason] == nil {
			seen[reason] = map[string]bool{}
		}
		seen[reason][f.scenario+" ("+f.language+")"] = true
	}
	for _, d := range differences {
		if seen[d.reason] == nil {
			if d.sometimes {
				continue
			}
			t.Errorf("declared and not found: %s", d.reason)
			continue
		}
		t.Logf("difference: %s\n    %s", d.reason, strings.Join(slices.Sorted(maps.Keys(seen[d.reason])), ", "))
	}
}

func whole(pattern, text string) bool {
	return regexp.MustCompile("^(" + pattern + ")$").MatchString(text)
}

// TestDifferencesFromApacheAreWritten holds the design note to the declared list.
func TestDifferencesFromApacheAreWritten(t *testing.T) {
	note := readFile(t, filepath.Join(repoRoot(t), "deploy", "notes", "0014-where-apache-differs.md"))
	for _, d := range differences {
		if !strings.Contains(note, d.reason) {
			t.Errorf("the note does not say: %s", d.reason)
		}
	}
}

// differences are all that are known; the design note has them with the same words.
var differences = []difference{
	{
		scenarios: "content", text: `keys \[.*sent \[`,
		reason: "A key with a blank in it comes back as several, since the keys of a message are kept joined by blanks. mqrouter keeps each as it was sent.",
	},
	{
		scenarios: "(fifo )?dead letter", text: "start a simple|failed to fetch topic:%DLQ%",
		reason: "The dead-letter topic of a group is made with its first letter, and nobody can read it until an operator changes its permission. At mqrouter every declared group has one from the start, consumers can read it, and `mqrouter dlq` lists and replays it.",
	},
	{
		scenarios: "large", text: `small got "\w+" and error <nil>`,
		reason: "The largest body is one setting of the cluster. At mqrouter a topic can have a lower limit of its own, and the refusal names it.",
	},
	{
		scenarios: ".*", languages: "node", text: "start a .*: node driver: .* did not end within", sometimes: true,
		reason: "The Node.js client's start hangs now and then when it has several topics: the Settings come before it waits for them. mqrouter sends them again a second later.",
	},
	{
		scenarios: "sql", text: "of 4 messages within",
		reason: "In an SQL filter a property with a fraction, such as 250.5, is not compared with a number without one: `amount > 100` leaves it out. mqrouter compares numbers.",
	},
	{
		scenarios: "transaction ended twice|lost commit", text: "(commit again|roll back again|end it again): .*cannot found transaction data",
		reason: "To end a transaction a second time is an internal error (50001), whether the decision is the same or not. mqrouter answers a repetition with success and an opposite one with PRECONDITION_FAILED and the decision that holds.",
	},
	{
		scenarios: "large properties", text: "send to transfer: .*(size|propert)",
		reason: "The properties of a message have 16 KiB in all. mqrouter takes 64 KiB.",
	},
	{
		scenarios: "transaction checks", text: "after both were resolved came unknown,none,commit", sometimes: true,
		reason: "Two checks of one transaction that are both answered with a commit deliver the message twice. At mqrouter the first decision counts.",
	},
	{
		scenarios: "short poll", text: "deadline time remaining is not enough for polling",
		reason: "A receive that wants to wait for less than two seconds is refused (40018), since a poll lasts five seconds at least and the client would have given up. mqrouter ends the poll in time.",
	},
	{
		scenarios: ".*", languages: "python", text: `"settings" is null`, sometimes: true,
		reason: "A receive that comes before the client's Settings, or after its stream broke, is an internal error. mqrouter serves it with defaults.",
	},
	{
		scenarios: "lost send|lost send in order", text: "8 deliveries of 4 messages|after each had come once came|came where number 1 of its group is due",
		reason: "A send whose answer is lost is repeated by the client, stored twice and delivered twice. A topic of mqrouter with `idempotent` counts it once.",
	},
	{
		scenarios: "lost receive", languages: "java", text: "0 of 5 messages within",
		reason: "When a connection breaks with the answer to a receive in it, the Java client does not repeat the attempt id, and its messages are renewed for up to three hours; nothing more of their queue comes to a FIFO group. mqrouter renews what may not have arrived only while the connection that brought it stands.",
	},
	{
		scenarios: "broker restart", text: "Failed to fetch topic routes|DEADLINE_EXCEEDED|did not end within|not within", sometimes: true,
		reason: "After its broker or its proxy was killed and is there again, clients are refused for up to half a minute more: the proxy does not know the topics yet, or receives find no answer in time. A broker of mqrouter serves when it says that it is ready, and meanwhile the other brokers of the zone take the sends.",
	},
	{
		scenarios: "broker restart", text: "0 of 4 messages within", sometimes: true,
		reason: "After its broker and its proxy were killed nobody is asked about a half message until a producer has sent another one of the topic through the new proxy: within a minute open ones of producers that are back do not come. mqrouter asks every producer whose Settings list the topic.",
	},
	{
		scenarios: ".*", text: "receive: (.|\\n)*(DEADLINE_EXCEEDED|(?i:deadline exceeded))", sometimes: true,
		reason: "On a busy machine a receive is now and then answered after the client has given up, since the proxy ends its poll shortly before the client's deadline. mqrouter leaves a second.",
	},
	{
		scenarios: ".*", text: "TIMEOUT_CLEAN_QUEUE", sometimes: true,
		reason: "On a busy machine a send is now and then refused (42900) because it stood in the broker's queue for more than 200 ms. mqrouter has no such queue; it refuses for lack of room only.",
	},
	{
		scenarios: "lite.*", text: `" came, want "|came as one of lite topic`, sometimes: true,
		reason: "The messages of a lite topic come in order only to a group that consumes in order, and after a failure not even there. mqrouter keeps the order of each lite topic for every group.",
	},
	{
		scenarios: "lite retry|lite fifo", text: "of 6 messages within", sometimes: true,
		reason: "A message of a lite topic at which a consumer failed may not come again within a minute, though the group retries after a second.",
	},
	{
		scenarios: "lite limits", text: "want the client's error",
		reason: "How many lite topics live, and how many a consumer may name, are settings of the broker and of the group. At mqrouter a topic has limits of its own, and the refusal names them.",
	},
	{
		scenarios: "lite exclusive", languages: "node|python", text: "still thinks that it has|0 of 3 messages within", sometimes: true,
		reason: "In an exclusive group a consumer from which another one has taken a lite topic may not be told, and the other one may get nothing within a minute.",
	},
	{
		scenarios: "lite offsets", text: "of 17 messages within",
		reason: "Of the places from which a consumer may have its group go on in a lite topic, the oldest message or a time long ago brings nothing that the group has consumed. mqrouter goes back as far as it is asked.",
	},
	{
		scenarios: "lite refusals", text: "did not end within|want the client's error", sometimes: true,
		reason: "A lite consumer of a topic that has no lite topics is not always refused: the Node.js client waits in its start. mqrouter refuses it with the reason.",
	},
	{
		scenarios: "packed", text: "and error <nil>, want the client's error about .\"digest\"",
		reason: "A digest that comes with a body is not compared. mqrouter refuses a body that does not match it.",
	},
	{
		scenarios: "fifo retry", languages: "node", text: "0 of 6 messages",
		reason: "The Node.js client reads the group's list of retry steps as no retry and sends a message of a FIFO group to the dead letters at its first failure. mqrouter gives each client a retry policy of the kind that it knows.",
	},
}
