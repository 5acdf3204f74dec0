package coordinator

import (
	"context"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// MaxMembers is how many nodes a broker group has at most.
const MaxMembers = 5

// Term says who leads a broker group. A Term is a value: nobody changes the slices
// of one that was handed out.
type Term struct {
	Group zone.Group `json:"group"`

	// Epoch counts the group's masters; 0 = there was none yet. It ascends with each
	// election, also of the node that was master before, and is above the epoch of
	// every lineage that a candidate's log had. Some numbers may never have written
	// anything.
	Epoch uint64 `json:"epoch"`
	// Lineage is the random, non-zero id of the lineage that this epoch writes, known
	// before its first record; 0 in epoch 0.
	Lineage record.LineageID `json:"lineage"`
	// Master leads the epoch; "" = nobody: its lease is over or was given back, and
	// nobody was elected yet. An epoch whose master was taken away never gets it back.
	Master zone.Node `json:"master"`
	// Incarnation is that of the group's log; 0 in epoch 0 and when the first master
	// began with an empty store and has not told it yet.
	Incarnation record.Incarnation `json:"incarnation"`

	// InSync is sorted: every acknowledged record is at each of them. It holds the
	// master, and nobody in epoch 0.
	InSync []zone.Node `json:"in_sync"`
	// Proposed is the set being changed to, sorted, or nil. Until the change is
	// confirmed, an acknowledgement needs both sets; only InSync is ever elected from.
	Proposed []zone.Node `json:"proposed,omitempty"`

	// Version ascends by one with every change of the term: what is compared and set.
	Version uint64 `json:"version"`
	// Lost says what a forced fail-over gave up, until the next one does; nil = no
	// epoch of this group ever gave up anything.
	Lost *Loss `json:"lost,omitempty"`
}

// Loss says what a forced fail-over gave up: records at From and above that epochs
// before Epoch may have acknowledged.
type Loss struct {
	Epoch uint64          `json:"epoch"` // that began by force
	From  record.Position `json:"from"`  // end of the new master's log when it was elected
	// Known is the highest position that the coordinator had heard to be committed; at
	// or below From when nothing is known to be lost. More may have been acknowledged.
	Known record.Position `json:"known"`
	At    time.Time       `json:"at"` // by the coordinator's wall clock; for people only
}

// Clone returns a copy that shares nothing with t.
func (t Term) Clone() Term {
	t.InSync = slices.Clone(t.InSync)
	t.Proposed = slices.Clone(t.Proposed)
	if t.Lost != nil {
		l := *t.Lost
		t.Lost = &l
	}
	return t
}

// Standing is what a member says of itself and of its log.
type Standing struct {
	Node zone.Node `json:"node"`
	// Incarnation is that of the member's log; 0 = its store is empty.
	Incarnation record.Incarnation `json:"incarnation"`
	// Epoch is that of the last lineage in the log; 0 = none.
	Epoch uint64 `json:"epoch"`
	// End is the end of the log that is durable at this member. Committed is the
	// position up to which it knows it to be committed.
	End       record.Position `json:"end"`
	Committed record.Position `json:"committed"`

	// Leads is the epoch that the member leads or is about to lead; 0 = none. A member
	// leads an epoch only when the term of the same epoch named it and its log, at its
	// start, had no lineage of that epoch or above: a process that finds the lineage of
	// its own epoch in its log was started again, and waits for another election. So does
	// one whose first term names it already, and one whose log is of another store than
	// the term's: the log that was elected may be gone, with all that it had.
	// Saying 0 after having led gives the lease back: such a member has stopped
	// answering before it says so.
	Leads uint64 `json:"leads"`
	// Seen is the version of the newest term that the member knew before it looked at
	// its log for this standing. It shows the coordinator what this standing cannot be
	// older than.
	Seen uint64 `json:"seen"`

	// Fit is false when the member must not be elected: its disk or log failed, its
	// log diverged, or its store is new, set back or restored while the term still
	// counts on the one before (the term has to be seen without it in InSync first).
	Fit bool `json:"fit"`
}

// Lease is the right of a master to answer for its epoch. The zero value is none.
type Lease struct {
	Epoch uint64
	// Duration runs from the moment, on the caller's monotonic clock, before it called
	// Renew. Whoever counts from the answer counts too long.
	Duration time.Duration
}

// Coordinator decides who is master of each broker group, in which epoch, and which
// set is in sync. It is safe for concurrent use.
//
// Every method blocks until there is an answer or ctx ends; every implementation
// also ends a call by itself after a stated time. Errors are *Error, whose Kind says
// what the caller may do; a call that fails with KindNoQuorum, or with ctx's error,
// may have been done all the same, which the version of the next term shows.
//
// At any moment at most one member of a group holds a lease that is valid, as long as
// the clocks of members and coordinator run at rates that differ by less than Margin
// to Lease (see [Timing]).
type Coordinator interface {
	// Renew tells where a member stands, and for the master asks for its lease. The
	// term is at least as new as when Renew was called. The lease is zero for whoever
	// is not master of the term, and for a master whose lease is being taken away.
	Renew(ctx context.Context, group zone.Group, s Standing) (Term, Lease, error)

	// Watch returns the term when its version is above after, at once if it is
	// already. It may return the unchanged term after a while, so that a lost
	// coordinator shows: call it again.
	Watch(ctx context.Context, group zone.Group, after uint64) (Term, error)

	// ChangeSet sets who is in sync, and who is proposed to be; the master of epoch
	// does, from the term of version. Both sets hold the master. A node enters inSync
	// only from Proposed: first it is proposed, so that acknowledgements need it, and
	// when it has every record that was acknowledged before that, it is confirmed. One
	// leaves in one step, as soon as every remaining node has every acknowledged
	// record. Fails with KindStaleEpoch, KindStaleVersion and KindRefused.
	ChangeSet(ctx context.Context, group zone.Group, epoch, version uint64, inSync, proposed []zone.Node) (Term, error)

	// Resign gives the lease of epoch back; the caller is the master and has stopped
	// answering. to, which has every record that was acknowledged, is elected at once;
	// when it cannot be, Resign fails with KindNoCandidate, nothing is given back, and
	// the caller may go on. With to = "" the lease is given back in any case, the term
	// has no master, and the rule elects one; a sick master then says that it is not Fit.
	Resign(ctx context.Context, group zone.Group, epoch uint64, to zone.Node) (Term, error)

	// Failover makes to the master by an operator's order, once the lease that is out
	// is over. Without allowLoss only when nothing that was acknowledged can be lost;
	// else it fails with KindNoCandidate, whose text says what is missing. With
	// allowLoss any member that answers and is not the present master will do; the term
	// then says in Lost what was given up.
	Failover(ctx context.Context, group zone.Group, to zone.Node, allowLoss bool) (Term, error)

	// Terms returns the terms of all groups, sorted by group; those that never had a
	// master are left out.
	Terms(ctx context.Context) ([]Term, error)
}
