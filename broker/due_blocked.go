package broker

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/broker/timer"
	"github.com/mqrouter/mqrouter/zone"
)

// Bounds of what is blocked.
const (
	blockedFirst = 100 * time.Millisecond // rest before an obstacle is tried again, doubled with each try in vain
	blockedLast  = 5 * time.Second        // the longest rest; tries never end
	blockedTry   = 16                     // messages of a try after one in vain
	blockedMost  = 1024                   // messages of a try, while all go through
	maxObstacles = 256                    // obstacles that are told apart; the rest share one
)

// unreadable is the kind of obstacle of messages whose entry or record is damaged.
const unreadable = "unreadable"

// obstacle is why due messages cannot be delivered now. Those that share one are
// tried together.
type obstacle struct {
	topic  zone.Topic
	target string // the destination whose backlog is full; empty when it is not that
	kind   string
	text   string // for people, of the last try
}

func (o obstacle) key() obstacle {
	if o.target != "" || o.kind == unreadable {
		o.text = "" // numbers in it change
	}
	return o
}

// obstacleOf makes an obstacle of why a message cannot be routed.
func obstacleOf(topic zone.Topic, target string, err error) *obstacle {
	o := &obstacle{topic: topic, target: target, text: err.Error()}
	var e *Error
	if errors.As(err, &e) {
		o.kind = e.Kind.String()
	}
	if len(o.text) > 300 {
		o.text = o.text[:300]
	}
	return o
}

// blocked holds the due messages that have an obstacle, without a bound on how many
// and how often they are tried: a bit for each. It belongs to the due loop.
type blocked struct {
	lanes map[obstacle]*blockedLane // by obstacle.key
	all   map[uint64]*timer.Set     // by bucket: those of all lanes
}

// blockedLane are the messages of one obstacle.
type blockedLane struct {
	obstacle obstacle
	refs     map[uint64]*timer.Set // by bucket
	count    int
	since    time.Time // wall
	next     time.Time // monotonic: when to try again
	rest     time.Duration
	grant    int       // messages of the next try
	at       timer.Ref // where the last try ended: the next one takes others
}

func newBlocked() *blocked {
	return &blocked{lanes: map[obstacle]*blockedLane{}, all: map[uint64]*timer.Set{}}
}

func (b *blocked) has(r timer.Ref) bool {
	s := b.all[r.Bucket]
	return s != nil && s.Has(r.Number)
}

// put adds a message.
func (b *blocked) put(r timer.Ref, o obstacle) {
	key := o.key()
	l := b.lanes[key]
	if l == nil && len(b.lanes) >= maxObstacles {
		key = obstacle{kind: "others"}
		l = b.lanes[key]
	}
	if l == nil {
		l = &blockedLane{refs: map[uint64]*timer.Set{}, since: wallNow(), next: time.Now().Add(blockedFirst), rest: blockedFirst, grant: blockedTry}
		b.lanes[key] = l
	}
	l.obstacle = o
	if addTo(l.refs, r) {
		l.count++
	}
	addTo(b.all, r)
}

func addTo(sets map[uint64]*timer.Set, r timer.Ref) bool {
	s := sets[r.Bucket]
	if s == nil {
		s = &timer.Set{}
		sets[r.Bucket] = s
	}
	return s.Add(r.Number)
}

func removeFrom(sets map[uint64]*timer.Set, r timer.Ref) {
	if s := sets[r.Bucket]; s != nil {
		s.Remove(r.Number)
		if s.Count() == 0 {
			delete(sets, r.Bucket)
		}
	}
}

// take takes out the messages of a try. Tries go round, so that one obstacle in
// truth does not stand for all that share its name.
func (b *blocked) take(l *blockedLane) []timer.Ref {
	refs := make([]timer.Ref, 0, min(l.grant, l.count))
	ids := sortedKeys(l.refs)
	from, _ := slices.BinarySearchFunc(ids, l.at.Bucket, func(id, at uint64) int { return cmp.Compare(id, at) })
	for i := range len(ids) + 1 {
		id := ids[(from+i)%len(ids)]
		n, end := uint64(0), l.refs[id].End()
		if i == 0 && id == l.at.Bucket {
			n = l.at.Number
		} else if i == len(ids) && id == l.at.Bucket {
			end = min(end, l.at.Number)
		} else if i == len(ids) {
			break
		}
		for ; len(refs) < l.grant; n++ {
			if n = l.refs[id].NextIn(n, end); n >= end {
				break
			}
			refs = append(refs, timer.Ref{Bucket: id, Number: n})
		}
	}
	for _, r := range refs {
		removeFrom(l.refs, r)
		removeFrom(b.all, r)
		l.at = timer.Ref{Bucket: r.Bucket, Number: r.Number + 1}
	}
	l.count -= len(refs)
	return refs
}

// tried notes how a try of n messages went.
func (b *blocked) tried(l *blockedLane, stored, n int) {
	switch {
	case stored == n:
		l.rest, l.grant, l.next = blockedFirst, min(2*l.grant, blockedMost), time.Now()
	case stored > 0:
		l.rest, l.grant = blockedFirst, max(stored, blockedTry)
		l.next = time.Now().Add(l.rest)
	default:
		l.next = time.Now().Add(l.rest)
		l.rest, l.grant = min(2*l.rest, blockedLast), blockedTry
	}
	if l.count == 0 {
		for key, o := range b.lanes {
			if o == l {
				delete(b.lanes, key)
			}
		}
	}
}

// ripe returns the lanes that are to be tried now.
func (b *blocked) ripe(now time.Time) []*blockedLane {
	var list []*blockedLane
	for _, l := range b.lanes {
		if !l.next.After(now) {
			list = append(list, l)
		}
	}
	slices.SortFunc(list, func(x, y *blockedLane) int {
		return cmp.Or(x.next.Compare(y.next), cmp.Compare(x.obstacle.text, y.obstacle.text))
	})
	return list
}

// next returns when the next try is; false when nothing is blocked.
func (b *blocked) next() (at time.Time, any bool) {
	for _, l := range b.lanes {
		if !any || l.next.Before(at) {
			at, any = l.next, true
		}
	}
	return at, any
}

// hurry has everything tried at once: the topology has changed.
func (b *blocked) hurry() {
	for _, l := range b.lanes {
		l.next, l.rest, l.grant = time.Time{}, blockedFirst, blockedTry
	}
}
