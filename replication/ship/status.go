package ship

import (
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// LeaderStatus is a view of a group from its master.
type LeaderStatus struct {
	Term      coordinator.Term // newest known
	End       record.Position
	Synced    record.Position // at the master
	Committed record.Position
	Quorum    record.Position // durable at a majority of the in-sync set
	Changing  bool            // a change of the set was asked for and is not known to be done
	Replicas  []ReplicaStatus // sorted by node; without the master
}

// ReplicaStatus is a view of a replica from its master.
type ReplicaStatus struct {
	Node            zone.Node
	Phase           Phase
	Since           time.Time // of Phase
	Fault           Fault     // what is wrong with it now
	Awaited         bool      // acknowledgements wait for it
	Written, Synced record.Position
	Behind          record.Position // bytes of the master's log that are not durable there
}

// Status returns the present state. It does not block on disk or network.
func (l *Leader) Status() LeaderStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.keeper
	st := LeaderStatus{
		Term: k.term.Clone(), End: k.end, Synced: k.synced, Committed: k.commit, Quorum: k.quorum, Changing: k.asked || len(k.open) > 0,
	}
	for _, m := range k.members {
		st.Replicas = append(st.Replicas, ReplicaStatus{
			Node: m.node, Phase: m.phase, Since: m.since, Fault: m.fault, Awaited: k.counts(m),
			Written: m.written, Synced: m.synced, Behind: k.end - min(k.end, m.synced),
		})
	}
	return st
}

// FollowerStatus is a view of a group from a replica.
type FollowerStatus struct {
	Master    zone.Node       // whom it follows or would; "" = nobody is known
	Epoch     uint64          // highest known
	Following bool            // a session is under way that the master accepted
	Since     time.Time       // of that session's beginning
	Err       error           // why the last session ended; nil = none has
	Begin     record.Position // the oldest that the master keeps, as it told last; 0 = it has not
}

// Status returns the present state. It does not block.
func (f *Follower) Status() FollowerStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.status
	st.Master, st.Epoch = f.target.master, f.target.epoch
	return st
}

// keeps notes what the master says of where its log begins.
func (f *Follower) keeps(begin record.Position) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Begin = max(f.status.Begin, begin)
}

// began notes that a session is under way.
func (f *Follower) began() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status = FollowerStatus{Following: true, Since: time.Now(), Begin: f.status.Begin}
}
