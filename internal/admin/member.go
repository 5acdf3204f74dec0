package admin

import "time"

// Member says what a broker is in its group of several nodes. Positions are those of the
// group's log.
type Member struct {
	Role      string   `json:"role"`             // replica, promoting, master, draining, deposed; opening between two
	Epoch     uint64   `json:"epoch"`            // newest known
	Master    string   `json:"master,omitempty"` // in Epoch; empty: nobody
	InSync    []string `json:"in_sync,omitempty"`
	Proposed  []string `json:"proposed,omitempty"` // the set being changed to
	End       uint64   `json:"end"`
	Synced    uint64   `json:"synced"`
	Committed uint64   `json:"committed"`
	Problem   string   `json:"problem,omitempty"` // why the node is of no use to its group now

	Incarnation string        `json:"incarnation,omitempty"` // of the log; empty: the store is empty
	LogEpoch    uint64        `json:"log_epoch"`             // of the last lineage in the log; 0 = none
	Diverged    bool          `json:"diverged,omitempty"`    // the log holds what the group's has not: it is set aside
	Damaged     bool          `json:"damaged,omitempty"`     // the store cannot be opened for damage, and stays: Problem says why
	SetAside    []string      `json:"set_aside,omitempty"`   // folders of logs that were moved out of the way
	Tails       []Tail        `json:"tails,omitempty"`       // what the log had and the group has not
	Lease       time.Duration `json:"lease,omitempty"`       // of a master: how long it may answer without hearing from the coordinator

	// Of a replica.
	Following bool   `json:"following,omitempty"` // a session with the master is under way
	FollowErr string `json:"follow_error,omitempty"`
	// Of a master, its replicas.
	Replicas []Replica `json:"replicas,omitempty"`

	// While the coordinator does not answer: since when, and why.
	Unheard        time.Time `json:"unheard,omitzero"`
	CoordinatorErr string    `json:"coordinator_error,omitempty"`

	// Of a member whose coordinator is Consul, which has no node to tell of it: why nobody
	// is master, whether the term that was in force is gone from Consul, what the last
	// forced fail-over gave up, and up to where the log is known to have been committed.
	Waiting  string     `json:"waiting,omitempty"`
	TermGone bool       `json:"term_gone,omitempty"`
	Lost     *GroupLoss `json:"lost,omitempty"`
	Known    uint64     `json:"known,omitempty"`
}

// Replica is one as its master sees it.
type Replica struct {
	Node    string    `json:"node"`
	Phase   string    `json:"phase"` // absent, async, semi-sync, sync
	Since   time.Time `json:"since"`
	Synced  uint64    `json:"synced"`            // position up to which the log is durable there; 0 = it has not said
	Behind  uint64    `json:"behind"`            // bytes that are not durable there
	Awaited bool      `json:"awaited,omitempty"` // acknowledgements wait for it
	Fault   string    `json:"fault,omitempty"`
}
