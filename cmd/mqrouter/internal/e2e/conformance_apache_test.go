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
	reason    string // what it is, and why mqrouter differs
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
	note := readFile(t, filepath.Join(repoRoot(t), "deploy", "notes", "0009-where-apache-differs.md"))
	for _, d := range differences {
		if !strings.Contains(note, d.reason) {
			t.Errorf("the note does not say: %s", d.reason)
		}
	}
}

// differences are all that are known; the design note has them with the same words.
var differences = []difference{}
