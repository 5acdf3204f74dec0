package admin

import "time"

// Coordinator describes a voter of a city's coordinator.
type Coordinator struct {
	State string    `json:"state"` // joining, candidate, follower, leader or failed
	Since time.Time `json:"since"`
	// Leader is the node that leads; empty when the voter knows of none.
	Leader     string   `json:"leader,omitempty"`
	Leadership uint64   `json:"leadership,omitempty"` // Raft's term
	Applied    uint64   `json:"applied,omitempty"`    // index of the last decision that the voter has
	Servers    []string `json:"servers,omitempty"`    // of the quorum: NODE@STORE
	Problem    string   `json:"problem,omitempty"`    // why the voter is out of the quorum, or the quorum has no leader
	// Groups are the city's broker groups with several nodes; told by the leader only.
	Groups []CoordinatedGroup `json:"groups,omitempty"`
}

// CoordinatedGroup is a broker group as its coordinator has it.
type CoordinatedGroup struct {
	Group    string     `json:"group"`
	Epoch    uint64     `json:"epoch"`
	Master   string     `json:"master,omitempty"`
	Leased   bool       `json:"leased"` // its master may answer
	InSync   []string   `json:"in_sync,omitempty"`
	Proposed []string   `json:"proposed,omitempty"`
	Waiting  string     `json:"waiting,omitempty"` // why it has no master
	Lost     *GroupLoss `json:"lost,omitempty"`    // of the last forced fail-over
	Known    uint64     `json:"known,omitempty"`   // position up to which the log of this epoch is known to have been committed, by what members said
}

// GroupLoss is what a forced fail-over gave up: what epochs before Epoch had
// acknowledged at From and above. Known is how far that had gone at least.
type GroupLoss struct {
	Epoch uint64    `json:"epoch"`
	From  uint64    `json:"from"`
	Known uint64    `json:"known"`
	At    time.Time `json:"at"`
}
