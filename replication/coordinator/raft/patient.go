package raft

import (
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// appendAgain is the pause before entries are sent again to a voter that did not
// answer.
const appendAgain = 50 * time.Millisecond

// patient is a transport that sends entries again until they are answered, for as long
// as this voter leads. The library doubles its own pause with each failure, up to ten
// seconds, and does not end it when the voter is back: a quorum that lost one voter and
// got it back would be none for as long when it loses another one.
//
// Heartbeats fail at once: they tell who can be reached.
type patient struct {
	*raft.NetworkTransport
	// leads reports whether entries of a term are still to be sent to a voter; nil
	// before the library runs.
	leads atomic.Pointer[func(to raft.ServerID, term uint64) bool]
	done  chan struct{} // closed when the voter stops
}

// AppendEntries implements raft.Transport.
func (p *patient) AppendEntries(id raft.ServerID, to raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	for {
		err := p.NetworkTransport.AppendEntries(id, to, args, resp)
		if err == nil || args.PrevLogEntry == 0 && len(args.Entries) == 0 {
			return err
		}
		if leads := p.leads.Load(); leads == nil || !(*leads)(id, args.Term) {
			return err
		}
		select {
		case <-p.done:
			return err
		case <-time.After(appendAgain):
		}
	}
}

// leading returns what a patient asks.
func leading(r *raft.Raft) *func(raft.ServerID, uint64) bool {
	f := func(to raft.ServerID, term uint64) bool {
		if r.State() != raft.Leader || r.CurrentTerm() != term {
			return false
		}
		all := r.GetConfiguration()
		if all.Error() != nil {
			return false
		}
		for _, s := range all.Configuration().Servers {
			if s.ID == to {
				return true
			}
		}
		return false
	}
	return &f
}
