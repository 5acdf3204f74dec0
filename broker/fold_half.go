package broker

import (
	"fmt"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/broker/transaction"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// A half message is a TypeHalf record: the message as it was sent, in no queue and
// on no flow. What decides it is one record, too: the message again with
// CauseCommit, a TypeRollback, or a dead letter with CauseUndecided. The first of
// them in the log counts, and the fold ignores the others.
const (
	// CauseCommit is the Cause of a message (TypeMessage) that was a half message.
	// Original is the identity of that. The message is routed as it is, by the
	// topology of the commit.
	CauseCommit CauseKind = 5
	// CauseUndecided is the Cause of a dead letter in UndecidedTopic: a half message
	// that no producer decided within Attempts checks, or whose topic is gone
	// (Reason). Original is its identity.
	CauseUndecided CauseKind = 6
)

// UndecidedTopic is the dead-letter topic of half messages that nobody decided.
// Operators look at it and may replay what it holds, which commits it; consumers
// cannot receive it: it holds what no producer has said to be true.
const UndecidedTopic = zone.Topic(DeadLetterPrefix + "undecided:")

// halfTerms are the Cause of a TypeHalf record: what its sender and its topic said
// of it when it was stored.
//
//	version u8 = 1 | immunity ms uvarint
type halfTerms struct {
	immunity time.Duration // whole milliseconds, at most maxImmunity
}

// maxImmunity is the longest immunity time, as in RocketMQ 5.
const maxImmunity = time.Hour

func (t *halfTerms) append(dst []byte) []byte {
	e := encoder{b: dst}
	e.byte(termsVersion)
	e.uint(uint64(t.immunity / time.Millisecond))
	return e.b
}

func parseHalfTerms(b []byte) (halfTerms, error) {
	d := decoder{b: b}
	if v := d.byte(); v != termsVersion {
		return halfTerms{}, &BodyError{What: "terms of a half message", Version: v}
	}
	ms := d.uint()
	if !d.ok() || ms > uint64(maxImmunity/time.Millisecond) {
		return halfTerms{}, &BodyError{What: "terms of a half message", Version: termsVersion}
	}
	return halfTerms{immunity: time.Duration(ms) * time.Millisecond}, nil
}

// keyOfHalf names a half message of this store by the identity of its record.
func keyOfHalf(id record.Identity) transaction.Key {
	return transaction.Key{Epoch: id.Epoch, Position: id.Position}
}

// halfEntry is where the record of a half message is.
func halfEntry(h *transaction.Half) queue.Entry {
	return queue.Entry{Position: h.Position, Size: h.Size}
}

// applyHalf notes a half message.
func (s *state) applyHalf(e *commitlog.Entry, v record.View) (placement, error) {
	terms, err := parseHalfTerms(v.Cause())
	if err != nil {
		return placement{}, err
	}
	s.halves.Add(transaction.Half{
		Key: keyOfHalf(v.Identity()), Position: e.Position, Size: uint32(e.Size),
		Topic: zone.Topic(v.Topic()), Stored: v.Stored(), Immunity: terms.immunity,
	})
	return placement{ok: true, half: true, offset: uint64(e.Position), epoch: v.Epoch()}, nil
}

// isCommit reports whether a record is a half message that was committed.
func isCommit(v record.View) bool {
	if v.Type() != record.TypeMessage {
		return false
	}
	c, err := ParseCause(v.Cause())
	return err == nil && c.Kind == CauseCommit
}

// rollbackBody is the body of a TypeRollback record: which half message is gone.
type rollbackBody struct{ key transaction.Key }

func (r *rollbackBody) append(dst []byte) []byte {
	e := encoder{b: dst}
	e.byte(rollbackVersion)
	e.key(r.key)
	return e.b
}

func (e *encoder) key(k transaction.Key) {
	e.uint(k.Epoch)
	e.uint(uint64(k.Position))
}

func (d *decoder) key() transaction.Key {
	return transaction.Key{Epoch: d.uint(), Position: record.Position(d.uint())}
}

func parseRollback(b []byte) (rollbackBody, error) {
	d := decoder{b: b}
	if v := d.byte(); v != rollbackVersion {
		return rollbackBody{}, &BodyError{What: "rollback", Version: v}
	}
	r := rollbackBody{d.key()}
	if !d.ok() {
		return rollbackBody{}, &BodyError{What: "rollback", Version: rollbackVersion}
	}
	return r, nil
}

// applyRollback forgets a half message.
func (s *state) applyRollback(body []byte) (placement, error) {
	r, err := parseRollback(body)
	if err != nil {
		return placement{}, err
	}
	return placement{ok: s.halves.Decide(r.key, transaction.RolledBack)}, nil
}

// checkedItem says how many checks of a half message were written to a producer, and
// how many of them nobody can have read.
type checkedItem struct {
	key              transaction.Key
	checks, forgiven int
}

func appendChecked(dst []byte, items []checkedItem) []byte {
	e := encoder{b: dst}
	e.byte(checkedVersion)
	e.uint(uint64(len(items)))
	for _, it := range items {
		e.key(it.key)
		e.uint(uint64(it.checks))
		e.uint(uint64(it.forgiven))
	}
	return e.b
}

func parseChecked(b []byte) ([]checkedItem, error) {
	d := decoder{b: b}
	version := d.byte()
	if version != checkedVersion && version != checkedPlain {
		return nil, &BodyError{What: "checks of half messages", Version: version}
	}
	var items []checkedItem
	for range d.count() {
		it := checkedItem{key: d.key()}
		n, forgiven := d.uint(), uint64(0)
		if version == checkedVersion {
			forgiven = d.uint()
		}
		if n > maxChecked || forgiven > n {
			d.bad = true
		}
		it.checks, it.forgiven = int(n), int(forgiven)
		items = append(items, it)
	}
	if !d.ok() {
		return nil, &BodyError{What: "checks of half messages", Version: version}
	}
	return items, nil
}

// maxChecked bounds the checks that a record may say; topologies allow far fewer.
const maxChecked = 1 << 30

func (s *state) applyChecked(body []byte, at time.Time) error {
	items, err := parseChecked(body)
	if err != nil {
		return err
	}
	for _, it := range items {
		s.halves.Checked(it.key, it.checks, it.forgiven, at)
	}
	return nil
}

// applyCarriedHalf notes that a half message is here now, too.
func (s *state) applyCarriedHalf(e *commitlog.Entry, half []byte) error {
	v, err := record.Parse(half)
	if err != nil {
		return err
	}
	if v.Type() != record.TypeHalf {
		return fmt.Errorf("a carried half message is a record of type %d", v.Type())
	}
	s.halves.Moved(keyOfHalf(v.Identity()), e.Position, uint32(e.Size))
	return nil
}
