package commitlog

import (
	"context"
	"fmt"
)

// MemberError refuses to open the log of a member as that of its group's only node. Such
// a log may lack what the group has acknowledged, and what is written to it is in no
// term of the coordinator: a member that comes back with an older log would be believed.
type MemberError struct {
	Dir   string
	Epoch uint64 // the last one in the log: what Options.LeaveGroup must be
	Given uint64 // what it was; 0 = nothing
}

// Error implements error.
func (e *MemberError) Error() string {
	s := fmt.Sprintf("commitlog: open store %s: it is the log of a member of a broker group, up to epoch %d, and is to be the group's only one now", e.Dir, e.Epoch)
	if e.Given != 0 {
		s += fmt.Sprintf("; the group to leave was given as of epoch %d", e.Given)
	}
	return s
}

// beAlone tells of a log that is to be its group's only one. It refuses that of a member
// that nobody has said to be, and tells nobody of it then: who believed it would wait for
// what is not written.
func (st *store) beAlone(ctx context.Context) error {
	if st.options.Follow {
		return nil
	}
	if err := st.mayBeAlone(); err != nil || st.options.Alone == nil {
		return err
	}
	return st.options.Alone(ctx)
}

// mayBeAlone refuses a member's log that nobody has said to be the only one now. One
// that nothing was ever in has nothing to lack; a copy without an epoch is not whole.
func (st *store) mayBeAlone() error {
	o := &st.options
	if !st.meta.Member || st.meta.Blank {
		return nil
	}
	last := uint64(0)
	if n := len(st.meta.Lineage); n > 0 {
		last = st.meta.Lineage[n-1].Epoch
	}
	if last == 0 || o.LeaveGroup != last {
		return &MemberError{Dir: o.Dir, Epoch: last, Given: o.LeaveGroup}
	}
	return nil
}

// join notes for good that the log is a member's.
func (st *store) join() error {
	if st.meta.Member {
		return nil
	}
	st.meta.Member = true
	if err := st.metaFile.writeTwice(&st.meta); err != nil {
		return &OpError{Op: "write", Segment: metaName, Err: err}
	}
	return nil
}
