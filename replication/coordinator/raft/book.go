package raft

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	// putTime is how long a decision waits for the quorum at most.
	putTime = 2 * time.Second
	// confirmTime is how long the voters have to say that the leader is one: round
	// trips of a city take a hundredth of it.
	confirmTime = 500 * time.Millisecond
)

// book is the coordinator.Book of one leadership.
type book struct {
	raft       *raft.Raft
	machine    *machine
	leadership uint64          // raft's term
	crew       *crew           // ends with the leadership
	ctx        context.Context // likewise
	// ask returns nil if the voter is in that leadership when it is asked.
	ask func(ctx context.Context, voter raft.ServerID, leadership uint64) error

	mu      sync.Mutex
	running bool                        // a round of confirmation goes on; guarded by mu
	next    *turn                       // those who wait for the round after it; nil = nobody; guarded by mu
	asking  map[raft.ServerID]*question // voters that are asked; guarded by mu
}

// question is what a voter is asked now. There is one at a time: a voter that does not
// answer holds up a call, not one more with each round.
type question struct {
	after *round // asks next, when the one under way is over; nil = nobody
}

// round is one round of questions; its answers have room for all.
type round struct {
	ctx     context.Context // ends when nobody waits for answers any more
	answers chan error
}

// turn is one round of confirmation.
type turn struct {
	done chan struct{}
	err  error // set before done is closed
}

var _ coordinator.Book = (*book)(nil)

// Term implements coordinator.Book.
func (b *book) Term(g zone.Group) coordinator.Term { return b.machine.term(g) }

// Terms implements coordinator.Book.
func (b *book) Terms() []coordinator.Term { return b.machine.all() }

// Changed implements coordinator.Book.
func (b *book) Changed() <-chan struct{} { return b.machine.watch() }

// Put implements coordinator.Book.
func (b *book) Put(ctx context.Context, t coordinator.Term) error {
	fail := func(k coordinator.Kind, err error) error {
		return &coordinator.Error{Op: "put", Group: t.Group, Kind: k, Err: err}
	}
	data, err := json.Marshal(command{Version: stateVersion, Leadership: b.leadership, Term: t})
	if err != nil {
		return fail(coordinator.KindRefused, err)
	}
	future := b.raft.Apply(data, putTime)
	done := make(chan error, 1)
	if !b.crew.run(func() { done <- future.Error() }) { // ends with the answer or with the leadership
		return fail(coordinator.KindNoQuorum, errStaleLeadership)
	}
	select {
	case err = <-done:
	case <-ctx.Done():
		return fail(coordinator.KindNoQuorum, ctx.Err())
	case <-time.After(putTime):
		return fail(coordinator.KindNoQuorum, errNoAnswer)
	}
	if err != nil {
		return fail(coordinator.KindNoQuorum, err)
	}
	switch err, _ := future.Response().(error); {
	case err == nil:
		return nil
	case errors.Is(err, errStaleVersion):
		return fail(coordinator.KindStaleVersion, err)
	default:
		return fail(coordinator.KindNoQuorum, err)
	}
}

var errNoAnswer = errors.New("the voters have not agreed in time")

// Confirm implements coordinator.Book. Callers at one time share a round of messages
// to the voters, but never one that had begun before they asked.
func (b *book) Confirm(ctx context.Context) error {
	b.mu.Lock()
	if b.next == nil {
		b.next = &turn{done: make(chan struct{})}
	}
	t := b.next
	if !b.running {
		if !b.crew.run(b.confirm) {
			b.mu.Unlock()
			return errStaleLeadership
		}
		b.running = true
	}
	b.mu.Unlock()
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// confirm runs rounds as long as somebody waits.
func (b *book) confirm() {
	for {
		b.mu.Lock()
		t := b.next
		b.next = nil
		if t == nil {
			b.running = false
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		t.err = b.quorum()
		close(t.done)
	}
}

// quorum asks the voters whether they still are in this leadership. A voter enters
// the next one before it votes in it, so as long as a majority is in this one when it
// is asked, nobody else had been elected. (The library's VerifyLeader may count an
// answer to what it sent before it was called, which is too old when a process was
// stopped for a while.)
func (b *book) quorum() error {
	future := b.raft.GetConfiguration()
	if err := future.Error(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), confirmTime)
	defer cancel()
	voters := future.Configuration().Servers
	now := &round{ctx: ctx, answers: make(chan error, len(voters))}
	for _, s := range voters {
		if !b.question(s.ID, now) {
			return errStaleLeadership
		}
	}
	need := len(voters)/2 + 1
	var errs []error
	for range voters {
		select {
		case err := <-now.answers:
			if err != nil {
				errs = append(errs, err)
			} else if need--; need == 0 {
				return nil
			}
		case <-ctx.Done(): // some are still busy with a question of before
			return errors.Join(append(errs, ctx.Err())...)
		}
	}
	return errors.Join(errs...)
}

// question asks a voter for a round: now, or when the question under way, whose answer
// is too old for this round, is over. It reports whether the leadership goes on.
func (b *book) question(id raft.ServerID, r *round) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q := b.asking[id]; q != nil {
		q.after = r // the round whose place this takes is over
		return true
	}
	if b.asking == nil {
		b.asking = map[raft.ServerID]*question{}
	}
	q := &question{after: r}
	if !b.crew.run(func() { b.questions(id, q) }) {
		return false
	}
	b.asking[id] = q
	return true
}

// questions asks a voter as long as a round wants to know.
func (b *book) questions(id raft.ServerID, q *question) {
	for {
		b.mu.Lock()
		r := q.after
		q.after = nil
		if r == nil {
			delete(b.asking, id)
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		if err := r.ctx.Err(); err != nil {
			r.answers <- err // room for all: each round asks a voter once
			continue
		}
		// Not the round's context: rounds end with a majority, and an HTTP/1.1 connection
		// ends with the request on it that is given up. The voter that is farthest away
		// would cost a handshake each time.
		ctx, cancel := context.WithTimeout(b.ctx, confirmTime)
		err := b.ask(ctx, id, b.leadership)
		cancel()
		r.answers <- err
	}
}
