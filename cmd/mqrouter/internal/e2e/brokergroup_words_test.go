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

// brokerGroupLines are the lines of a document's blocks that begin with a brokergroup
// command, in order.
func brokerGroupLines(t *testing.T, path string) []string {
	t.Helper()
	var lines []string
	inside := false
	for line := range strings.Lines(readFile(t, filepath.Join(repoRoot(t), path))) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "```") {
			inside = !inside
		} else if inside && strings.HasPrefix(line, "mqrouter brokergroup ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// spoken is a broker group of the names that a document uses, and a broker that votes.
type spoken struct {
	*cluster
	group string
	nodes []string
	env   []string
}

func newSpoken(t *testing.T, group string) *spoken {
	t.Helper()
	s := &spoken{cluster: &cluster{t: t, dir: t.TempDir(), nodes: map[string]*clusterNode{}}, group: group}
	ports := freePorts(t, 4*4)
	next := func() string {
		p := ports[0]
		ports = ports[1:]
		return fmt.Sprintf("127.0.0.1:%d", p)
	}
	line := func(name string, room int) string {
		n := &clusterNode{name: name, role: "broker", admin: next(), client: next()}
		s.cluster.nodes[name] = n
		return fmt.Sprintf("{name: %s, room: r%d, client: %s, peer: %s, gossip: %s, admin: %s}", name, room, n.client, next(), next(), n.admin)
	}
	var lines []string
	for i := range 3 {
		s.nodes = append(s.nodes, fmt.Sprintf("%s-%d", group, i+1))
		lines = append(lines, line(s.nodes[i], i))
	}
	text := fmt.Sprintf(`deployment: spoken
epoch: {term: 1, number: 1}
shards: {count: 10, by: last-digits, owners: {rz: 0-9}}
cities:
  - name: city
    coordinator: {driver: raft, voters: [voter-1]}
    zones:
      - {name: rz, kind: RZone, standby: none, groups: [{name: %s, nodes: [%s]}]}
      - {name: cz, kind: CZone, groups: [{name: cz-a, nodes: [%s]}]}
topics: [{name: transfer, route: {shard: {property: userId}}}]
consumer_groups: [{name: credit, topics: [transfer]}]
`, group, strings.Join(lines, ", "), line("voter-1", 3))
	if err := os.WriteFile(s.topology(), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	must(t, nil, "pki", "init", "--deployment", "spoken", "--dir", s.pki())
	must(t, nil, "pki", "issue", "--dir", s.pki(), "--topology", s.topology(), "--all")
	bin := t.TempDir()
	if err := os.Symlink(binary, filepath.Join(bin, "mqrouter")); err != nil {
		t.Fatal(err)
	}
	s.env = []string{"MQROUTER_TOPOLOGY=" + s.topology(), "MQROUTER_ADMIN=" + s.cluster.nodes["voter-1"].admin, "PATH=" + bin + ":" + os.Getenv("PATH")}
	return s
}

// seen is what the group looks like now.
func (s *spoken) seen() brokerGroupSeen {
	s.t.Helper()
	all := decode[[]brokerGroupSeen](s.t, must(s.t, s.env, "brokergroup", "status", s.group, "-o", "json"))
	if len(all) != 1 {
		s.t.Fatalf("status has %+v", all)
	}
	return all[0]
}

// whole waits until all nodes are in sync.
func (s *spoken) whole() {
	s.t.Helper()
	must(s.t, s.env, "brokergroup", "check", s.group, "--wait", "2m")
}

// alone leaves two nodes that answer and are not in sync, and no master: the third one,
// which was, is gone.
func (s *spoken) alone() {
	s.t.Helper()
	last := s.seen().Master
	others := slices.DeleteFunc(slices.Clone(s.nodes), func(n string) bool { return n == last })
	for _, n := range others {
		s.cluster.nodes[n].running.kill()
	}
	eventually(s.t, "the master is alone", time.Minute, func() error {
		if in := s.seen().InSync; len(in) != 1 {
			return fmt.Errorf("in sync are %v", in)
		}
		return nil
	})
	s.cluster.nodes[last].running.kill()
	for _, n := range others {
		s.up(n)
	}
	eventually(s.t, "the others answer and wait", time.Minute, func() error {
		seen, waiting := s.seen(), 0
		for _, n := range seen.Nodes {
			if n.State == "replica" {
				waiting++
			}
		}
		if seen.Master != "" || waiting != len(others) {
			return fmt.Errorf("%+v", seen)
		}
		return nil
	})
}

// TestBrokerGroupCommandsRunAsTheyAreWritten runs every brokergroup command of the
// README's and the runbook's blocks as it stands there, in order, on a group of those
// names, in the state for which it is meant.
func TestBrokerGroupCommandsRunAsTheyAreWritten(t *testing.T) {
	for path, group := range map[string]string{"README.md": "rz01-a", "deploy/runbook.md": "rz-east-a"} {
		t.Run(filepath.Base(path), func(t *testing.T) {
			lines := brokerGroupLines(t, path)
			if len(lines) < 5 {
				t.Fatalf("%s has %d commands: %q", path, len(lines), lines)
			}
			s := newSpoken(t, group)
			for name := range s.cluster.nodes {
				s.up(name)
			}
			s.whole()
			if first := s.nodes[2]; s.seen().Master != first {
				must(t, s.env, "brokergroup", "switch", s.group, "--to", first)
				s.whole()
			}
			lost := false
			for _, line := range lines {
				if strings.Contains(line, "--allow-loss") && !lost {
					s.alone()
					lost = true
				}
				s.run(line)
				if !lost {
					s.whole()
				}
			}
		})
	}
}

// run runs a command line of a document.
func (s *spoken) run(line string) {
	s.t.Helper()
	p := startIn(s.t, s.dir, line, s.env, "bash", "-c", line)
	select {
	case <-p.done:
	case <-time.After(3 * time.Minute):
		s.t.Fatalf("%s: does not end", line)
	}
	if p.err != nil {
		s.t.Errorf("%s: %v\n%s", line, p.err, p.output())
	}
}
