package ship

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// maxOpen bounds the sets whose fate is unknown at a time. With as many, only the
// last one is asked for again.
const maxOpen = 8

// keeper decides, for the master of an epoch, which replicas are in sync and what is
// committed. It is pure: events and the time go in, [keeper.step] returns what to
// do. It does no I/O and reads no clock.
//
// What it keeps true, whatever the coordinator answers or does not answer: the
// commit position counts every node of every set that is, or may yet come to be, in
// force. A set may be in force from the moment it is asked for. It surely is not,
// any more, once a term of a later version is known that has another: each request
// names the version that it starts from, so an older one can change nothing then.
type keeper struct {
	self  zone.Node
	epoch uint64
	o     Limits

	term    coordinator.Term // newest known
	open    [][]zone.Node    // sets asked for from term.Version whose fate is unknown
	intent  []zone.Node      // the in-sync set about to be asked for; nil = none
	asked   bool             // a request is under way
	last    ask              // the last request
	askAt   time.Time        // no request before
	over    bool             // a term says that this epoch has ended
	members []*member        // sorted by node; without self
	named   map[zone.Node]bool

	end, synced    record.Position // of the master's own log
	commit, quorum record.Position
	changes        []Change // since the last step
	stepped        time.Time
	positions      []record.Position // scratch
}

// member is a replica as the master sees it. Positions are of this epoch.
type member struct {
	node            zone.Node
	phase           Phase
	since           time.Time // of phase
	session         uint64    // 0 = none
	came            bool      // it had a session in this epoch
	regressed       bool
	written, synced record.Position
	heard           time.Time       // last sign of life, or when the session ended or the epoch began
	mark            record.Position // end of the master's log at markAt, or later when synced has passed it
	markAt          time.Time
	holdUntil       time.Time // no semi-sync before
	near            time.Time // since when it is Near, as an async replica; zero = it is not
	holdOff         time.Duration
	forgiven        time.Duration // of heard, since the last sign of life; see forgive
	forgivenMark    time.Duration // of markAt, likewise
	fault           Fault         // as of the last step
}

// Change is a replica's step from one phase to another.
type Change struct {
	Node     zone.Node
	From, To Phase
	Fault    Fault // why it stepped back; FaultNone when it did not
}

// ask is a request for another set.
type ask struct {
	version          uint64
	inSync, proposed []zone.Node
}

// decision is what a step wants done.
type decision struct {
	commit, quorum record.Position
	committed      bool // commit has risen
	acked          bool // quorum has, above commit
	ask            *ask // to be sent; answered tells how it went
	changes        []Change
	over           bool // the epoch has ended
}

func newKeeper(now time.Time, self zone.Node, term coordinator.Term, o Limits, named []zone.Node, v View) *keeper {
	k := &keeper{self: self, epoch: term.Epoch, o: o, term: term, end: v.End(), synced: v.Synced(), commit: v.Committed()}
	k.quorum = k.commit
	k.over = term.Master != self
	k.name(now, named)
	return k
}

// name tells which nodes the topology names as members.
func (k *keeper) name(now time.Time, named []zone.Node) {
	if k.named != nil && len(named) == len(k.named) && !slices.ContainsFunc(named, func(n zone.Node) bool { return !k.named[n] }) {
		return
	}
	k.named = make(map[zone.Node]bool, len(named))
	for _, n := range named {
		k.named[n] = true
	}
	for _, n := range slices.Concat(named, k.term.InSync, k.term.Proposed) {
		k.row(now, n)
	}
	k.members = slices.DeleteFunc(k.members, func(m *member) bool {
		return !k.named[m.node] && m.session == 0 && !k.counts(m)
	})
}

// row returns the node's row, which it makes when there is none; nil for self.
func (k *keeper) row(now time.Time, n zone.Node) *member {
	if n == k.self {
		return nil
	}
	i, found := slices.BinarySearchFunc(k.members, n, func(m *member, n zone.Node) int { return cmp.Compare(m.node, n) })
	if !found {
		m := &member{node: n, since: now, heard: now, mark: k.end, markAt: now}
		if slices.Contains(k.term.InSync, n) {
			m.phase = PhaseSync
		}
		k.members = slices.Insert(k.members, i, m)
	}
	return k.members[i]
}

func (k *keeper) find(n zone.Node) *member {
	for _, m := range k.members {
		if m.node == n {
			return m
		}
	}
	return nil
}

// joined: a session of the node begins, its log equal to the master's up to from.
func (k *keeper) joined(now time.Time, n zone.Node, session uint64, from record.Position) {
	m := k.row(now, n)
	if m == nil {
		return
	}
	m.session, m.came = session, true
	m.lives(now)
	m.written, m.synced = from, 0
	m.marks(now, k.end)
	// A member of the set that lacks what is committed has lost what it acknowledged.
	m.regressed = from < k.commit && slices.Contains(k.term.InSync, n)
}

// emptied: the node has nothing that it could go on from. It reports whether the node
// is still counted on, or may yet be: then it must not be given a store before a set
// without it is in force, since it would pass for what it was.
func (k *keeper) emptied(now time.Time, n zone.Node) bool {
	m := k.row(now, n)
	if m == nil {
		return true
	}
	m.regressed = true
	return k.counts(m)
}

// left: a session of the node has ended.
func (k *keeper) left(now time.Time, n zone.Node, session uint64) {
	if m := k.find(n); m != nil && m.session == session {
		m.session = 0
		m.lives(now)
	}
}

// acked: the node says through its session how far it is.
func (k *keeper) acked(now time.Time, n zone.Node, session uint64, written, synced record.Position) {
	m := k.find(n)
	if m == nil || m.session != session {
		return
	}
	m.lives(now)
	m.written, m.synced = max(m.written, written), max(m.synced, synced)
}

// mute reports whether a session of the node has been silent for so long that it is to be
// ended.
func (k *keeper) mute(now time.Time, n zone.Node, session uint64) bool {
	m := k.find(n)
	return m != nil && m.session == session && now.Sub(m.heard) > k.o.Mute
}

// moved: the master's own log is so far.
func (k *keeper) moved(end, synced record.Position) {
	k.end, k.synced = max(k.end, end), max(k.synced, synced)
}

// learned: the coordinator says what the term is, in answer to a request or unasked.
func (k *keeper) learned(now time.Time, t coordinator.Term) {
	switch {
	case t.Epoch > k.epoch, t.Epoch == k.epoch && t.Version >= k.term.Version && t.Master != k.self:
		k.over = true
		return
	case t.Epoch < k.epoch || t.Version <= k.term.Version:
		return // old news
	}
	k.term, k.open = t, nil
	for _, n := range slices.Concat(t.InSync, t.Proposed) {
		k.row(now, n)
	}
}

// answered: the request that was under way has ended, with a term (see learned) or
// without. In the second case nobody knows whether it was, or will yet be, done.
func (k *keeper) answered(now time.Time, ok bool) {
	k.asked = false
	if !ok {
		k.askAt = now.Add(k.o.AskAgain)
	}
}

// counts reports whether the commit position waits for the member.
func (k *keeper) counts(m *member) bool {
	if m.phase == PhaseSemi || slices.Contains(k.term.InSync, m.node) || slices.Contains(k.term.Proposed, m.node) {
		return true
	}
	for _, set := range k.open {
		if slices.Contains(set, m.node) {
			return true
		}
	}
	return false
}

// step draws the consequences of what has happened. leading says whether the lease
// holds: without it nothing is committed and nothing asked for.
func (k *keeper) step(now time.Time, leading bool) decision {
	k.forgive(now)
	for _, m := range k.members {
		if m.synced >= m.mark {
			m.marks(now, k.end)
		}
		m.fault = k.judge(now, m)
		k.place(now, m)
	}
	d := decision{over: k.over, changes: k.changes}
	commit, quorum := k.commit, k.quorum
	k.changes = nil
	if leading && !k.over {
		k.count()
		d.ask = k.propose(now)
	}
	d.commit, d.quorum = k.commit, k.quorum
	d.committed, d.acked = k.commit > commit, k.quorum > max(quorum, k.commit)
	return d
}

// forgive takes a pause of the master itself out of what is held against the others:
// what they said meanwhile waits to be read. Of pauses that follow each other no more
// than the time after which a member is judged is forgiven, and the last of them: a
// master that never gets on in time would otherwise wait for a dead member for ever.
func (k *keeper) forgive(now time.Time) {
	if pause := now.Sub(k.stepped); !k.stepped.IsZero() && pause > k.o.Silent/3 {
		for _, m := range k.members {
			if m.forgiven < k.o.Silent {
				m.heard, m.forgiven = m.heard.Add(pause), m.forgiven+pause
			}
			if m.forgivenMark < k.o.Lag {
				m.markAt, m.forgivenMark = m.markAt.Add(pause), m.forgivenMark+pause
			}
		}
	}
	k.stepped = now
}

// lives notes a sign of life, or from when on one is waited for.
func (m *member) lives(now time.Time) { m.heard, m.forgiven = now, 0 }

// marks notes what the member must have made durable in time from now on.
func (m *member) marks(now time.Time, end record.Position) {
	m.mark, m.markAt, m.forgivenMark = end, now, 0
}

// judge says what is wrong with a member.
func (k *keeper) judge(now time.Time, m *member) Fault {
	quiet := now.Sub(m.heard)
	switch {
	case !k.named[m.node]:
		return FaultNotNamed
	case m.regressed:
		return FaultRegressed
	case m.session == 0 && !m.came && quiet > k.o.Join:
		return FaultNotCome
	case m.session == 0 && m.came && quiet > k.o.Gone:
		return FaultGone
	case m.session != 0 && quiet > k.o.Silent:
		return FaultSilent
	case m.session != 0 && m.phase >= PhaseSemi && now.Sub(m.markAt) > k.o.Lag:
		return FaultSlow
	}
	return FaultNone
}

// place moves a member between the phases.
func (k *keeper) place(now time.Time, m *member) {
	inSync := slices.Contains(k.term.InSync, m.node)
	if !inSync {
		m.regressed = false // as an async replica it has lost nothing that counts
	}
	switch {
	case inSync:
		k.enter(now, m, PhaseSync)
		if now.Sub(m.since) > k.o.MaxHoldOff {
			m.holdOff = 0
		}
	case m.session == 0:
		k.enter(now, m, PhaseAbsent)
	case m.phase == PhaseSync: // the set without it is in force
		k.holdBack(now, m)
		k.enter(now, m, PhaseAsync)
	case m.phase == PhaseSemi && (m.fault != FaultNone || now.Sub(m.since) > k.o.Semi):
		if m.fault == FaultNone {
			m.fault = FaultSlow
		}
		k.holdBack(now, m)
		k.enter(now, m, PhaseAsync)
	case m.phase == PhaseAbsent:
		k.enter(now, m, PhaseAsync)
	case m.phase == PhaseAsync && m.fault == FaultNone && !now.Before(m.holdUntil) && k.close(now, m):
		m.marks(now, k.end)
		k.enter(now, m, PhaseSemi)
	}
}

// close reports whether a replica may be waited for: what it lacks is soon made up
// for. One that cannot come closer, since so much is written or its disk is slow, is
// let in as it is in the end; Semi and Lag judge it then.
func (k *keeper) close(now time.Time, m *member) bool {
	if m.written+k.o.Near < k.end {
		m.near = time.Time{}
		return false
	}
	if m.near.IsZero() {
		m.near = now
	}
	return m.synced+k.o.Close >= k.end || now.Sub(m.near) >= k.o.Semi
}

// holdBack keeps a replica that was too slow from coming back at once, to be waited
// for again.
func (k *keeper) holdBack(now time.Time, m *member) {
	if m.fault != FaultSlow && m.fault != FaultSilent {
		return
	}
	m.holdOff = min(max(2*m.holdOff, k.o.HoldOff), k.o.MaxHoldOff)
	m.holdUntil = now.Add(m.holdOff)
}

func (k *keeper) enter(now time.Time, m *member, p Phase) {
	if m.phase == p {
		return
	}
	c := Change{Node: m.node, From: m.phase, To: p}
	if p < m.phase {
		c.Fault = m.fault
	}
	k.changes = append(k.changes, c)
	m.phase, m.since, m.near = p, now, time.Time{}
}

// count raises the commit position and the position that a majority has.
func (k *keeper) count() {
	all := k.synced
	for _, m := range k.members {
		if k.counts(m) {
			all = min(all, m.synced)
		}
	}
	k.commit = max(k.commit, all)
	if !k.term.Majority { // else an election would go by less than was acknowledged
		k.quorum = max(k.quorum, k.commit)
		return
	}
	most := k.majority(k.term.InSync)
	if k.term.Proposed != nil {
		most = min(most, k.majority(k.term.Proposed))
	}
	for _, set := range k.open {
		most = min(most, k.majority(set))
	}
	if k.intent != nil {
		most = min(most, k.majority(k.intent))
	}
	k.quorum = max(k.quorum, k.commit, min(most, k.synced))
}

// majority returns the position that most nodes of a set have made durable.
func (k *keeper) majority(set []zone.Node) record.Position {
	if len(set) == 0 {
		return math.MaxUint64
	}
	k.positions = k.positions[:0]
	for _, n := range set {
		p := k.synced
		if n != k.self {
			p = 0
			if m := k.find(n); m != nil {
				p = m.synced
			}
		}
		k.positions = append(k.positions, p)
	}
	slices.Sort(k.positions)
	return k.positions[(len(set)-1)/2]
}

// propose returns the request that the members' state asks for, or nil.
func (k *keeper) propose(now time.Time) *ask {
	if k.asked || now.Before(k.askAt) {
		return nil
	}
	if k.settled() { // as a rule; it costs no memory to see that
		k.intent = nil
		return nil
	}
	inSync, proposed := []zone.Node{k.self}, []zone.Node{k.self}
	for _, m := range k.members {
		switch {
		case slices.Contains(k.term.InSync, m.node):
			if m.fault == FaultNone {
				inSync, proposed = append(inSync, m.node), append(proposed, m.node)
			}
		case m.phase == PhaseSemi:
			if slices.Contains(k.term.Proposed, m.node) && m.synced >= k.commit {
				inSync = append(inSync, m.node) // it has all that was ever acknowledged, and is waited for
			}
			proposed = append(proposed, m.node)
		}
	}
	slices.Sort(inSync)
	slices.Sort(proposed)
	if slices.Equal(inSync, proposed) {
		proposed = nil
	}
	if slices.Equal(inSync, k.term.InSync) && slices.Equal(proposed, k.term.Proposed) && len(k.open) == 0 {
		k.intent = nil
		return nil
	}
	next := ask{version: k.term.Version, inSync: inSync, proposed: proposed}
	if len(k.open) >= maxOpen {
		next = k.last
	}
	// What a majority of the old set has acknowledged must be at a majority of the new
	// one, too, before an election may go by that. Until it is, no more is acknowledged
	// than both have.
	k.intent = next.inSync
	if k.majority(next.inSync) < k.quorum {
		return nil
	}
	k.intent = nil
	k.asked, k.last = true, next
	k.opened(next.inSync)
	k.opened(next.proposed)
	return &next
}

// settled reports whether the set in force is the one that the members' state asks
// for, and no other may come to be.
func (k *keeper) settled() bool {
	if len(k.open) > 0 || k.term.Proposed != nil {
		return false
	}
	for _, m := range k.members {
		in := slices.Contains(k.term.InSync, m.node)
		if in && m.fault != FaultNone || !in && m.phase == PhaseSemi {
			return false
		}
	}
	return true
}

// opened notes a set that may come to be in force.
func (k *keeper) opened(set []zone.Node) {
	if set == nil || slices.ContainsFunc(k.open, func(s []zone.Node) bool { return slices.Equal(s, set) }) {
		return
	}
	k.open = append(k.open, set)
}

// inSync is how many copies an acknowledgement surely has: the size of the smallest
// set that may be in force.
func (k *keeper) inSync() int {
	n := len(k.term.InSync)
	for _, set := range k.open {
		n = min(n, len(set))
	}
	return n
}
