package broker

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/broker/tails"
	"github.com/mqrouter/mqrouter/broker/timer"
	"github.com/mqrouter/mqrouter/broker/transaction"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/internal/loglimit"
	"github.com/mqrouter/mqrouter/internal/tracing"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Broker is one broker of a zone. Its methods are safe for concurrent use.
type Broker struct {
	fs     disk.FS
	dir    string
	limits Limits
	logger *slog.Logger
	self   zone.Group
	node   zone.Node
	start  time.Time // origin of consumer.Instant

	changeOf  ChangeOf               // nil: nothing is compacted
	compacted map[compactedLeg]int64 // bytes held when last looked through; belongs to who has overUse

	log     groupLog
	member  *Member // nil: alone
	scrub   *commitlog.Scrubber
	shared  *commitlog.Log // of a member: the log as shipping sees it; nil when alone
	tails   *tails.Store   // of a member: what it had and its group has not; nil when alone
	role    atomic.Uint32  // a Role
	deposed chan struct{}  // closed when a master has become none
	indexes *queue.Store
	sealer  *consumer.Sealer
	metrics *metrics
	tracer  *tracing.Tracer // nil = off
	damage  loglimit.Limit  // lines about damaged messages
	healed  int             // indexes that opening made anew; not changed later
	view    atomic.Pointer[view]

	leadable atomic.Pointer[verdict] // of CanLead, the last one

	ctx    context.Context // ends when Close begins
	cancel context.CancelFunc
	loops  sync.WaitGroup

	kick     chan struct{} // capacity 1: the progress loop has something to do
	snapKick chan struct{} // capacity 1: a snapshot is due
	legKick  chan struct{} // capacity 1: LegsChanged

	receiptKick  chan struct{} // capacity 1: receipts may have to be given
	receiptsWait atomic.Pointer[[]ReceiptsWaiting]
	overKick     chan struct{} // capacity 1: a backlog may have passed its budget
	dueKick      chan struct{} // capacity 1: a delayed message came that is due soon, or what blocks some may be gone
	overUse      chan struct{} // capacity 1: held by who compares backlogs with budgets
	failed       chan struct{} // closed with the first failure
	failErr      error         // why; written once before failed closes
	failOnce     sync.Once

	// gate lets calls that change what is in consumers' hands finish before
	// Close makes it durable, and refuses them from then on.
	gate    sync.RWMutex
	closing bool // guarded by gate

	closeOnce sync.Once
	closeErr  error
	topoMu    sync.Mutex // one ApplyTopology at a time
	replaying sync.Mutex // one Replay at a time

	alive  atomic.Pointer[func(string, uint64) bool]
	caller atomic.Pointer[Caller]

	liteSeed   maphash.Seed
	liteNotify atomic.Pointer[func(string, zone.Topic, string)]
	liteMoving sync.Mutex // one moveLite at a time
	deltas     *deltas
	lites      liteArriving

	calls map[CallKind]callHandler // what other groups of the zone may ask; not changed after Open

	offsetsFull *rate.Limiter // of offsets that are set while the disk is full

	held atomic.Pointer[map[subKey]int64] // log bytes that subscriptions hold back, as of the last look; nil before it

	clock     *timer.Clock     // by which delayed messages fall due
	wall      func() time.Time // the wall clock
	dueBefore atomic.Int64     // the due loop wants to know of what is due before (Unix milliseconds)
	dueAll    atomic.Bool      // the due loop is to try everything that is blocked
	timerHold atomic.Int64     // log bytes that delayed messages held back at the last look; -1 before it
	due       dueStatus        // what the due loop tells of itself

	halves        halves
	publications  sync.Pool // of *publication
	flowsRefused  atomic.Uint64
	onceRefused   atomic.Uint64 // sends refused since a window was full
	timersRefused atomic.Uint64 // publishes refused since as many delayed messages wait as may
	oncePending   atomic.Int64  // new messages of idempotent topics between their test and their fold

	// mu guards the fold's state. The fold holds it while it applies what was
	// committed, readers while they look something up; nobody waits for the
	// disk, the log or a peer under it, but for index reads and flushes.
	mu        sync.RWMutex
	state     *state
	settles   map[flow.Leg]settled     // settlements that wait for company
	reads     map[subKey]readTo        // progress of readers of landings that waits for company
	holding   map[*hands]struct{}      // whose dispatcher exists
	snapAt    record.Position          // position of the newest snapshot
	trimAt    record.Position          // position of the one before: what a trim must leave
	snapNeeds map[record.FlowID]uint64 // what the state of the newest snapshot needs of flows' indexes; see indexNeeds
	trimNeeds map[record.FlowID]uint64 // likewise the one before; nil = everything

	cold      bool            // the log is behind the snapshot that the store was given: nothing is folded yet
	coldUntil record.Position // position of that snapshot; not changed after opening
	warmTo    record.Position // while the state is restored: where it ends
	led       chan struct{}   // closed when ledEpoch has begun; nil before Promote
	ledEpoch  uint64
	newest    *kept // newest snapshot; nil = there is none
	lent      int   // snapshots that are being given to replicas: nothing that they name may go
}

// Open opens the broker in its directory: it recovers the log, restores the
// fold from the newest snapshot that is of this log, folds what follows, begins
// a new lineage and applies the topology. The context bounds opening only.
func Open(ctx context.Context, o Options) (*Broker, error) {
	if err := o.Validate(); err != nil {
		return nil, &Error{Op: "open", Kind: KindInvalid, Err: err}
	}
	o = o.withDefaults()
	b := &Broker{
		changeOf: o.ChangeOf, compacted: map[compactedLeg]int64{},
		damage: loglimit.Limit{Lines: damageLines, Window: damageWindow},
		fs:     o.FS, dir: o.Dir, limits: o.Limits, logger: o.Logger, start: time.Now(),
		self: o.Node.Group.Name, node: o.Node.Name,
		kick: make(chan struct{}, 1), snapKick: make(chan struct{}, 1), legKick: make(chan struct{}, 1), overKick: make(chan struct{}, 1), dueKick: make(chan struct{}, 1), receiptKick: make(chan struct{}, 1), overUse: make(chan struct{}, 1),
		halves: newHalves(),
		failed: make(chan struct{}), settles: map[flow.Leg]settled{}, reads: map[subKey]readTo{}, holding: map[*hands]struct{}{},
		clock: timer.NewClock(o.Wall), wall: o.Wall, liteSeed: maphash.MakeSeed(), deltas: newDeltas(), offsetsFull: rate.NewLimiter(offsetsOnFull, offsetsAtOnce),
		member: o.Member, deposed: make(chan struct{}),
	}
	if b.member != nil {
		b.role.Store(uint32(RoleReplica))
	}
	b.timerHold.Store(-1)
	b.calls = b.callTable()
	var err error
	if b.tracer, err = tracing.New(o.Tracer, o.Meter); err != nil {
		return nil, err
	}
	v, err := b.checkTopology(o.Topology)
	if err != nil {
		return nil, err
	}
	b.view.Store(v)
	b.ctx, b.cancel = context.WithCancel(context.Background())
	if err := b.openStores(ctx, o); err != nil {
		return nil, errors.Join(err, b.abandon())
	}
	b.log.Start()
	b.loops.Go(b.snapshotLoop)
	b.loops.Go(b.trimLoop)
	if b.limits.ScrubRate > 0 {
		b.loops.Go(b.scrubLoop)
	}
	if b.member != nil {
		return b, nil
	}
	if err := b.ApplyTopology(ctx, o.Topology); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	b.lead()
	return b, nil
}

// openStores opens log, indexes and handle secret, and restores the fold.
func (b *Broker) openStores(ctx context.Context, o Options) error {
	if err := b.fs.MkdirAll(b.dir); err != nil {
		return openError(err)
	}
	if err := b.finishInstall(o); err != nil {
		return openError(err)
	}
	var keep func(context.Context, record.Position, record.Position) error
	if b.member != nil {
		keep = b.keepTail
		if b.tails = b.member.Tails; b.tails == nil {
			b.tails = NewTails(b.fs, b.dir)
		}
	}
	log, err := commitlog.Open(ctx, commitlog.Options{
		FS: b.fs, Dir: path.Join(b.dir, "log"), Group: b.self, Rand: o.Rand,
		SegmentBytes: o.Limits.SegmentBytes, MaxBatchBytes: o.Limits.MaxBatchBytes,
		QueueBytes: o.Limits.QueueBytes, TailBytes: o.Limits.TailBytes,
		Logger: o.Logger, Meter: o.Meter, Deliver: b.deliver, Follow: b.member != nil, LeaveGroup: o.LeaveGroup, Alone: o.Alone, Keep: keep,
	})
	if err != nil {
		return openError(err)
	}
	b.log, b.scrub = log, commitlog.NewScrubber(log)
	if b.member != nil {
		b.shared = log
	}
	if o.tap != nil {
		b.log = o.tap(log)
	}
	if err := b.removeTemps(); err != nil { // under the log's lock of the folder
		return openError(err)
	}
	secret, err := b.loadSecret()
	if err != nil {
		return openError(err)
	}
	b.sealer, b.halves.sealer = consumer.NewSealer(secret), transaction.NewSealer(secret)
	b.indexes, err = queue.Open(queue.Options{FS: b.fs, Dir: path.Join(b.dir, "index")})
	if err != nil {
		return openError(err)
	}
	if b.cold, err = b.behindSnapshot(); err != nil {
		return openError(err)
	}
	if b.cold {
		b.state = b.emptyState()
	} else if err := b.restore(ctx); err != nil {
		return openError(err)
	}
	if b.member == nil { // else Lead does
		b.scheduleAll()
	}
	if b.metrics, err = newMetrics(o.Meter, b); err != nil {
		return err
	}
	b.metrics.indexesHealed(b.healed)
	return nil
}

func openError(err error) error { return &Error{Op: "open", Kind: kindOfLog(err), Err: err} }

// abandon closes what a failed Open had opened.
func (b *Broker) abandon() error {
	b.cancel()
	var errs []error
	if b.indexes != nil {
		errs = append(errs, b.indexes.Close())
	}
	if b.log != nil {
		errs = append(errs, b.log.Close())
	}
	return errors.Join(errs...)
}

// Run waits until ctx ends or the broker fails, closes it and returns why it
// ended: nil after ctx.
func (b *Broker) Run(ctx context.Context) error {
	var err error
	select {
	case <-ctx.Done():
	case <-b.failed:
		err = b.failErr
	}
	return errors.Join(err, b.Close())
}

// Close stops receiving and publishing, makes the progress of consumers and
// cursors durable, writes a snapshot and closes the log. It waits for the
// broker's goroutines. A second Close returns what the first one did.
func (b *Broker) Close() error {
	b.closeOnce.Do(func() {
		b.gate.Lock()
		b.closing = true
		b.gate.Unlock()
		b.cancel()
		b.loops.Wait()
		var err error
		if b.member == nil {
			err = b.flushHeld(context.Background())
		} else if b.holdsLease() {
			ctx, cancel := context.WithTimeout(context.Background(), closeWait)
			err = b.flushHeld(ctx)
			cancel()
		}
		if serr := b.snapshot(context.Background()); serr != nil && err == nil {
			err = serr
		}
		b.metrics.close()
		// The log first: its deliveries write the indexes.
		b.closeErr = errors.Join(err, b.log.Close(), b.indexes.Close())
	})
	return b.closeErr
}

// fail records the first failure after which the fold cannot go on. A master is none
// any more: others can go on.
func (b *Broker) fail(err error) {
	b.failOnce.Do(func() {
		b.failErr = err
		b.logger.Error("broker stops", "group", string(b.self), "err", err)
		close(b.failed)
		if b.member != nil {
			b.depose(err)
		}
	})
}

// failure returns the first failure, or nil.
func (b *Broker) failure() error {
	select {
	case <-b.failed:
		return b.failErr
	default:
		return nil
	}
}

// ready returns nil, or why the broker takes no calls.
func (b *Broker) ready(op string) error {
	if b.ctx.Err() != nil {
		return &Error{Op: op, Kind: KindClosed}
	}
	if err := b.failure(); err != nil {
		return &Error{Op: op, Kind: KindStopped, Err: err}
	}
	return b.leads(op)
}

// enter begins a call that changes what is in consumers' hands; nil means that
// the caller must call leave, soon.
func (b *Broker) enter(op string) error {
	b.gate.RLock()
	if b.closing {
		b.gate.RUnlock()
		return &Error{Op: op, Kind: KindClosed}
	}
	return nil
}

func (b *Broker) leave() { b.gate.RUnlock() }

// now returns the monotonic time since the broker opened.
func (b *Broker) now() consumer.Instant { return consumer.Instant(time.Since(b.start)) }

// Topology returns the topology in force. It does not block.
func (b *Broker) Topology() *zone.Topology { return b.view.Load().topo }

// Group returns this broker's group in the topology in force.
func (b *Broker) Group() *zone.GroupInfo { return b.view.Load().group }

// Zone returns this broker's zone in the topology in force.
func (b *Broker) Zone() *zone.ZoneInfo { return b.view.Load().zone }

// SetLiveness sets who is asked at the expiry of a Renew delivery whether its client
// still lives; without it every client counts as living. At the first expiries it is
// asked by the connection, too, that was to bring the delivery (ReceiveRequest.Link):
// when that has broken, the client may not know that it has the message. Later on
// that is certain, and link is 0. f must not block or call the broker.
func (b *Broker) SetLiveness(f func(clientID string, link uint64) bool) { b.alive.Store(&f) }

// ClientsGone asks at once, and not only at the next expiry, whether these clients
// still live (SetLiveness): what one of them that does not has in hands under Renew
// comes back after a second, to whoever receives, as another attempt. Handles stay
// good until then. It looks at everything in hands: call it for many at a time.
func (b *Broker) ClientsGone(clientIDs []string) {
	gone := make(map[string]struct{}, len(clientIDs))
	for _, id := range clientIDs {
		gone[id] = struct{}{}
	}
	for _, h := range b.handsList() {
		h.disp.ClientsGone(b.now(), gone)
	}
	poke(b.kick)
}

func (b *Broker) isAlive(client string, link uint64) bool {
	f := b.alive.Load()
	return f == nil || (*f)(client, link)
}

// poke makes a send to a channel of capacity 1 that never blocks.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// kindOfLog returns the kind of an error of the log or the disk.
func kindOfLog(err error) Kind {
	var corrupt *commitlog.CorruptError
	var own *Error
	switch {
	case errors.As(err, &own):
		return own.Kind
	case errors.Is(err, commitlog.ErrFull), disk.IsFull(err):
		return KindDiskFull
	case errors.Is(err, commitlog.ErrStopped):
		return KindStopped
	case errors.Is(err, commitlog.ErrClosed):
		return KindClosed
	case errors.Is(err, commitlog.ErrTooLarge):
		return KindTooLarge
	case errors.As(err, &corrupt):
		return KindCorrupt
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return KindBusy
	}
	return KindInternal
}
