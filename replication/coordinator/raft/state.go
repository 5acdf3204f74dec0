package raft

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	// stateVersion is that of commands and snapshots.
	stateVersion = 1
	// maxSnapshot bounds a snapshot that is read, in bytes: ten thousand groups.
	maxSnapshot = 32 << 20
)

// command is the only one of the state machine: the leader has applied the rules, the
// voters compare and set. So voters of two versions, with two rules, agree.
type command struct {
	Version int `json:"v"`
	// Leadership is raft's term in which the leader took the decision. What it knew
	// then, of leases above all, does not hold in another one.
	Leadership uint64           `json:"leadership"`
	Term       coordinator.Term `json:"term"`
}

// Answers of the state machine.
var (
	errStaleVersion    = errors.New("the version in force is another one")
	errStaleLeadership = errors.New("decided by a leader that was not it any more")
)

// machine is the replicated state: the terms. Raft calls it from one goroutine; the
// others' methods are safe for concurrent use.
type machine struct {
	mu      sync.Mutex
	terms   map[zone.Group]coordinator.Term // guarded by mu
	changed chan struct{}                   // closed and replaced at a change; nil = nobody waits; guarded by mu
	failed  error                           // guarded by mu
	unknown func()                          // told once of failed; does not block; may be nil
}

// VersionError says that the voters' log has what a newer version wrote: this one must
// not go on without it, and stops voting until it is upgraded.
type VersionError struct {
	What    string // command or snapshot
	Index   uint64 // of the command
	Version int
}

// Error names the versions.
func (e *VersionError) Error() string {
	return fmt.Sprintf("coordinator/raft: %s %d is of version %d, and this node reads %d: upgrade it", e.What, e.Index, e.Version, stateVersion)
}

var _ raft.FSM = (*machine)(nil)

// Apply implements raft.FSM; the answer is an error or nil.
func (m *machine) Apply(e *raft.Log) any {
	var c command
	if err := json.Unmarshal(e.Data, &c); err != nil {
		return fmt.Errorf("command %d: %w", e.Index, err)
	}
	if c.Version != stateVersion {
		// Passing over it would leave this voter with another state than the others, and
		// with other answers to what is compared and set later.
		err := &VersionError{What: "command", Index: e.Index, Version: c.Version}
		m.fail(err)
		return err
	}
	if c.Leadership != e.Term {
		return errStaleLeadership
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed != nil {
		return m.failed
	}
	if m.terms[c.Term.Group].Version+1 != c.Term.Version {
		return errStaleVersion
	}
	if m.terms == nil {
		m.terms = map[zone.Group]coordinator.Term{}
	}
	m.terms[c.Term.Group] = c.Term
	m.wake()
	return nil
}

// fail notes why the state may not be built upon any more: the voter stops.
func (m *machine) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed == nil {
		m.failed = err
		if m.unknown != nil {
			m.unknown()
		}
	}
}

// failure is why the state may not be built upon; nil = it may.
func (m *machine) failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failed
}

// wake tells those who wait. The caller holds mu.
func (m *machine) wake() {
	if m.changed != nil {
		close(m.changed)
		m.changed = nil
	}
}

func (m *machine) watch() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.changed == nil {
		m.changed = make(chan struct{})
	}
	return m.changed
}

func (m *machine) term(g zone.Group) coordinator.Term {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.terms[g]
}

// all returns the terms, sorted by group.
func (m *machine) all() []coordinator.Term {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]coordinator.Term, 0, len(m.terms))
	for _, t := range m.terms {
		out = append(out, t)
	}
	slices.SortFunc(out, func(x, y coordinator.Term) int { return strings.Compare(string(x.Group), string(y.Group)) })
	return out
}

// snapshot is the form of the state in a file and on the wire.
type snapshot struct {
	Version int                `json:"v"`
	Terms   []coordinator.Term `json:"terms"` // sorted by group
}

// Snapshot implements raft.FSM.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	if err := m.failure(); err != nil {
		return nil, err // it would be the state without what was not understood
	}
	return snapshot{Version: stateVersion, Terms: m.all()}, nil
}

// Persist implements raft.FSMSnapshot.
func (s snapshot) Persist(sink raft.SnapshotSink) error {
	if err := json.NewEncoder(sink).Encode(s); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (s snapshot) Release() {}

// Restore implements raft.FSM.
func (m *machine) Restore(r io.ReadCloser) error {
	var s snapshot
	err := errors.Join(json.NewDecoder(io.LimitReader(r, maxSnapshot)).Decode(&s), r.Close())
	if err == nil && s.Version != stateVersion {
		err = &VersionError{What: "snapshot", Version: s.Version}
		m.fail(err)
	}
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.terms = make(map[zone.Group]coordinator.Term, len(s.Terms))
	for _, t := range s.Terms {
		m.terms[t.Group] = t
	}
	m.wake()
	return nil
}
