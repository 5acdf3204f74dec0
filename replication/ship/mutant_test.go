package ship

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var mutantSeeds = flag.Int("mutant-seeds", 0, "seeds that a mutant may live through; 0 = leave the mutants out, unless MQROUTER_LONG is set")

// edit replaces a piece of source that stands there once.
type edit struct{ old, new string }

// mutants are ways to break the rules that keep acknowledged records, each in one
// place: the simulations must notice every one, or they prove little.
var mutants = []struct {
	name  string
	file  string // relative to this package
	edits []edit
}{
	{
		"the union rule: the proposed set does not count", "keeper.go",
		[]edit{
			{"		if slices.Contains(set, m.node) {\n", "		if false && slices.Contains(set, m.node) {\n"},
			{" || slices.Contains(k.term.Proposed, m.node) {\n		return true", " {\n		return true"},
		},
	},
	{
		"the union rule: a request that was not answered counts as not done", "keeper.go",
		[]edit{{"	k.asked = false\n	if !ok {\n", "	k.asked = false\n	if !ok {\n		k.open = nil\n"}},
	},
	{
		"the union rule: who is to leave does not count from the request on", "keeper.go",
		[]edit{{"if m.phase == PhaseSemi || slices.Contains(k.term.InSync, m.node)", "if m.phase == PhaseSemi || slices.Contains(k.term.InSync, m.node) && m.fault == FaultNone"}},
	},
	{
		"a replica is confirmed before it has everything", "keeper.go",
		[]edit{{"slices.Contains(k.term.Proposed, m.node) && m.synced >= k.commit", "slices.Contains(k.term.Proposed, m.node)"}},
	},
	{
		"a majority of the old set is enough for the new one", "keeper.go",
		[]edit{{"if k.majority(next.inSync) < k.quorum {", "if false {"}},
	},
	{
		"an emptied member of the set is given a store at once", "keeper.go",
		[]edit{{"	return k.counts(m)\n}\n\n// left", "	return false\n}\n\n// left"}, {"	m.regressed = from < k.commit &&", "	m.regressed = false && from < k.commit &&"}},
	},
	{
		"the lease: a master answers as long as it likes", "../coordinator/member.go",
		[]edit{{"return l != nil && l.epoch == epoch && m.o.Now().Before(l.until)", "return l != nil && l.epoch == epoch"}},
	},
	{
		"the truncation bound: lineages do not end before the log does", "prefix.go",
		[]edit{{"		return min(e.lineage[row+1].First, e.end)\n", "		return e.end\n"}},
	},
	{
		"the truncation bound: nothing is truncated", "following.go",
		[]edit{{"if lead.From < end ||", "if false && lead.From < end ||"}},
	},
	{
		"leases: what was granted before is as long as what is granted now", "../coordinator/timing.go",
		[]edit{{"	if lease <= t.Lease {\n", "	if lease <= t.Lease || true {\n"}},
	},
	{
		"elections: who was the group's only node is not waited for", "../coordinator/elect.go",
		[]edit{{"	if n == \"\" {\n		return Election{}, \"\", false", "	if n == \"\" || true {\n		return Election{}, \"\", false"}},
	},
	{
		"elections: any one in sync is enough where a majority acknowledged", "../coordinator/group.go",
		[]edit{{"	if !t.Majority {\n", "	if !t.Majority || true {\n"}},
	},
	{
		"elections: a log that was set back is a log", "../coordinator/elect.go",
		[]edit{{"		case b.Standings[i].End < b.Known:\n", "		case false && b.Standings[i].End < b.Known:\n"}},
	},
	{
		"elections: a new coordinator forgets what was committed", "../coordinator/desk.go",
		[]edit{{"Known: max(seat.known, t.Committed)", "Known: max(seat.known, t.Committed&0)"}},
	},
	{
		"a replica acknowledges what it has not synced", "following.go",
		[]edit{{"if l.Synced() < l.End() {", "if l.Synced()+2048 < l.End() {"}, {"	synced := l.Synced()\n", "	synced := l.End()\n"}},
	},
}

// TestMutantsAreCaught builds the simulation with each rule broken.
func TestMutantsAreCaught(t *testing.T) {
	seeds := *mutantSeeds
	if seeds == 0 && os.Getenv("MQROUTER_LONG") != "" {
		seeds = 2000
	}
	if seeds == 0 {
		t.Skip("mutants are built with -mutant-seeds or MQROUTER_LONG=1")
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			path, err := filepath.Abs(m.file)
			if err != nil {
				t.Fatal(err)
			}
			source, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			text := string(source)
			for _, e := range m.edits {
				if strings.Count(text, e.old) != 1 {
					t.Fatalf("%s does not have this once:\n%s", m.file, e.old)
				}
				text = strings.Replace(text, e.old, e.new, 1)
			}
			dir := t.TempDir()
			changed, overlay := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json")
			list, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
			if err != nil {
				t.Fatal(err)
			}
			for name, b := range map[string][]byte{changed: []byte(text), overlay: list} {
				if err := os.WriteFile(name, b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			out, err := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-timeout=20m", "-overlay", overlay,
				"-failfast",
				"-run", "TestWallsHold|TestWhoeverMayBeElected|TestOnlyOneMaster|TestNoAcknowledgedRecordIsLost", "-seeds", strconv.Itoa(seeds), ".").CombinedOutput()
			switch {
			case err == nil:
				t.Errorf("nobody notices in %d seeds", seeds)
			case !strings.Contains(string(out), "--- FAIL"):
				t.Fatalf("the mutant was not run: %v\n%s", err, out)
			default:
				t.Logf("%s", firstFault(string(out)))
			}
		})
	}
}

// firstFault is the first line of a test's output that says what is wrong.
func firstFault(out string) string {
	for line := range strings.Lines(out) {
		if strings.Contains(line, "_test.go:") {
			return strings.TrimSpace(line)[:min(len(strings.TrimSpace(line)), 300)]
		}
	}
	return out[:min(len(out), 300)]
}
