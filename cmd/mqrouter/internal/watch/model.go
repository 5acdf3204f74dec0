package watch

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mqrouter/mqrouter/internal/admin"
)

// Health orders rows: the worst comes first.
type Health uint8

// The healths.
const (
	Well Health = iota
	Odd         // works, but somebody should look
	Ill         // does not work
)

// Model is what is known of a deployment from its samples.
type Model struct {
	Deployment string
	Epoch      string // of the topology that the nodes were listed from

	at, before time.Time // of the last two samples; zero = none
	nodes      []admin.Status
	counts     counters // of the last sample
	old        counters // of the one before
	silent     map[string]time.Time
	first      time.Time
}

// counters are what rates are made of. A key names what is counted.
type counters map[string]uint64

// Add takes a sample: the status of every node at a moment, in a stable order. A
// node that did not answer has Error set.
func (m *Model) Add(at time.Time, nodes []admin.Status) {
	if m.silent == nil {
		m.silent, m.first = map[string]time.Time{}, at
	}
	m.before, m.at, m.nodes = m.at, at, nodes
	m.old, m.counts = m.counts, counters{}
	for i := range nodes {
		s := &nodes[i]
		if s.Error == "" {
			delete(m.silent, s.Node)
		} else if _, known := m.silent[s.Node]; !known {
			m.silent[s.Node] = at
		}
		m.count(s)
	}
}

// count notes the counters of a node.
func (m *Model) count(s *admin.Status) {
	for _, l := range s.Links {
		m.counts["link/"+s.Node+"/"+l.Peer+"/"+l.Class+"/sent"] = l.Sent
		m.counts["link/"+s.Node+"/"+l.Peer+"/"+l.Class+"/received"] = l.Received
	}
	for _, f := range s.Flows {
		m.counts[flowKey(s, &f)] = f.Settled
		m.counts[flowKey(s, &f)+"/backlog"] = f.Backlog
	}
	for _, t := range s.Topics {
		m.counts["topic/"+s.Node+"/"+t.Name] += t.Next
	}
	for _, c := range s.Consumers {
		m.counts["lag/"+s.Node+"/"+c.Group+"/"+c.Topic] = c.Lag
	}
	if s.Cache != nil {
		m.counts["cache/"+s.Node] = s.Cache.Applied + s.Cache.Superseded
	}
}

func flowKey(s *admin.Status, f *admin.Flow) string {
	return fmt.Sprintf("flow/%s/%s/%s/%s/%s/%s/%d", s.Node, f.Origin, f.Target, f.City, f.Group, f.Class, f.Lane)
}

// rate is a number for each second; unknown before the second sample, and when
// what is counted began anew.
type rate struct {
	perSecond float64
	known     bool
}

func (r rate) plus(o rate) rate { return rate{r.perSecond + o.perSecond, r.known || o.known} }

// rate returns how fast a counter grows.
func (m *Model) rate(key string) rate {
	old, ok := m.old[key]
	now, still := m.counts[key]
	took := m.at.Sub(m.before).Seconds()
	if !ok || !still || now < old || m.before.IsZero() || took <= 0 {
		return rate{}
	}
	return rate{float64(now-old) / took, true}
}

// change is how much a number differs from the last sample.
type change struct {
	by    int64
	known bool
}

func (m *Model) change(key string) change {
	old, ok := m.old[key]
	if !ok {
		return change{}
	}
	return change{int64(m.counts[key] - old), true}
}

func (c change) plus(o change) change { return change{c.by + o.by, c.known || o.known} }

// problem is something that a person has to know before all else.
type problem struct {
	health Health
	where  string
	what   string
}

// problems lists what nodes complain of, and which are silent since when.
func (m *Model) problems() []problem {
	var all []problem
	for i := range m.nodes {
		s := &m.nodes[i]
		if since, silent := m.silent[s.Node]; silent {
			what := fmt.Sprintf("no answer since %s (%s)", since.Format(time.TimeOnly), span(m.at.Sub(since)))
			switch {
			case m.at.Equal(m.first):
				what = "no answer"
			case since.Equal(m.first):
				what = fmt.Sprintf("no answer, not once in %s", span(m.at.Sub(since)))
			}
			all = append(all, problem{Ill, s.Node, what + ": " + oneLine(strings.TrimPrefix(s.Error, "admin: "))})
			continue
		}
		why := oneLine(strings.Join(s.Reasons, "; "))
		switch {
		case !s.Ready:
			all = append(all, problem{Ill, s.Node, strings.TrimSuffix("not ready: "+why, ": ")})
		case why != "":
			all = append(all, problem{Odd, s.Node, why})
		}
		if s.Topology.Problem != "" {
			all = append(all, problem{Odd, s.Node, "topology: " + oneLine(s.Topology.Problem)})
		}
		if s.Log != nil && s.Log.Problem != "" && !strings.Contains(why, s.Log.Problem) {
			all = append(all, problem{Ill, s.Node, oneLine(s.Log.Problem)})
		}
	}
	slices.SortStableFunc(all, func(a, b problem) int { return -cmp.Compare(a.health, b.health) })
	return all
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// totals are the numbers of the head line.
type totals struct {
	ready, nodes int
	up, links    int
	backlog, lag uint64
	settled      rate // records
}

func (m *Model) totals() totals {
	t := totals{nodes: len(m.nodes)}
	for i := range m.nodes {
		s := &m.nodes[i]
		if s.Error == "" && s.Ready {
			t.ready++
		}
		for _, l := range s.Links {
			t.links++
			if l.State == linkUp {
				t.up++
			}
		}
		for _, f := range s.Flows {
			t.backlog += f.Backlog
			t.settled = t.settled.plus(m.rate(flowKey(s, &f)))
		}
		for _, c := range s.Consumers {
			if !c.Cache {
				t.lag += c.Lag
			}
		}
	}
	return t
}

const linkUp = "up"
