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
	server := startApache(t)
	var scenes []scenario
	for _, s := range scenarios {
		if !s.cities {
			s.far = false
			scenes = append(scenes, s)
		}
	}
	c := &comparison{}
	t.Run("all", func(t *testing.T) {
		for _, l := range languages {
			t.Run(l.name, func(t *testing.T) {
				t.Parallel()
				if !l.there(t) {
					t.Skip("skipped: its client is missing")
				}
				driver := startDriver(t, l, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH="+server.ca)
				play(t, scenes, func(t *testing.T, name string) *stage {
					return &stage{T: t, d: driver, at: func(int) string { return server.endpoint }, apache: c, scenario: name}
				})
			})
		}
	})
	report(t, c.found)
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
		scenarios: "transaction ended twice", text: "(commit|roll back) again: .*cannot found transaction data",
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
		scenarios: ".*", languages: "python", text: `receive: .*"settings" is null`, sometimes: true,
		reason: "A receive that comes before the client's Settings, or after its stream broke, is an internal error. mqrouter serves it with defaults.",
	},
	{
		scenarios: "fifo retry", languages: "node", text: "0 of 6 messages",
		reason: "The Node.js client reads the group's list of retry steps as no retry and sends a message of a FIFO group to the dead letters at its first failure. mqrouter gives each client a retry policy of the kind that it knows.",
	},
}
