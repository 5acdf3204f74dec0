package broker

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/policy"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	// overEvery is how often backlogs are compared with their budgets when no
	// publish asks for it.
	overEvery = time.Minute
	// overRest is the shortest time between two comparisons.
	overRest = 20 * time.Millisecond
)

// budgetOf returns the budget of a topic.
func budgetOf(t *zone.TopicInfo) policy.Budget {
	return policy.Budget{Limit: t.Budget, End: t.AtBudget}
}

// prepared are the bytes of records that will be in an append, by the backlog that they
// add to. The zero value is empty.
type prepared map[backlogKey]int64

// backlogKey names the backlog of a topic for a destination, of all lanes.
type backlogKey struct {
	topic   zone.Topic
	target  string
	channel bool
	class   zone.Class
}

func backlogOf(r *record.Record) backlogKey {
	return backlogKey{r.Topic, r.Target, r.Channel, r.Class}
}

// add adds a record of so many bytes.
func (p *prepared) add(r *record.Record, size int) {
	if r.Target == "" {
		return
	}
	if *p == nil {
		*p = prepared{}
	}
	(*p)[backlogOf(r)] += int64(size)
}

// checkBudget refuses a record for a destination that holds back as much of its
// topic as the topic allows. Other topics and destinations go on.
func (b *Broker) checkBudget(t *zone.TopicInfo, r *record.Record) error {
	return b.checkBudgetWith(t, r, nil)
}

// checkBudgetWith counts what the same append has before the record as well. So only the
// last record that is admitted takes a backlog beyond its budget.
func (b *Broker) checkBudgetWith(t *zone.TopicInfo, r *record.Record, before prepared) error {
	budget, ahead := budgetOf(t), before[backlogOf(r)]
	id := record.FlowID{Origin: b.self, Incarnation: b.log.Incarnation(), Target: r.Target, Channel: r.Channel, Class: r.Class, Lane: r.Lane}
	b.mu.RLock()
	defer b.mu.RUnlock()
	f := b.state.out[id]
	if f == nil {
		if !budget.Admits(ahead) {
			return overBudget(t, r.Target, ahead)
		}
		return nil
	}
	for _, l := range f.legs {
		if l.end > 0 {
			continue
		}
		held := b.state.heldBack(f, l, t.Name, b.log.Lanes())
		if budget.Excess(held) > 0 || budget.Compacts(held, budget.Limit) {
			poke(b.overKick)
		}
		if !budget.Admits(held + ahead) {
			return overBudget(t, r.Target+" "+string(l.key.city), held+ahead)
		}
	}
	return nil
}

func overBudget(t *zone.TopicInfo, where string, held int64) error {
	return &Error{Op: "publish", Kind: KindBudget, Topic: t.Name,
		Text: fmt.Sprintf("%s has %d bytes of backlog; the topic allows %d", strings.TrimSpace(where), held, t.Budget)}
}

// heldBack returns the bytes of a topic that a leg's destination has not settled,
// in all lanes of the flow.
func (s *state) heldBack(f *outFlow, l *leg, t zone.Topic, lanes int) int64 {
	held := l.topicBacklog(f.label(t))
	if f.id.Channel {
		return held
	}
	id := f.id
	for lane := range lanes {
		if id.Lane = uint8(lane); id.Lane == f.id.Lane {
			continue
		}
		if o := s.out[id]; o != nil {
			if ol := o.leg(l.key); ol != nil {
				held += ol.topicBacklog(o.label(t))
			}
		}
	}
	return held
}

// label returns the label of a topic; 0 when it has none.
func (f *outFlow) label(t zone.Topic) uint8 {
	for i := range f.topics {
		if f.topics[i] == t {
			return uint8(i + 1)
		}
	}
	return 0
}

// budgetLoop does what topics declare for backlogs that have reached their
// budgets.
func (b *Broker) budgetLoop() {
	b.loop(overEvery, b.overKick, func() time.Duration {
		if err := b.enforceBudgets(b.ctx); err != nil && b.ctx.Err() == nil {
			b.logger.Warn("a backlog beyond its budget could not be given up, trying again", "group", string(b.self), "err", err)
		}
		b.pause(overRest)
		return overEvery
	})
}

// excess is a topic's backlog at one leg that is too large.
type excess struct {
	leg   flow.Leg
	topic zone.Topic
	index *queue.Index
	label uint8
	bytes int64 // to give up
	limit int64 // the budget
	held  int64 // in all lanes

	compact bool // rather leave out what newer records make needless; bytes is 0
}

// makeRoom does at once, on a publisher's goroutine, what the topic declares for a
// backlog beyond its budget. It reports whether trying again may help: publishers
// that are faster than the loop wait for a decision rather than being refused.
func (b *Broker) makeRoom(ctx context.Context, t *zone.TopicInfo) bool {
	if t.AtBudget == zone.BudgetGap || t.AtBudget == zone.BudgetCompact {
		return b.enforceBudgets(ctx) == nil
	}
	return false
}

// enforceBudgets is done by one goroutine at a time.
func (b *Broker) enforceBudgets(ctx context.Context) error {
	select {
	case b.overUse <- struct{}{}:
		defer func() { <-b.overUse }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, x := range b.overBudgets() {
		var err error
		if x.compact {
			if !b.worthALook(&x) {
				continue
			}
			err = b.compact(ctx, &x)
			b.compacted[x.key()] = b.heldNow(&x)
		} else {
			err = b.giveUpOldest(ctx, &x)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// compactedLeg names a topic's backlog at one leg.
type compactedLeg struct {
	leg   flow.Leg
	topic zone.Topic
}

func (x *excess) key() compactedLeg { return compactedLeg{x.leg, x.topic} }

// worthALook reports whether the backlog has grown enough since it was last
// looked through.
func (b *Broker) worthALook(x *excess) bool {
	last := min(b.compacted[x.key()], x.held)
	b.compacted[x.key()] = last
	return policy.Budget{Limit: x.limit, End: zone.BudgetCompact}.Compacts(x.held, x.held-last)
}

// heldNow returns what the destination holds back of the topic at present.
func (b *Broker) heldNow(x *excess) int64 {
	b.mu.RLock()
	defer b.mu.RUnlock()
	f := b.state.out[x.leg.Flow]
	if f == nil {
		return 0
	}
	l := f.leg(keyOf(x.leg.Flow, x.leg.City, x.leg.Group))
	if l == nil {
		return 0
	}
	return b.state.heldBack(f, l, x.topic, b.log.Lanes())
}

// overBudgets returns the backlogs of which the oldest are to be given up. Lanes
// of one destination share what is too much by what they hold.
func (b *Broker) overBudgets() []excess {
	topo := b.Topology()
	var list []excess
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, id := range sortedFlows(b.state.out) {
		f := b.state.out[id]
		for _, l := range f.legs {
			for i, name := range f.topics {
				t, label := topo.FindTopic(name), uint8(i+1)
				if t == nil || l.topicBacklog(label) == 0 {
					continue
				}
				held := b.state.heldBack(f, l, name, b.log.Lanes())
				budget := budgetOf(t)
				leg, _ := liveLeg(topo, id, l.key)
				x := excess{leg: leg, topic: name, index: f.index, label: label, limit: t.Budget, held: held}
				if free := budget.Excess(held); free > 0 {
					x.bytes = int64(float64(free)*float64(l.topicBacklog(label))/float64(held)) + 1
					list = append(list, x)
				} else if budget.Compacts(held, budget.Limit) {
					x.compact = true
					list = append(list, x)
				}
			}
		}
	}
	return list
}

// giveUpOldest declares the oldest records of a topic lost for a destination:
// in the log, before anybody acts on it.
func (b *Broker) giveUpOldest(ctx context.Context, x *excess) error {
	var numbers, first, through uint64
	for x.bytes > 0 {
		g, bytes, err := b.oldest(x)
		if err != nil {
			return err
		}
		if len(g.ranges) == 0 {
			break
		}
		if err := b.decide(ctx, g); err != nil {
			return err
		}
		x.bytes -= bytes
		if first == 0 {
			first = g.ranges[0].first
		}
		through = g.ranges[len(g.ranges)-1].through
		for _, r := range g.ranges {
			numbers += r.len()
		}
	}
	if numbers > 0 {
		b.logger.Error("backlog passed its budget: its oldest records are declared lost", "group", string(x.leg.Group), "city", string(x.leg.City),
			"flow", x.leg.Flow.Target, "topic", string(x.topic), "records", numbers, "first", first, "through", through, "held", x.held, "budget", x.limit)
	}
	return nil
}

// decide logs a decision and waits until it is folded. It may use the space that
// the log keeps back: without it no space would come free.
func (b *Broker) decide(ctx context.Context, g *giveUp) error {
	e, err := b.control(record.TypeGiveUp, g.append(nil))
	if err != nil {
		return err
	}
	return b.appendWait(ctx, &op{batch: commitlog.Batch{Entries: []commitlog.Entry{e}, Reserved: true}})
}

// oldest finds the oldest records of the topic above the cursor, as many as one
// decision may span and the excess needs.
func (b *Broker) oldest(x *excess) (*giveUp, int64, error) {
	g := &giveUp{leg: x.leg, kind: giveGap}
	var bytes int64
	buf := make([]queue.Entry, chunkNumbers)
	next, begun := b.lowest(x), uint64(0)
	for bytes < x.bytes {
		next = max(next, x.index.First()+1)
		n, err := x.index.Read(next-1, buf)
		if err != nil && next > x.index.First() {
			return nil, 0, err
		}
		if n == 0 {
			break
		}
		b.mu.RLock()
		l := b.state.legOf(x.leg.Flow, legKey{x.leg.City, x.leg.Group})
		for i := 0; i < n && l != nil && bytes < x.bytes && (begun == 0 || next-begun < maxGiven); i++ {
			if e := buf[i]; e.Label == x.label && l.pending(next) {
				if begun == 0 {
					begun = next
				}
				g.ranges = appendRange(g.ranges, numberRange{next, next})
				bytes += int64(e.Size)
			}
			next++
		}
		b.mu.RUnlock()
		if l == nil || (begun > 0 && next-begun >= maxGiven) {
			break
		}
	}
	return g, bytes, nil
}

// lowest returns the lowest number that may belong to the excess.
func (b *Broker) lowest(x *excess) uint64 {
	b.mu.RLock()
	defer b.mu.RUnlock()
	l := b.state.legOf(x.leg.Flow, legKey{x.leg.City, x.leg.Group})
	if l == nil {
		return 1
	}
	return max(l.cursor, l.gap.full) + 1
}

// pending reports whether the number is to be sent.
func (l *leg) pending(n uint64) bool { return n > l.cursor && !l.gap.has(n) && !l.skip.has(n) }
