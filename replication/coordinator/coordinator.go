package coordinator

import (
	"context"
	"fmt"
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

	// Majority says that records of this epoch may have been acknowledged by a majority
	// of the in-sync set: then no single member of it is known to have all of them. The
	// master says so before it acknowledges in that way, by Standing.Majority, and it
	// holds until the next election, whatever topology anybody has meanwhile.
	Majority bool `json:"majority,omitempty"`
	// Leased is the longest lease that may have been granted in this epoch: whoever
	// takes the epoch away waits for no less, whatever its own times are. It is raised
	// before a longer one is granted. 0 = as long as the reader's own.
	Leased time.Duration `json:"leased_ns,omitempty"`
	// Committed is a position up to which the log surely was committed: a log of this
	// group that ends below it has been set back. It lags behind; see [Committing].
	Committed record.Position `json:"committed,omitempty"`
	// Alone is the node that was the group's only one for a while, and may have written
	// epochs that no term knows: nobody is elected before it has answered with its store,
	// and who is master when it is noted leads no longer than its lease; "" = none.
	Alone zone.Node `json:"alone,omitempty"`

	// Version ascends by one with every change of the term: what is compared and set.
	// Of two terms of one group the one of the higher epoch is the newer, then the one of
	// the higher version: a quorum that lost its state begins to count versions anew.
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
	// By ordered it, for the Reason given; of an order (see [Order]).
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Order is an operator's order to make a member the master.
type Order struct {
	To zone.Node `json:"to"`
	// AllowLoss: even if acknowledged records are given up. Then By is required.
	AllowLoss bool `json:"allow_loss,omitempty"`
	// By is the operator, as whoever took the order has verified; Reason is in the
	// operator's words. Both are for the log and for Loss, at most MaxWords bytes each.
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// MaxWords bounds By and Reason of an Order, in bytes.
const MaxWords = 500

// Check returns why nobody may order that, or "".
func (o Order) Check() string {
	switch {
	case len(o.By) > MaxWords || len(o.Reason) > MaxWords:
		return fmt.Sprintf("more than %d bytes about who orders it, or why", MaxWords)
	case o.AllowLoss && o.By == "":
		return "records are given up by the order of an operator only, who is to be named"
	}
	return ""
}

// Outcome is what became of the order when an election has begun the epoch of t: t, or
// KindNoCandidate when it was another member than the wanted one. Who allowed a loss
// wanted a master most of all, and has one.
func (o Order) Outcome(t Term) (Term, error) {
	if t.Master == o.To || o.AllowLoss && t.Master != "" {
		return t, nil
	}
	return Term{}, &Error{Op: "failover", Group: t.Group, Kind: KindNoCandidate, Text: fmt.Sprintf("%s could not take over without loss; the master is %s", o.To, t.Master)}
}

// Newer says whether t is the newer one of two terms of a group.
func (t Term) Newer(than Term) bool {
	if t.Epoch != than.Epoch {
		return t.Epoch > than.Epoch
	}
	return t.Version > than.Version
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
	// its log for this standing, SeenEpoch its epoch. They show the coordinator what this
	// standing cannot be older than.
	Seen      uint64 `json:"seen"`
	SeenEpoch uint64 `json:"seen_epoch"`

	// Majority says that this member, as master, wants to acknowledge what a majority
	// of the in-sync set has. It does so only under a term that says so, too.
	Majority bool `json:"majority,omitempty"`

	// Fit is false when the member must not be elected: its disk or log failed, or its
	// log diverged. That a disk was set back its node cannot know: see Term.Committed.
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

	// Watch returns the term when its version is another one than after, at once if it
	// is already: whether it is a newer one, Term.Newer says. It may return the unchanged
	// term after a while, so that a lost coordinator shows: call it again.
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

	// Failover makes order.To the master by an operator's order, once the lease that is
	// out is over. Without AllowLoss only when nothing that was acknowledged can be lost;
	// else it fails with KindNoCandidate, whose text says what is missing. With
	// AllowLoss any member that answers and is not the present master will do; the term
	// then says in Lost what was given up, and by whose order. When another member can be
	// elected without loss that one is, and the term names it, with Lost of an earlier
	// epoch or none. An order that is none (see Order.Check) fails with KindRefused.
	Failover(ctx context.Context, group zone.Group, order Order) (Term, error)

	// Terms returns the terms of all groups, sorted by group; those that never had a
	// master are left out.
	Terms(ctx context.Context) ([]Term, error)
}
