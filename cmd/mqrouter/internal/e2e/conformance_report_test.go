package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// reportLines is how much of a client's log a failed scenario shows, from the beginning
// and from the end.
const reportLines = 60

// idle finds the topics of which a consumer group has nothing left to do at a broker.
var idle = regexp.MustCompile(`(?m)^.*( +0){5}\n`)

// report leaves behind, of a scenario that failed, what its clients saw, what they
// logged, and what the brokers have of its groups; all at that moment, before the
// clients are closed.
func (s *stage) report() {
	if !s.Failed() {
		return
	}
	s.Helper()
	s.Logf("%s at %s; its clients saw:\n%s", s.scenario, time.Now().Format(time.TimeOnly), s.saw())
	for _, kind := range []string{"push", "simple"} {
		group := groupName(s.d.lang, s.scenario, kind)
		if lines := s.d.logged(group); len(lines) > 0 {
			s.Logf("logged with %s:\n%s", group, strings.Join(lines, "\n"))
		}
		if s.admin == nil {
			continue
		}
		out, err := mqrouter(s.T, s.admin, "group", "show", group)
		if err != nil {
			out = err.Error()
		}
		s.Logf("group %s:\n%s", group, idle.ReplaceAllString(out, ""))
	}
}

// saw tells what the scenario's push consumers got and when.
func (s *stage) saw() string {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	var b strings.Builder
	for client, all := range s.d.pushed {
		if !strings.HasPrefix(client, s.scenario+"/") {
			continue
		}
		for _, d := range all {
			fmt.Fprintf(&b, "%s: %s to %s, attempt %d, ok %t: %.40q\n", client, time.UnixMilli(d.Began).Format("15:04:05.000"), time.UnixMilli(d.Ended).Format("15:04:05.000"), d.Message.Attempt, d.OK, d.Message.Body)
		}
	}
	for client, all := range s.d.stalls {
		if strings.HasPrefix(client, s.scenario+"/") {
			fmt.Fprintf(&b, "%s: holds %s\n", client, bodies(all))
		}
	}
	return b.String()
}

// logged returns the lines with a text of the files that the driver's client logs into.
func (d *driver) logged(text string) []string {
	var lines []string
	err := filepath.WalkDir(filepath.Join(d.home, "logs"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, text) {
				lines = append(lines, fmt.Sprintf("%.300s", strings.TrimSpace(line)))
			}
		}
		return err
	})
	if err != nil { // Node.js logs to stderr
		return nil
	}
	if n := len(lines) - 2*reportLines; n > 0 {
		lines = append(append(lines[:reportLines:reportLines], fmt.Sprintf("... %d lines ...", n)), lines[len(lines)-reportLines:]...)
	}
	return lines
}
