package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/tails"
	"github.com/mqrouter/mqrouter/broker/transaction"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// TailReader reads the records of tails, for people and to offer them again. It is safe
// for concurrent use.
type TailReader struct {
	store *tails.Store

	mu   sync.Mutex
	last *decisions // of the tail that was read last; guarded by mu
}

// NewTailReader returns the reader of a member's tails.
func NewTailReader(s *tails.Store) *TailReader { return &TailReader{store: s} }

// TailQuery selects records of a tail; zero values select all messages of clients.
type TailQuery struct {
	ID        string
	From      record.Position // TailPage.Next
	After     record.Position // TailPage.After
	Limit     int             // records, at least 1
	Bytes     int             // of records, about; 0 = no bound
	Topic     zone.Topic
	MessageID string
	All       bool // also what is no message of a client
	Offered   bool // also decisions that are offered
}

// TailPage is a part of a tail.
type TailPage struct {
	Records     []TailRecord
	Next, After record.Position // where to go on; Next 0 = that was all
}

// TailRecord is a record of a tail.
type TailRecord struct {
	Position, End record.Position // of the entry in the log that had it
	Kind          TailKind
	Certain       bool        // surely acknowledged; else perhaps
	Record        record.View // empty of a landing without a record
	Not           string      // why it is not offered again; "" = it is
	// After is one above the position of the record before that is to be offered, or the
	// beginning of the tail: there is nothing to offer between the two.
	After record.Position
	// Again is where it stood, with the consumer groups that had settled it there, and
	// Route on which flow its record left, the copy of a delayed one included; nil when
	// none did. Begin is where the tail begins.
	Again record.Again
	Route *Route
	Begin record.Position
}

// ErrNewer: the tail has records that this version cannot read, and any of them may decide
// about others. A node with the version that wrote them offers the tail.
var ErrNewer = errors.New("broker: the tail has records of a newer version")

// errPage ends the scan of a page.
var errPage = errors.New("broker: the page is full")

// Read returns a page. It reads the disk; of a tail that was not read last, all of it.
//
// Errors: tails.ErrNone; ErrNewer of what is to be offered; *tails.FileError and
// *commitlog.CorruptError for damage; the context's.
func (r *TailReader) Read(ctx context.Context, q TailQuery) (TailPage, error) {
	info, err := r.store.Find(q.ID)
	if err != nil {
		return TailPage{}, err
	}
	known, err := r.decisions(ctx, info)
	if err != nil {
		return TailPage{}, err
	}
	if q.Offered && known.unknown > 0 {
		return TailPage{}, fmt.Errorf("%w: %d, the first at %d", ErrNewer, known.unknown, known.firstUnknown)
	}
	p := TailPage{After: max(q.After, info.From)}
	bytes := 0
	err = r.store.Scan(ctx, q.ID, max(q.From, info.From), func(e commitlog.Entry) error {
		if len(p.Records) >= max(q.Limit, 1) || q.Bytes > 0 && bytes >= q.Bytes {
			p.Next = e.Position
			return errPage
		}
		v, kind := kindInTail(&e)
		x := TailRecord{Position: e.Position, End: e.Position + record.Position(e.Size), Kind: kind, Certain: e.Position < info.Committed,
			Not: known.not(kind, v), After: p.After, Begin: info.From}
		if x.Not == "" {
			p.After = x.Position + 1
		}
		if !q.wants(kind, v) && (!q.Offered || !kind.isOffered() || !q.matches(v)) {
			return nil
		}
		if len(v.Bytes()) > 0 {
			if x.Record, err = record.Parse(append([]byte(nil), e.Record...)); err != nil {
				return err
			}
		}
		if kind.isOffered() {
			x.Again, x.Route = known.stood(kind, &v, &info, x.After)
		}
		bytes += len(e.Record)
		p.Records = append(p.Records, x)
		return nil
	})
	if errors.Is(err, errPage) {
		err = nil
	}
	return p, err
}

func (q *TailQuery) wants(k TailKind, v record.View) bool {
	return (q.All || k.IsMessage()) && q.matches(v)
}

func (q *TailQuery) matches(v record.View) bool {
	switch {
	case q.Topic == "" && q.MessageID == "":
		return true
	case len(v.Bytes()) == 0:
		return false
	}
	return (q.Topic == "" || string(v.Topic()) == string(q.Topic)) && (q.MessageID == "" || string(v.MessageID()) == q.MessageID)
}

// maxDecisions bounds what is remembered of one tail.
const maxDecisions = 1 << 20

// decisions is what a tail itself says of its messages that waited.
type decisions struct {
	id       string
	inc      record.Incarnation
	begin    record.Position
	halves   map[transaction.Key]string
	recalled map[recalledMessage]bool
	fired    map[record.Position]firing // by the delayed message

	unknown      int // records that cannot be read
	firstUnknown record.Position
}

// firing is the copy of a delayed message that was delivered when it was due.
type firing struct {
	at    record.Position
	route Route
}

type recalledMessage struct{ topic, id string }

// decisions returns those of a tail. A tail never changes.
func (r *TailReader) decisions(ctx context.Context, info tails.Info) (*decisions, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last != nil && r.last.id == info.ID && r.last.inc == info.Incarnation {
		return r.last, nil
	}
	d := &decisions{id: info.ID, inc: info.Incarnation, begin: info.From, fired: map[record.Position]firing{}, halves: map[transaction.Key]string{}, recalled: map[recalledMessage]bool{}}
	if err := r.store.Scan(ctx, info.ID, info.From, d.note); err != nil {
		return nil, err
	}
	r.last = d
	return d, nil
}

func (d *decisions) note(e commitlog.Entry) error {
	if e.Kind != commitlog.KindOwn {
		return nil
	}
	v, kind := kindInTail(&e)
	if kind == TailUnknown {
		if d.unknown++; d.unknown == 1 {
			d.firstUnknown = e.Position
		}
		return nil
	}
	switch v.Type() {
	case record.TypeRecall:
		d.recalled[recalledMessage{string(v.Topic()), string(v.MessageID())}] = true
	case record.TypeRollback:
		x, err := parseRollback(v.Body())
		if err != nil {
			return err
		}
		d.halves[x.key] = "it was rolled back"
	case record.TypeMessage:
		if len(v.Cause()) == 0 {
			return nil
		}
		c, err := ParseCause(v.Cause())
		if err != nil {
			return err
		}
		switch {
		case c.Kind == CauseCommit:
			d.halves[keyOfHalf(c.Original)] = fmt.Sprintf("it was committed at %d", e.Position)
		case c.Kind == CauseDue && c.Bucket > 0 && c.Original.Position >= d.begin:
			d.fired[c.Original.Position] = firing{e.Position, routeOf(&v)}
		}
	}
	if len(d.halves)+len(d.recalled)+len(d.fired) > maxDecisions {
		return &Error{Op: "tail", Kind: KindBusy, Text: fmt.Sprintf("more than %d decisions about messages that waited", maxDecisions)}
	}
	return nil
}

// not says why a record is not offered again, or "".
func (d *decisions) not(k TailKind, v record.View) string {
	switch k {
	case TailLanding:
		return "the group that it is from sends it again, or tells of a gap"
	case TailDue:
		return "the delayed message itself waits at the master, or is in this tail"
	case TailUnknown:
		return "this version cannot read it: a newer one has written it"
	case TailBroker:
		return "the broker makes such records by itself"
	case TailRollback:
		if r, err := parseRollback(v.Body()); err == nil && r.key.Position >= d.begin {
			return "its half message is in this tail, too, and is not offered either"
		}
	case TailHalf:
		return d.halves[keyOfHalf(v.Identity())]
	case TailDelayed:
		if d.recalled[recalledMessage{string(v.Topic()), string(v.MessageID())}] {
			return "it was recalled"
		}
	}
	return ""
}

// isOffered reports whether records of the kind are offered again.
func (k TailKind) isOffered() bool { return k.IsMessage() || k == TailRollback || k == TailRecall }

// stood says where a record stood and on which flow it left.
func (d *decisions) stood(k TailKind, v *record.View, info *tails.Info, after record.Position) (record.Again, *Route) {
	a := record.Again{Epoch: v.Epoch(), Position: v.Position(), After: after}
	for _, row := range info.Table {
		if row.Epoch == a.Epoch {
			a.Lineage = row.ID
		}
	}
	at, route := a.Position, routeOf(v)
	if k == TailDelayed {
		f := d.fired[a.Position] // zero when it was not yet due
		at, route = f.at, f.route
	}
	for i := range info.Settled {
		if s := &info.Settled[i]; at > 0 && s.Topic == string(v.Topic()) && s.Has(at) {
			a.Groups = append(a.Groups, zone.ConsumerGroup(s.Group))
		}
	}
	if k == TailHalf || route.Target == "" {
		return a, nil
	}
	a.Sent = at
	return a, &route
}

// Offered is the record as OfferTail takes it.
func (r *TailRecord) Offered() Offered {
	return Offered{Record: r.Record, Again: r.Again, Route: r.Route, Begin: r.Begin, Certain: r.Certain}
}
