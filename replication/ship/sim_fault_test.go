package ship

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// repair lets some of what is down come back: most faults are met by a group that
// works otherwise.
func (w *simWorld) repair() {
	for _, n := range w.nodes {
		if !n.running() && w.rng.IntN(5) == 0 {
			n.start()
		}
	}
	w.mu.Lock()
	decided := w.office != nil
	w.mu.Unlock()
	if !decided && w.rng.IntN(3) == 0 {
		w.takeOver()
	}
}

// trouble is one step of the schedule.
func (w *simWorld) trouble() {
	w.repair()
	n := w.nodes[w.rng.IntN(len(w.nodes))]
	if m := w.master(); m != nil && w.rng.IntN(2) == 0 {
		n = m // most can go wrong there
	}
	other := w.names[w.rng.IntN(len(w.names))]
	switch w.rng.IntN(16) {
	case 0, 1:
		w.toggle(n)
	case 2: // the master dies
		if m := w.master(); m != nil && m.running() {
			w.count("master killed")
			m.kill()
		}
	case 3: // everybody dies: power is lost
		if w.rng.IntN(3) == 0 {
			w.count("power lost")
			for _, n := range w.nodes {
				if n.running() {
					n.kill()
				}
			}
		}
	case 4: // cut off from the others, not from the coordinator
		w.count("cut off")
		for _, other := range w.names {
			w.net.set(n.name, other, true)
			w.net.set(other, n.name, true)
		}
	case 5: // one way
		w.count("cut one way")
		w.net.set(n.name, other, true)
	case 6: // requests to, or answers of, the coordinator are lost
		w.count("coordinator cut")
		if w.rng.IntN(2) == 0 {
			w.net.set(n.name, "", true)
		} else {
			w.net.set("", n.name, true)
		}
	case 7:
		w.net.heal()
	case 8: // a slow net
		w.net.mu.Lock()
		w.net.delay = time.Duration(1 + w.rng.Int64N(int64(100*time.Millisecond)))
		w.net.mu.Unlock()
	case 9:
		w.net.reset(0.5)
	case 10:
		w.slowness(n)
	case 11: // the disk fails
		if l, _ := n.current(); n.running() {
			w.count("disk failed")
			l.mu.Lock()
			l.breaking = true
			l.mu.Unlock()
		}
	case 12:
		w.takeOvers()
	case 13:
		w.replaceDisk(n)
	case 14:
		w.trim()
	case 15:
		w.planned(other)
	}
}

// toggle kills a node or starts it.
func (w *simWorld) toggle(n *simNode) {
	if n.running() {
		w.count("killed")
		n.kill()
		return
	}
	n.start()
}

func (n *simNode) running() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.up
}

func (w *simWorld) slowness(n *simNode) {
	if l, _ := n.current(); n.running() {
		w.count("slow disk")
		l.mu.Lock()
		l.slow = time.Duration(w.rng.Int64N(int64(2 * time.Second)))
		if w.rng.IntN(2) == 0 {
			l.slow = 0
		}
		l.mu.Unlock()
	}
}

func (w *simWorld) takeOvers() {
	w.count("coordinator changed")
	if w.rng.IntN(2) == 0 {
		w.evict()
		return
	}
	w.takeOver()
}

// replaceDisk gives a replica that is down, or dies now, an empty disk, when that is
// no more than what the set can bear: the master lives, and nobody else's disk is new
// and still counted on.
func (w *simWorld) replaceDisk(n *simNode) {
	t := w.term()
	m := w.master()
	if m == nil || m == n || !m.running() || t.Master != m.name || len(t.InSync) < 2 && slices.Contains(t.InSync, n.name) {
		return
	}
	for _, name := range t.InSync {
		d := w.node(name).disk
		d.mu.Lock()
		fresh := d.replaced && d.inc == 0
		d.mu.Unlock()
		if fresh {
			return
		}
	}
	w.count("disk replaced")
	if n.running() {
		n.kill()
	}
	n.disk = &simDisk{replaced: true}
	n.start()
}

// trim lets the master drop old segments, and replicas what the master has dropped.
func (w *simWorld) trim() {
	m := w.master()
	if m == nil || !m.running() {
		return
	}
	l, _ := m.current()
	l.mu.Lock()
	to := min(l.committed, l.retain)
	if w.rng.IntN(4) == 0 {
		to = l.committed // the disk is about to be full
	}
	l.d.trim(to)
	l.mu.Unlock()
	w.count("trimmed")
}

// planned hands the group to another node: the master stops first.
func (w *simWorld) planned(to zone.Node) {
	m := w.master()
	if m == nil || m.name == to || !m.running() {
		return
	}
	t := w.term()
	w.count("switch ordered")
	w.offices.Go(func() {
		ctx, cancel := context.WithTimeout(w.ctx, time.Second)
		defer cancel()
		_, member := m.current()
		member.StepDown(t.Epoch)
		if _, err := (&simClient{w: w, node: m.name}).Resign(ctx, simGroup, t.Epoch, ""); err == nil {
			w.count("switched")
		}
	})
}

func (w *simWorld) term() coordinator.Term {
	w.mu.Lock()
	o := w.office
	w.mu.Unlock()
	if o == nil {
		return coordinator.Term{}
	}
	t, err := o.Watch(w.ctx, simGroup, 0)
	if err != nil {
		return coordinator.Term{}
	}
	return t
}

func (w *simWorld) master() *simNode {
	if t := w.term(); t.Master != "" {
		return w.node(t.Master)
	}
	return nil
}

// heal ends all trouble.
func (w *simWorld) heal() {
	w.net.heal()
	w.takeOver()
	for _, n := range w.nodes {
		if !n.running() {
			n.start()
		}
		l, _ := n.current()
		l.mu.Lock()
		l.slow = 0
		l.mu.Unlock()
	}
}

// settle waits, in simulated time, until all nodes are in sync and equal.
func (w *simWorld) settle(limit time.Duration) bool {
	end := time.Now().Add(limit)
	time.Sleep(8 * time.Second)
	w.quiet.Store(true)
	for ; time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if w.atRest() {
			return true
		}
	}
	return false
}

func (w *simWorld) atRest() bool {
	m := w.master()
	if m == nil || len(w.term().InSync) != len(w.nodes) {
		return false
	}
	first, _ := m.current()
	for _, n := range w.nodes {
		l, _ := n.current()
		if l.Committed() != first.End() || l.End() != first.End() {
			return false
		}
	}
	return true
}

// check compares what was acknowledged with what the last master has, and the nodes
// with each other.
func (w *simWorld) check() {
	m := w.master()
	if m == nil {
		w.fault("nobody is master in the end")
		return
	}
	l, _ := m.current()
	begin, have := l.Begin(), map[uint64]int{}
	for _, id := range l.ids() {
		have[id]++
	}
	w.mu.Lock()
	for _, c := range w.committed { // what is trimmed was committed before
		f := simFrame{data: []byte(c.data)}
		if c.next <= begin && f.id() != 0 {
			have[f.id()]++
		}
	}
	for id, epoch := range w.acks {
		if have[id] != 1 {
			w.faultLocked("record %d, acknowledged in epoch %d, is %d times in the last master's log", id, epoch, have[id])
		}
	}
	w.mu.Unlock()
	for _, n := range w.nodes {
		other, _ := n.current()
		from := max(l.Begin(), other.Begin())
		if !slices.EqualFunc(l.since(from), other.since(from), func(a, b *simFrame) bool { return a.pos == b.pos && string(a.data) == string(b.data) }) {
			w.fault("%s and %s differ above %d", m.name, n.name, from)
		}
	}
}

func (l *simLog) since(p record.Position) []*simFrame {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []*simFrame
	for _, f := range l.d.frames {
		if f.pos >= p {
			all = append(all, f)
		}
	}
	return all
}

func (w *simWorld) describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "term %+v;", w.term())
	w.mu.Lock()
	if w.office != nil {
		fmt.Fprintf(&b, " coordinator %+v;", w.office.Opinion(simGroup))
	}
	w.mu.Unlock()
	for _, n := range w.nodes {
		l, _ := n.current()
		fmt.Fprintf(&b, " %s up=%v %d..%d committed %d epoch %d", n.name, n.running(), l.Begin(), l.End(), l.Committed(), locked(l, l.d.epoch))
		n.mu.Lock()
		f, lead := n.follow, n.leader
		n.mu.Unlock()
		if f != nil {
			fmt.Fprintf(&b, " %+v", f.Status())
		}
		if lead != nil {
			fmt.Fprintf(&b, " %+v", lead.Status())
		}
		b.WriteString(";")
	}
	return b.String()
}

func (w *simWorld) stop(cancel context.CancelFunc) {
	for _, n := range w.nodes {
		if n.running() {
			n.kill()
		}
	}
	cancel()
	w.evict()
	time.Sleep(10 * time.Second) // simulated: timers of ended streams
}
