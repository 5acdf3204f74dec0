package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/tails"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Member makes a broker one of a group with replicas. It opens as a replica. Its
// functions are called often, from many goroutines, and must not block.
type Member struct {
	// Lease reports whether this node may still answer as the master of its epoch:
	// a look at a deadline of the monotonic clock. It is asked after a commit and
	// before each answer. Once it says no, the broker answers nothing any more.
	Lease func() bool
	// Master says who is master, as far as it is known here: what those are told
	// who ask this broker and it is none. Nil or an empty name = unknown.
	Master func() (zone.Node, uint64)
	// InSync is how many members are in sync, the master among them. Nil: as many as
	// any topic asks for.
	InSync func() int
	// Begin is where the master's log begins, as it last told: a replica keeps what
	// the master keeps. Nil or 0: nothing is trimmed.
	Begin func() record.Position
	// Forced is the epoch of the last fail-over with loss that an operator ordered, as
	// far as it is known here; 0 or nil: none.
	Forced func() uint64
	// Tails is where a tail of the log is saved that the group does not have, before it is
	// dropped. Nil: NewTails of the broker's folder.
	Tails *tails.Store
}

// Role is what a broker is in its group.
type Role uint8

// The roles.
const (
	RoleAlone     Role = iota // the group's only member
	RoleReplica               // follows a master, and answers nobody
	RolePromoting             // master of a new epoch whose beginning is not committed yet
	RoleMaster
	RoleDraining // was master and will hand over; see Drain
	RoleDeposed  // was master, and answers nobody until it is opened again
)

var roleWords = [...]string{RoleAlone: "alone", RoleReplica: "replica", RolePromoting: "promoting", RoleMaster: "master", RoleDraining: "draining", RoleDeposed: "deposed"}

// String returns a word for tables and metrics.
func (r Role) String() string {
	if int(r) >= len(roleWords) {
		return "unknown"
	}
	return roleWords[r]
}

// closeWait bounds how long the close of a master waits for its group to commit
// what is left.
const closeWait = 2 * time.Second

// errDeposed is why a broker that was master answers nothing any more.
var errDeposed = errors.New("broker: the lease of the master is over")

// Role returns what the broker is now.
func (b *Broker) Role() Role { return Role(b.role.Load()) }

// Log returns the log of a member of a group with replicas, for shipping; nil of a
// broker that is alone.
func (b *Broker) Log() *commitlog.Log { return b.shared }

// Err returns why the broker cannot go on with its store, or nil: the fold or the log
// failed. It is closed and opened again then, and must not be elected before.
func (b *Broker) Err() error {
	if err := b.failure(); err != nil {
		return err
	}
	if b.shared != nil {
		return b.shared.Err()
	}
	return nil
}

// Failed is closed when the fold has failed; Err says why.
func (b *Broker) Failed() <-chan struct{} { return b.failed }

// serves reports whether the broker is the one that decides for its group.
func (b *Broker) serves() bool { return b.member == nil || b.Role() == RoleMaster }

// leads returns nil, or why the broker does not answer for its group.
func (b *Broker) leads(op string) error {
	if b.member == nil || b.holdsLease() {
		return nil
	}
	return b.notMaster(op)
}

// holdsLease reports whether a master may answer. One whose lease is over never
// answers again.
func (b *Broker) holdsLease() bool {
	if b.Role() != RoleMaster {
		return false
	}
	if b.member.Lease == nil || b.member.Lease() {
		return true
	}
	b.depose(errDeposed)
	return false
}

// depose ends what a master does.
func (b *Broker) depose(why error) {
	for _, was := range []Role{RolePromoting, RoleMaster, RoleDraining} { // in the order in which one becomes the next
		if b.role.CompareAndSwap(uint32(was), uint32(RoleDeposed)) {
			b.shared.Depose(why)
			b.logger.Warn("broker is no longer master", "group", string(b.self), "epoch", b.shared.Epoch(), "err", why)
			close(b.deposed)
			return
		}
	}
}

// Depose makes a master answer nothing any more: what it was asked and has not
// answered fails with KindNotMaster, and may have been done. It does not block. Of a
// broker that is no master it changes nothing.
func (b *Broker) Depose() { b.depose(errDeposed) }

// Deposed is closed when a master has become none: by Depose, or since its lease
// was over. The broker is to be closed and opened again.
func (b *Broker) Deposed() <-chan struct{} { return b.deposed }

// mayAnswer is holdsLease for what is asked by the broker itself, too: while it is
// promoted it has nothing to answer to others.
func (b *Broker) mayAnswer() bool {
	if r := b.Role(); (r == RolePromoting || r == RoleDraining) && (b.member.Lease == nil || b.member.Lease()) {
		return true
	}
	return b.holdsLease()
}

// unanswered is what became of an append that may not be answered: others know
// whether it counts. An error that says that it does not is kept.
func (b *Broker) unanswered(err error) error {
	if err != nil && !errors.Is(err, commitlog.ErrStopped) && !errors.Is(err, commitlog.ErrHalted) {
		return err
	}
	if errors.Is(err, commitlog.ErrStopped) {
		b.depose(err)
	}
	e := b.notMaster("append")
	e.Err = err
	return e
}

// notMaster is the answer of a broker that is not its group's master.
func (b *Broker) notMaster(op string) *Error {
	e := &Error{Op: op, Kind: KindNotMaster}
	if b.member.Master != nil {
		e.Master, e.MasterEpoch = b.member.Master()
	}
	switch {
	case e.Master == b.node && b.Role() <= RolePromoting:
		e.Text = "this node is about to be master"
	case e.Master == "" || e.Master == b.node:
		e.Master, e.MasterEpoch, e.Text = "", 0, "the group has no master that is known here"
	default:
		e.Text = fmt.Sprintf("node %s is master, epoch %d", e.Master, e.MasterEpoch)
	}
	return e
}

// MasterOf returns who is master, and since which epoch, as far as an error of
// KindNotMaster says it.
func MasterOf(err error) (zone.Node, uint64) {
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			break
		}
		if e.Master != "" {
			return e.Master, e.MasterEpoch
		}
		err = e.Err
	}
	return "", 0
}

// Promote begins an epoch with this replica as master: at nil its lineage is
// durable and its log takes what shipping then commits. Lead follows. The epoch is
// above that of every lineage of the log.
//
// Errors: KindNotMaster when the broker is no replica, or its store is not complete
// yet; those of commitlog.Log.Promote.
func (b *Broker) Promote(ctx context.Context, epoch uint64, id record.LineageID) error {
	if err := b.enter("promote"); err != nil {
		return err
	}
	defer b.leave()
	b.mu.Lock()
	if b.Role() != RoleReplica || b.cold || b.failure() != nil {
		b.mu.Unlock()
		return b.notMaster("promote")
	}
	if err := NewRestore(b.fs, b.dir).Forget(ctx); err != nil { // it would replace what is written from here on
		b.mu.Unlock()
		return &Error{Op: "promote", Kind: kindOfLog(err), Err: err}
	}
	b.led, b.ledEpoch = make(chan struct{}), epoch
	b.role.Store(uint32(RolePromoting))
	b.mu.Unlock()
	err := b.shared.Promote(ctx, epoch, id)
	if err != nil {
		b.role.Store(uint32(RoleReplica))
		return &Error{Op: "promote", Kind: kindOfLog(err), Err: err}
	}
	b.mu.Lock()
	b.state.store = b.shared.Incarnation() // a store that was empty has it only now
	b.mu.Unlock()
	b.logger.Info("broker is promoted", "group", string(b.self), "epoch", epoch)
	return nil
}

// Lead begins to answer after Promote: it waits until everything that the log held
// before, and the beginning of the epoch, is committed and folded, and the topology
// is applied. Shipping must commit meanwhile. At nil the broker is master.
//
// Errors: KindNotMaster when it was deposed meanwhile, or is not promoted; those of
// the log; the context's.
func (b *Broker) Lead(ctx context.Context) error {
	b.mu.RLock()
	led := b.led
	b.mu.RUnlock()
	if led == nil || b.Role() != RolePromoting {
		return b.notMaster("lead")
	}
	select {
	case <-led:
	case <-b.failed:
		return &Error{Op: "lead", Kind: KindStopped, Err: b.failErr}
	case <-b.deposed:
		return b.notMaster("lead")
	case <-b.ctx.Done():
		return &Error{Op: "lead", Kind: KindClosed}
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := b.takeUpTopology(ctx); err != nil {
		return err
	}
	if err := b.enter("lead"); err != nil {
		return err
	}
	defer b.leave()
	if !b.role.CompareAndSwap(uint32(RolePromoting), uint32(RoleMaster)) {
		return b.notMaster("lead")
	}
	b.scheduleAll() // the agenda of a replica knows of no checks
	b.lead()
	poke(b.legKick)
	b.logger.Info("broker is master", "group", string(b.self), "epoch", b.shared.Epoch(), "position", uint64(b.shared.Committed()))
	return nil
}

// lead starts what only the one that decides for its group does.
func (b *Broker) lead() {
	b.loops.Go(b.progressLoop)
	b.loops.Go(b.budgetLoop)
	b.loops.Go(b.checkLoop)
	b.resumeHands()
	b.loops.Go(b.dueLoop)
	b.loops.Go(b.receiptLoop)
	b.loops.Go(b.liteLoop)
}

// Drain makes a master ready to hand over: it answers nobody any more, and what
// consumers and destinations have settled is committed at nil. The master resigns
// and closes then.
func (b *Broker) Drain(ctx context.Context) error {
	if b.member == nil || !b.role.CompareAndSwap(uint32(RoleMaster), uint32(RoleDraining)) {
		return nil
	}
	return b.flushHeld(ctx)
}

// Halt makes the log of a master that drains take nothing more, whoever would append, and
// waits until what it has taken is durable here. It is shipped and committed as before,
// so that a member can get level with its end for good before this one is deposed. Of a
// broker that does not drain it changes nothing.
//
// Errors: the context's.
func (b *Broker) Halt(ctx context.Context) error {
	if b.member == nil || b.Role() != RoleDraining {
		return nil
	}
	return b.shared.Halt(ctx)
}

// tellLed wakes Lead once the epoch has begun. mu is held.
func (b *Broker) tellLed() {
	if b.led != nil && b.state.epoch == b.ledEpoch {
		select {
		case <-b.led:
		default:
			close(b.led)
		}
	}
}

// checkInSync refuses what would store a message of a topic that asks for more copies
// than the group has now.
func (b *Broker) checkInSync(op string, t *zone.TopicInfo) error {
	if b.member == nil || b.member.InSync == nil || t.MinInSync <= 1 {
		return nil
	}
	if n := b.member.InSync(); n < t.MinInSync {
		return &Error{Op: op, Kind: KindInSync, Topic: t.Name,
			Text: fmt.Sprintf("%d members of the broker group are in sync; the topic asks for %d", n, t.MinInSync)}
	}
	return nil
}

// enoughInSync is checkInSync once the batch is done. Whoever is in sync then has all
// that is committed; with fewer than asked for, what was stored has as few copies, and
// its sender is told so instead of an acknowledgement.
func (b *Broker) enoughInSync(want int) error {
	if b.member == nil || b.member.InSync == nil {
		return nil
	}
	if n := b.member.InSync(); n < want {
		return &Error{Op: "publish", Kind: KindUnconfirmed,
			Text: fmt.Sprintf("it may have been stored, at %d members of the broker group where the topic asks for %d: send it again", n, want)}
	}
	return nil
}

// ackOf returns when a publish to the topic is answered. A message that waits, and
// one whose id must be new, is answered when the fold has judged it.
func (b *Broker) ackOf(t *zone.TopicInfo, plain bool) commitlog.Ack {
	if b.member == nil || !plain || t.Idempotent > 0 {
		return commitlog.AckCommitted
	}
	switch t.Durability {
	case zone.DurabilityMaster, zone.DurabilityBuffered: // a buffered batch with others is written as they are
		return commitlog.AckSynced
	case zone.DurabilityQuorum:
		return commitlog.AckQuorum
	}
	return commitlog.AckCommitted
}

// trimFollowing removes from a replica's log what its master has removed and the
// replica's snapshots do not need.
func (b *Broker) trimFollowing() error {
	if b.member.Begin == nil {
		return nil
	}
	lent := b.isLent()
	b.mu.RLock()
	floor := min(b.trimAt, b.member.Begin())
	if b.cold || lent {
		floor = 0
	}
	b.mu.RUnlock()
	before := b.log.Begin()
	if floor <= before {
		return nil
	}
	begin, err := b.log.Trim(floor)
	if err != nil || begin == before {
		return err
	}
	b.logger.Info("log trimmed", "group", string(b.self), "seq", uint64(begin))
	return b.trimIndexes(begin)
}
