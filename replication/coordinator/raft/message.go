package raft

import (
	"fmt"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// maxMessage bounds a request or an answer, in bytes: the terms of ten thousand
// groups. maxRequest bounds a request.
const (
	maxMessage = 8 << 20
	maxRequest = 16 << 10
)

// The operations, as they stand in a path.
const (
	opRenew    = "renew"
	opWatch    = "watch"
	opChange   = "change-set"
	opResign   = "resign"
	opFailover = "failover"
	opTerms    = "terms"
	opStatus   = "status"
	opConfirm  = "confirm" // between voters
	opJoin     = "join"    // between voters
)

// request is what is asked; an operation uses some of the fields.
type request struct {
	Group    zone.Group            `json:"group,omitempty"`
	Standing *coordinator.Standing `json:"standing,omitempty"`
	After    uint64                `json:"after,omitempty"`
	Epoch    uint64                `json:"epoch,omitempty"`
	Version  uint64                `json:"version,omitempty"`
	InSync   []zone.Node           `json:"in_sync,omitempty"`
	Proposed []zone.Node           `json:"proposed,omitempty"`
	To       zone.Node             `json:"to,omitempty"`
	Order    *coordinator.Order    `json:"order,omitempty"`
	Store    string                `json:"store,omitempty"` // of who joins
}

// answer is what comes back; an operation uses some of the fields. Failed says that
// nothing of the rest holds.
type answer struct {
	Failed *failure `json:"failed,omitempty"`

	Term  *coordinator.Term  `json:"term,omitempty"`
	Terms []coordinator.Term `json:"terms,omitempty"`
	// Lease is in microseconds; 0 = none.
	Lease      int64   `json:"lease_us,omitempty"`
	LeaseEpoch uint64  `json:"lease_epoch,omitempty"`
	Status     *Status `json:"status,omitempty"`
	// Server and Leadership are of the voter that answers; of confirm.
	Server     string `json:"server,omitempty"`
	Leadership uint64 `json:"leadership,omitempty"`
}

// failure is a *coordinator.Error on its way.
type failure struct {
	Kind   coordinator.Kind `json:"kind"`
	Text   string           `json:"text,omitempty"`
	Leader zone.Node        `json:"leader,omitempty"` // who may know better; "" = nobody is known
}

// Error names kind and text.
func (f *failure) Error() string { return f.Kind.Error() + ": " + f.Text }

func refuse(k coordinator.Kind, format string, args ...any) answer {
	return answer{Failed: &failure{Kind: k, Text: fmt.Sprintf(format, args...)}}
}

// GroupStatus is what the leader knows of a broker group.
type GroupStatus struct {
	Term    coordinator.Term `json:"term"`
	Leased  bool             `json:"leased"`            // its master may hold a lease
	Waiting string           `json:"waiting,omitempty"` // why it has no master
	Known   record.Position  `json:"known,omitempty"`   // see coordinator.Opinion
	// Standings are of the members that were heard of lately.
	Standings []coordinator.Standing `json:"standings,omitempty"`
}

// Status is the state of a voter.
type Status struct {
	Node  zone.Node `json:"node"`
	State string    `json:"state"` // joining, follower, candidate, leader, failed
	// Server is its id in the quorum, Servers are all of them; empty while joining.
	Server  string    `json:"server,omitempty"`
	Servers []string  `json:"servers,omitempty"`
	Leader  zone.Node `json:"leader,omitempty"`
	// Leadership is Raft's term.
	Leadership uint64 `json:"leadership,omitempty"`
	Applied    uint64 `json:"applied,omitempty"` // index of the last entry in the state
	// Fresh says that its store has never been part of a quorum.
	Fresh   bool          `json:"fresh,omitempty"`
	Store   string        `json:"store,omitempty"`
	Problem string        `json:"problem,omitempty"` // why it is not part of the quorum, or has no leader
	Since   time.Time     `json:"since"`             // of State
	Groups  []GroupStatus `json:"groups,omitempty"`  // of the leader only
}
