package broker

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/tails"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/ship"
	"github.com/mqrouter/mqrouter/zone"
)

// TailsFolder is where, in a broker's folder, the tails are that a member had and its
// group has not.
const TailsFolder = "tails"

// NewTails returns the tails of a broker's folder.
func NewTails(fsys disk.FS, dir string) *tails.Store {
	return tails.New(fsys, path.Join(dir, TailsFolder), 0)
}

// SaveError says that a tail of the log could not be saved, so that it is not dropped
// either. It is a ship.ErrFull when there was no room.
type SaveError struct {
	From, End record.Position
	Err       error
}

// Error names the tail and the cause.
func (e *SaveError) Error() string {
	return fmt.Sprintf("the log's tail from %d to %d, which the group does not have, cannot be saved: %v", e.From, e.End, e.Err)
}

// Unwrap returns the cause.
func (e *SaveError) Unwrap() error { return e.Err }

// keepTail is the log's question before it drops what stands from a position on
// (commitlog.Options.Keep): what may have been acknowledged is saved first. What
// nobody was told of goes: its publishers were told nothing, and send again.
func (b *Broker) keepTail(ctx context.Context, from, end record.Position) error {
	return b.save(ctx, from, end, b.forced())
}

// SetTailAside saves what the log of a member has from a position on, as what an
// operator's fail-over gave up. At nil it is durable: the store may go. It does nothing
// twice.
//
// Errors: *SaveError.
func (b *Broker) SetTailAside(ctx context.Context, from record.Position) error {
	return b.save(ctx, from, b.shared.End(), true)
}

// forced reports whether a fail-over with loss was ordered after everything that this
// log knows of.
func (b *Broker) forced() bool {
	rows := b.shared.Lineage()
	if b.member.Forced == nil || len(rows) == 0 {
		return false
	}
	return b.member.Forced() > rows[len(rows)-1].Epoch
}

func (b *Broker) save(ctx context.Context, from, end record.Position, forced bool) error {
	h, early, err := b.tailHead(ctx, from, end, forced)
	if err == nil && h.Counts.Records == 0 {
		return nil
	}
	if err == nil && !forced && !early {
		b.logger.Info("records that nobody was told of are dropped", "group", string(b.self), "seq", uint64(from), "through", uint64(end), "records", h.Counts.Records)
		return nil
	}
	if err == nil {
		h.Settled, h.Unsure, err = b.settledInTail(ctx, from, end)
	}
	if err == nil {
		_, err = b.tails.Save(ctx, h, b.shared)
	}
	if err != nil {
		if disk.IsFull(err) || errors.Is(err, tails.ErrRoom) {
			err = fmt.Errorf("%w: %w", ship.ErrFull, err)
		}
		return &SaveError{From: from, End: end, Err: err}
	}
	b.logger.Error("the log's tail, which the group does not have, is set aside: see mqrouter tail list", "group", string(b.self), "tail", h.ID(),
		"messages", h.Counts.Messages, "acknowledged", h.Counts.Certain, "forced", forced)
	return nil
}

// tailHead reads a part of the log and says what is in it; early says that something
// may have been acknowledged before it was committed.
func (b *Broker) tailHead(ctx context.Context, from, end record.Position, forced bool) (h tails.Head, early bool, err error) {
	h = tails.Head{Group: string(b.self), Node: string(b.node), Incarnation: b.shared.Incarnation(), From: from, End: end,
		Committed: b.shared.Committed(), Forced: forced, Saved: b.wallNow()}
	for _, row := range b.shared.Lineage() {
		if row.First >= end {
			break
		}
		if row.First <= from {
			h.Table = h.Table[:0]
		}
		h.Table, h.Epoch = append(h.Table, row), row.Epoch
	}
	c := counter{head: &h, topics: map[string]*tails.Topic{}}
	h.Counts.Kinds = map[string]int{}
	buf := make([]byte, 0, keepChunk)
	for at := from; at < end; {
		st, err := b.shared.ReadRaw(ctx, at, keepChunk, buf[:0])
		if err != nil {
			return h, false, err
		}
		if len(st.Frames) == 0 {
			break
		}
		if err := commitlog.EachEntry(st.Frames, commitlog.StretchStart(st.From, st.Base), c.count); err != nil {
			return h, false, err
		}
		at, buf = st.Next, st.Frames
	}
	c.end()
	return h, c.early, nil
}

// keepChunk is how much of the log is looked at in one step, in bytes.
const keepChunk = 256 << 10

// counter counts what is in a tail.
type counter struct {
	head   *tails.Head
	topics map[string]*tails.Topic
	early  bool
}

func (c *counter) count(e commitlog.Entry) error {
	n := &c.head.Counts
	n.Records++
	v, kind := kindInTail(&e)
	n.Kinds[string(kind)]++
	if kind == TailUnknown { // its publisher may have been told of it
		c.early = true
	}
	if !kind.IsMessage() {
		return nil
	}
	n.Messages++
	if d := v.Durability(); d == zone.DurabilityBuffered || d == zone.DurabilityMaster {
		c.early = true
	}
	t := c.topics[string(v.Topic())]
	switch {
	case t == nil && len(c.topics) < tails.MaxTopics:
		t = &tails.Topic{Topic: string(v.Topic())}
		c.topics[t.Topic] = t
	case t == nil:
		n.More++
		t = new(tails.Topic) // counted in all only
	}
	t.Messages++
	if e.Position < c.head.Committed {
		t.Certain++
		n.Certain++
	}
	return nil
}

func (c *counter) end() {
	for _, t := range c.topics {
		c.head.Counts.Topics = append(c.head.Counts.Topics, *t)
	}
	slices.SortFunc(c.head.Counts.Topics, func(a, b tails.Topic) int { return strings.Compare(a.Topic, b.Topic) })
}

// TailKind says what a record of a tail is, in a word for people and programs.
type TailKind string

// The kinds. Those that are messages of clients come first.
const (
	TailMessage   TailKind = "message"   // of a client
	TailDelayed   TailKind = "delayed"   // of a client; waits for its time
	TailHalf      TailKind = "half"      // of a client; waits for its decision
	TailCommitted TailKind = "committed" // a half message that was committed
	TailLanding   TailKind = "landing"   // of another group: its origin sends it again
	TailDue       TailKind = "due"       // a delayed message whose time has come
	TailRollback  TailKind = "rollback"  // of a half message
	TailRecall    TailKind = "recall"    // of a delayed message
	TailBroker    TailKind = "broker"    // progress, decisions and marks of the broker itself, and what it makes of them
	TailUnknown   TailKind = "unknown"   // this version cannot read it: a newer one wrote it, or it was damaged before it was stored
)

// IsMessage reports whether it is something that a client of this group published.
func (k TailKind) IsMessage() bool {
	return k == TailMessage || k == TailDelayed || k == TailHalf || k == TailCommitted
}

// kindInTail says what an entry is. The view is empty for one without a record, and for
// one that cannot be read. That is no error: a member that was given an older version must
// be able to follow again.
func kindInTail(e *commitlog.Entry) (record.View, TailKind) {
	if len(e.Record) == 0 {
		return record.View{}, TailLanding
	}
	v, err := record.Parse(e.Record)
	switch {
	case e.Kind == commitlog.KindLanding:
		return v, TailLanding
	case err != nil:
		return v, TailUnknown
	case v.Type() == record.TypeHalf:
		return v, TailHalf
	case v.Type() == record.TypeRollback:
		return v, TailRollback
	case v.Type() == record.TypeRecall:
		return v, TailRecall
	case v.Type() != record.TypeMessage:
		return v, TailBroker
	case len(v.Cause()) == 0 && isWaiting(v):
		return v, TailDelayed
	case len(v.Cause()) == 0:
		return v, TailMessage
	}
	c, err := ParseCause(v.Cause())
	switch {
	case err != nil:
		return v, TailUnknown
	case c.Kind == CauseCommit:
		return v, TailCommitted
	case c.Kind == CauseDue && c.Bucket == 0: // its time was past when it was sent
		return v, TailMessage
	case c.Kind == CauseDue:
		return v, TailDue
	}
	return v, TailBroker
}
