package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/replication/coordinator"
)

const (
	// reopenAfter is how long a life must have lasted for the next one to begin at once.
	reopenAfter = time.Second
	// reopenMost bounds the wait after lives that ended by an error before they were of
	// use: each costs the others an election, and a row in the log's lineage table.
	reopenMost = 30 * time.Second
	// steadyAfter is how long a replica must have lived for its end to be no sequel of
	// the one before.
	steadyAfter = 10 * time.Second
	// maxAside bounds how many damaged stores a process moves aside: a disk that damages
	// each one is to be looked at by people.
	maxAside = 3
	// unreadTries is how many times in a row the disk must have failed while the store was
	// opened before it counts as damaged: a cable or a controller fails for a moment.
	unreadTries = 3
)

// judge notes whether the store can be opened.
func (m *memberNode) judge(opened error) {
	if broker.DamageOf(opened) == broker.DamageUnread {
		m.unread++
	} else {
		m.unread = 0
	}
	if opened == nil {
		m.keepsDamaged("")
	}
}

// keepsDamaged notes why a damaged store is not moved aside; "" = there is none.
func (m *memberNode) keepsDamaged(why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if why != "" && m.damaged == "" {
		m.log.Error("the store is damaged", "stays", why)
	}
	m.damaged = why
}

// live opens the store, again and again: what was master begins anew as a replica. A
// store that cannot be opened, or be of use, does not end the node: its vote, its
// admin address and the way of clients to the master stay.
func (m *memberNode) live(ctx context.Context) error {
	defer m.stopPassing()
	var pause pauses
	for ctx.Err() == nil {
		began := time.Now()
		served, err := m.oneLife(ctx)
		if ctx.Err() != nil {
			return nil
		}
		m.say(err)
		if errors.Is(err, errParted) && m.forsake() {
			pause = pauses{}
			continue
		}
		m.standBy(ctx, pause.after(time.Since(began), served, err), m.unread >= unreadTries || broker.DamageOf(err) == broker.DamageSure)
	}
	return nil
}

// pauses are those between the lives of a member.
type pauses struct {
	futile int // lives in a row that were of no use
}

// after returns how long to wait when a life has lasted so long, has served as master or
// not, and has ended so; not positive: not at all.
func (p *pauses) after(lasted time.Duration, served bool, err error) time.Duration {
	if err == nil || served || lasted >= steadyAfter {
		p.futile = 0
		if err != nil && served {
			return reopenAfter // a part of it failed as master: another one is elected meanwhile
		}
		return reopenAfter - lasted
	}
	wait := min(reopenAfter<<min(p.futile, 10), reopenMost)
	p.futile++
	return wait
}

// standBy passes clients on to the master until it is time to open the store. One that
// is damaged is moved aside as soon as the group has a master and does not count on
// this node: it becomes a copy of the master's then.
func (m *memberNode) standBy(ctx context.Context, wait time.Duration, damaged bool) {
	if wait <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if err := m.passOn(); err != nil {
		m.log.Warn("clients cannot be passed on", "err", err)
		<-ctx.Done()
		return
	}
	for ctx.Err() == nil {
		t, err := m.coord.Watch(ctx, m.self.Group.Name, m.known().Version)
		if err != nil {
			pauseFor(ctx, m.timing.Renew)
			continue
		}
		m.learn(t, false)
		if damaged {
			why := m.indispensable(t)
			if why == "" && m.setStoreAside() {
				m.keepsDamaged("")
				return
			}
			m.keepsDamaged(cmp.Or(why, fmt.Sprintf("%d stores were moved aside already, or this one cannot be: look at the disk", m.aside)))
		}
		if t.Version == 0 {
			pauseFor(ctx, m.timing.Renew) // it has none to wait for
		}
	}
}

// dispensable reports whether the group goes on without what this node has.
func (m *memberNode) dispensable(t coordinator.Term) bool { return m.indispensable(t) == "" }

// indispensable says why the group may need what this node has, or "". Only a master that
// another node is, in whose set this one is not, has all that was acknowledged; in any
// other case this may be the last copy of something, however damaged it is.
func (m *memberNode) indispensable(t coordinator.Term) string {
	switch {
	case t.Master == "":
		return "the group has no master: what is on this disk may be the last copy"
	case t.Master == m.self.Name:
		return "this node is the group's master by its term"
	case slices.Contains(t.InSync, m.self.Name) || slices.Contains(t.Proposed, m.self.Name):
		return "this node counts as in sync: the master has not taken it out of the set yet"
	}
	return ""
}

// setStoreAside moves a damaged store away. It reports whether it has.
func (m *memberNode) setStoreAside() bool {
	if m.aside >= maxAside {
		return false
	}
	m.aside++
	to, err := broker.SetAside(m.o.FS, m.cfg.DataDir, time.Now())
	if err != nil {
		m.say(errors.Join(errors.New("the damaged log cannot be moved aside"), err))
		return false
	}
	m.log.Error("damaged log moved aside; a copy of the master's takes its place", "folder", path.Join(m.cfg.DataDir, to))
	return true
}

// pauseFor waits for a time or the end of ctx.
func pauseFor(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
