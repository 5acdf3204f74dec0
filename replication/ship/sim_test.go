package ship

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/coordinator/memory"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "run the simulation with this seed only, and log")
	seedsFlag = flag.Uint64("seeds", simSeeds, "run the simulation with this many seeds")
	firstFlag = flag.Uint64("first", 1, "first of the seeds")
)

const simGroup = zone.Group("g")

// simWorld is a broker group, its coordinator and the net between them, and what was
// seen from outside.
type simWorld struct {
	t      *testing.T
	ctx    context.Context
	rng    *rand.Rand
	net    *simNet
	nodes  []*simNode
	names  []zone.Node
	limits Limits
	quorum bool // some records are acknowledged once a majority has them
	book   memory.Book
	quiet  atomic.Bool // nobody publishes

	lease time.Duration             // that the next coordinator grants; 0 = the default
	alone atomic.Pointer[zone.Node] // the only node that the topology has for the group; nil = it has all

	mu        sync.Mutex
	office    *coordinator.Office // guarded by mu; nil = nobody decides
	offices   sync.WaitGroup
	endOffice context.CancelFunc
	last      uint64                           // last number given; guarded by mu
	acks      map[uint64]uint64                // record to epoch; guarded by mu
	ackEpoch  uint64                           // highest that has acknowledged; guarded by mu
	lines     map[simPlace]string              // what was written where; guarded by mu
	committed map[record.Position]simCommitted // guarded by mu
	faults    []string                         // guarded by mu
	counts    map[string]int                   // guarded by mu
	epochs    map[uint64]zone.Node             // who led; guarded by mu
}

type simPlace struct {
	lineage record.LineageID
	pos     record.Position
}

type simCommitted struct {
	next record.Position
	data string
}

func newSimWorld(t *testing.T, ctx context.Context, seed uint64) *simWorld {
	w := &simWorld{
		t: t, ctx: ctx, rng: rand.New(rand.NewPCG(seed, 1)), net: newSimNet(rand.New(rand.NewPCG(seed, 2))),
		acks: map[uint64]uint64{}, lines: map[simPlace]string{}, committed: map[record.Position]simCommitted{},
		counts: map[string]int{}, epochs: map[uint64]zone.Node{},
		limits: Limits{Chunk: 1 << 10, Window: 8 << 10, SyncBytes: 4 << 10, Near: 2 << 10, Close: 512, CatchUp: 1 << 20, SeedGrace: 5 * time.Second, MaxHoldOff: 4 * time.Second},
	}
	w.net.serve = w.serve
	logger := slog.New(slog.DiscardHandler)
	if *seedFlag != 0 {
		logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	w.quorum = w.rng.IntN(2) == 0
	for i := range 3 + w.rng.IntN(3) {
		n := &simNode{
			w: w, name: zone.Node(fmt.Sprintf("n%d", i)), rng: rand.New(rand.NewPCG(seed, 10+uint64(i))),
			rate: 0.96 + 0.08*w.rng.Float64(), disk: &simDisk{},
		}
		n.log = logger.With("at", string(n.name))
		w.nodes, w.names = append(w.nodes, n), append(w.names, n.name)
	}
	w.takeOver()
	for _, n := range w.nodes {
		n.start()
	}
	return w
}

// takeOver lets another coordinator decide.
func (w *simWorld) takeOver() {
	w.evict()
	o := coordinator.NewOffice(coordinator.OfficeOptions{
		Book: w.book.TakeOver(), Timing: coordinator.Timing{Lease: w.lease}, Alone: w.aloneIn, Lineage: func() record.LineageID { return record.LineageID(w.number()) },
		Group: func(g zone.Group) (coordinator.Group, bool) {
			return coordinator.Group{Name: g, Members: w.names}, w.alone.Load() == nil
		},
		Groups: func() []zone.Group {
			if w.alone.Load() != nil {
				return nil
			}
			return []zone.Group{simGroup}
		},
	})
	ctx, cancel := context.WithCancel(w.ctx)
	w.mu.Lock()
	w.office, w.endOffice = o, cancel
	w.mu.Unlock()
	w.offices.Go(func() { _ = o.Run(ctx) })
}

// evict leaves nobody who decides.
func (w *simWorld) evict() {
	w.book.Evict()
	w.mu.Lock()
	end := w.endOffice
	w.office, w.endOffice = nil, nil
	w.mu.Unlock()
	if end != nil {
		end()
	}
	w.offices.Wait()
}

func (w *simWorld) serve(at, from zone.Node, s wire.Stream) bool {
	return w.node(at).serve(from, s)
}

func (w *simWorld) node(name zone.Node) *simNode {
	return w.nodes[slices.Index(w.names, name)]
}

// number returns a number that nothing else has.
func (w *simWorld) number() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last++
	return w.last
}

func (w *simWorld) fault(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faultLocked(format, args...)
}

func (w *simWorld) faultLocked(format string, args ...any) {
	w.faults = append(w.faults, fmt.Sprintf("%s: ", time.Since(simStart))+fmt.Sprintf(format, args...))
}

// simStart is when every bubble's clock begins.
var simStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (w *simWorld) count(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[what]++
}

// wrote notes what a master writes: a position is given out once in a lineage, and
// one node writes a lineage.
func (w *simWorld) wrote(node zone.Node, row record.LineageStart, f *simFrame) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if by, ok := w.epochs[row.Epoch]; ok && by != node {
		w.faultLocked("%s writes in epoch %d, as %s did", node, row.Epoch, by)
	}
	w.epochs[row.Epoch] = node
	place := simPlace{row.ID, f.pos}
	if _, ok := w.lines[place]; ok {
		w.faultLocked("%s: position %d is given out twice in lineage %d", node, f.pos, row.ID)
	}
	w.lines[place] = string(f.data)
}

// sawCommitted compares what a node takes for committed with what others did.
func (w *simWorld) sawCommitted(node zone.Node, f *simFrame) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was, ok := w.committed[f.pos]
	if !ok {
		w.committed[f.pos] = simCommitted{f.next, string(f.data)}
		return
	}
	if was.data != string(f.data) {
		w.faultLocked("%s: other bytes are committed at %d", node, f.pos)
	}
}

// acknowledged notes an acknowledgement to a publisher; kept says that it promises
// that the record outlives the master.
func (w *simWorld) acknowledged(node zone.Node, epoch, id uint64, kept bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if epoch < w.ackEpoch {
		w.faultLocked("%s acknowledges in epoch %d after %d has", node, epoch, w.ackEpoch)
	}
	w.ackEpoch = max(w.ackEpoch, epoch)
	if kept {
		w.acks[id] = epoch
	}
	w.counts["acknowledged"]++
}

// simClient is a node's way to the coordinator: requests and answers may be lost.
type simClient struct {
	w    *simWorld
	node zone.Node
}

var _ coordinator.Coordinator = (*simClient)(nil)

func (c *simClient) call(ctx context.Context, fn func(*coordinator.Office) error) error {
	ctx, cancel := context.WithTimeout(ctx, 8*time.Second)
	defer cancel()
	if err := c.w.net.pass(ctx, c.node, ""); err != nil {
		return &coordinator.Error{Op: "call", Kind: coordinator.KindNoQuorum, Err: err}
	}
	c.w.mu.Lock()
	o := c.w.office
	c.w.mu.Unlock()
	if o == nil {
		return &coordinator.Error{Op: "call", Kind: coordinator.KindNoQuorum}
	}
	err := fn(o)
	if perr := c.w.net.pass(ctx, "", c.node); perr != nil {
		return &coordinator.Error{Op: "call", Kind: coordinator.KindNoQuorum, Err: perr}
	}
	return err
}

func (c *simClient) term(ctx context.Context, fn func(*coordinator.Office) (coordinator.Term, error)) (t coordinator.Term, err error) {
	err = c.call(ctx, func(o *coordinator.Office) (err error) { t, err = fn(o); return err })
	return t, err
}

func (c *simClient) Renew(ctx context.Context, g zone.Group, s coordinator.Standing) (t coordinator.Term, l coordinator.Lease, err error) {
	err = c.call(ctx, func(o *coordinator.Office) (err error) { t, l, err = o.Renew(ctx, g, s); return err })
	if err != nil {
		return coordinator.Term{}, coordinator.Lease{}, err
	}
	return t, l, nil
}

func (c *simClient) Watch(ctx context.Context, g zone.Group, after uint64) (coordinator.Term, error) {
	return c.term(ctx, func(o *coordinator.Office) (coordinator.Term, error) { return o.Watch(ctx, g, after) })
}

func (c *simClient) ChangeSet(ctx context.Context, g zone.Group, epoch, version uint64, inSync, proposed []zone.Node) (coordinator.Term, error) {
	c.w.count("set asked")
	return c.term(ctx, func(o *coordinator.Office) (coordinator.Term, error) {
		return o.ChangeSet(ctx, g, epoch, version, inSync, proposed)
	})
}

func (c *simClient) Resign(ctx context.Context, g zone.Group, epoch uint64, to zone.Node) (coordinator.Term, error) {
	return c.term(ctx, func(o *coordinator.Office) (coordinator.Term, error) { return o.Resign(ctx, g, epoch, to) })
}

func (c *simClient) Failover(context.Context, zone.Group, coordinator.Order) (coordinator.Term, error) {
	return coordinator.Term{}, &coordinator.Error{Op: "failover", Kind: coordinator.KindRefused}
}

func (c *simClient) Terms(context.Context) ([]coordinator.Term, error) {
	return nil, &coordinator.Error{Op: "terms", Kind: coordinator.KindRefused}
}

// TestNoAcknowledgedRecordIsLost runs a schedule of faults for each seed. A seed
// fixes the schedule and every random choice, not the order in which goroutines that
// are ready at one simulated instant run: a rare failure may need -count.
func TestNoAcknowledgedRecordIsLost(t *testing.T) {
	seeds := make([]uint64, 0, *seedsFlag)
	for s := range *seedsFlag {
		seeds = append(seeds, *firstFlag+s)
	}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	total := map[string]int{}
	for _, seed := range seeds {
		if t.Failed() {
			return
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { simulate(t, seed, total) }) })
	}
	t.Logf("seen in %d seeds: %v", len(seeds), total)
}

func simulate(t *testing.T, seed uint64, total map[string]int) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := newSimWorld(t, ctx, seed)
	for range 40 {
		time.Sleep(time.Duration(w.rng.IntN(800)) * time.Millisecond)
		w.trouble()
	}
	w.heal()
	if !w.settle(60 * time.Second) {
		t.Errorf("the group does not come to rest: %s", w.describe())
	}
	w.check()
	w.stop(cancel)
	for i, f := range w.faults {
		if i < 10 {
			t.Error(f)
		}
	}
	if t.Failed() {
		t.Errorf("replay with: go test ./replication/ship -run TestNoAcknowledgedRecordIsLost -count 30 -seed %d", seed)
	}
	for what, n := range w.counts {
		total[what] += n
	}
	total["epochs"] += len(w.epochs)
}
