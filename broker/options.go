package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/zone"
)

// Options configures a broker.
type Options struct {
	FS       disk.FS        // the disk
	Dir      string         // the broker's directory; made when absent
	Node     *zone.NodeInfo // this node in Topology
	Topology *zone.Topology
	Logger   *slog.Logger // nil discards
	Meter    metric.Meter // nil measures nothing
	Tracer   trace.Tracer // nil traces nothing; landing spans of traced records
	Rand     *rand.Rand   // makes incarnation and lineage ids; nil = seeded by the operating system
	// ChangeOf tells compaction what a record changes; nil refuses topologies with
	// at_budget: compact.
	ChangeOf ChangeOf
	// LeaveGroup is the last epoch of a store that was a member's and is to be the
	// group's only one; see commitlog.Options. Ignored with Member.
	LeaveGroup uint64
	// Alone is told before the store is written as that of the group's only one; see
	// commitlog.Options. Ignored with Member.
	Alone func(ctx context.Context) error
	// Member makes it one of a group with replicas; nil = the group's only one.
	Member *Member
	// Wall reads the wall clock: by it delayed messages fall due, old records are
	// dropped, and records say when they were stored; nil = the system's.
	Wall   func() time.Time
	Limits Limits

	tap func(groupLog) groupLog // lets tests see how the log is used; nil = as it is
}

// Limits bounds what a broker holds and how it spends time. The zero value of
// each field stands for the default named beside it.
type Limits struct {
	SegmentBytes  int64 // of a log segment; 0 = the log's default
	MaxBatchBytes int64 // one write of the log; 0 = the log's default
	QueueBytes    int64 // appends that wait for the log's writer; 0 = the log's default
	TailBytes     int64 // newest log entries kept in memory; 0 = the log's default

	SnapshotBytes int64         // log bytes between snapshots; 0 = 256 MiB, folded again in about a second
	SnapshotEvery time.Duration // longest time between snapshots while the log grows; 0 = 1 minute

	// ProgressDelay is how long acknowledgements and cursors wait for company
	// before they are appended: what a crash may repeat. 0 = 50 ms.
	ProgressDelay time.Duration

	MaxBatch     int           // messages of one Publish; 0 = 1024
	MaxReceive   int           // messages of one Receive; 0 = 1024
	MaxInvisible time.Duration // longest invisible time; 0 = 12 h, as in RocketMQ 5
	MaxInFlight  int           // deliveries in hands of one consumer group and topic; 0 = 100,000
	UnknownTries int           // attempts of a group that the topology does not declare; 0 = 16
	// MaxUndeclared bounds the subscriptions that clients make by asking: of
	// groups that the topology does not declare, and of dead-letter topics.
	// 0 = 1000.
	MaxUndeclared int
	// MaxFlows bounds the flows of other groups that land here. Every new store
	// of an origin begins new ones, and none is ever forgotten. 0 = 65,536.
	MaxFlows int
	// MaxIDs bounds the message ids that are remembered for idempotent topics, and
	// MaxTopicIDs those of one topic, at about 100 bytes each. Beyond them a send is
	// refused with KindBusy. 0 = DefaultMaxIDs and DefaultMaxTopicIDs: a window of 10
	// minutes at 1,747 messages a second of one topic.
	MaxIDs      int
	MaxTopicIDs int
	TrimEvery   time.Duration // how often retention is looked at; 0 = 10 s
	// ScrubRate is how many bytes a second of the sealed log are read in the background
	// to check them; 0 = DefaultScrubRate, negative = none. A round begins ScrubEvery after
	// the one before at the earliest (0 = 24 h), the first ScrubFirst after the start
	// (0 = 10 min).
	ScrubRate              int64
	ScrubEvery, ScrubFirst time.Duration
	// FlowHorizon is how long the origin keeps a record past its
	// acknowledgement, so that a destination that regressed can be served
	// again. 0 = 1 h.
	FlowHorizon time.Duration
	// DeadLetterRetention is how long dead letters are kept. 0 = 14 days.
	DeadLetterRetention time.Duration
	MaxWantWindow       int64 // bytes that a reader of landings may have sent ahead; 0 = 16 MiB
	// MaxTimers bounds the delayed messages that wait. A publish beyond it is
	// refused. 0 = DefaultMaxTimers: 200 MB of indexes, and the log that holds them.
	MaxTimers int
	// MaxHalves and MaxTopicHalves bound the half messages that wait for decisions,
	// of all topics and of each: some 250 bytes of memory each. 0 = DefaultMaxHalves and
	// DefaultMaxTopicHalves: what 6 s of immunity hold at 16,000 undecided sends a
	// second.
	MaxHalves, MaxTopicHalves int
	// MaxLite bounds the lite topics that the clients of one consumer group have named
	// of a topic, counted for each client: some 250 bytes of memory each. 0 = 1,000,000.
	MaxLite int
}

// Defaults of limits that operators may set. They, as all limits, say what is taken in;
// the fold knows none of them, so that a log means the same under any.
const (
	DefaultMaxTimers      = 10_000_000
	DefaultMaxHalves      = 200_000
	DefaultMaxTopicHalves = 100_000
	DefaultMaxIDs         = 1 << 21
	DefaultMaxTopicIDs    = 1 << 20
)

// Validate reports every fault of the options.
func (o *Options) Validate() error {
	var errs []error
	if o.FS == nil {
		errs = append(errs, errors.New("no file system"))
	}
	if o.Dir == "" {
		errs = append(errs, errors.New("no directory"))
	}
	switch {
	case o.Topology == nil:
		errs = append(errs, errors.New("no topology"))
	case o.Node == nil:
		errs = append(errs, errors.New("no node"))
	case o.Node.Group == nil:
		errs = append(errs, fmt.Errorf("node %s is not of a broker group", o.Node.Name))
	case o.Topology.FindGroup(o.Node.Group.Name) == nil:
		errs = append(errs, fmt.Errorf("group %s of node %s is not in the topology", o.Node.Group.Name, o.Node.Name))
	}
	return errors.Join(errs...)
}

func orDefault[T int | int64 | time.Duration](v, def T) T {
	if v <= 0 {
		return def
	}
	return v
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Meter == nil {
		o.Meter = metricnoop.NewMeterProvider().Meter("")
	}
	if o.Wall == nil {
		o.Wall = wallNow
	}
	l := &o.Limits
	l.SnapshotBytes = orDefault(l.SnapshotBytes, 256<<20)
	l.SnapshotEvery = orDefault(l.SnapshotEvery, time.Minute)
	l.ProgressDelay = orDefault(l.ProgressDelay, 50*time.Millisecond)
	l.MaxBatch = orDefault(l.MaxBatch, 1024)
	l.MaxReceive = orDefault(l.MaxReceive, 1024)
	l.MaxInvisible = orDefault(l.MaxInvisible, 12*time.Hour)
	l.MaxInFlight = orDefault(l.MaxInFlight, 100_000)
	l.UnknownTries = orDefault(l.UnknownTries, 16)
	l.MaxUndeclared = orDefault(l.MaxUndeclared, 1000)
	l.MaxFlows = orDefault(l.MaxFlows, 1<<16)
	l.MaxIDs = orDefault(l.MaxIDs, DefaultMaxIDs)
	l.MaxTopicIDs = min(orDefault(l.MaxTopicIDs, DefaultMaxTopicIDs), l.MaxIDs)
	l.TrimEvery = orDefault(l.TrimEvery, 10*time.Second)
	l.ScrubRate = orDefault(l.ScrubRate, DefaultScrubRate)
	l.ScrubEvery = orDefault(l.ScrubEvery, 24*time.Hour)
	l.ScrubFirst = orDefault(l.ScrubFirst, scrubFirst)
	l.FlowHorizon = orDefault(l.FlowHorizon, time.Hour)
	l.DeadLetterRetention = orDefault(l.DeadLetterRetention, 14*24*time.Hour)
	l.MaxHalves = orDefault(l.MaxHalves, DefaultMaxHalves)
	l.MaxTopicHalves = min(orDefault(l.MaxTopicHalves, DefaultMaxTopicHalves), l.MaxHalves)
	l.MaxWantWindow = orDefault(l.MaxWantWindow, 16<<20)
	l.MaxLite = orDefault(l.MaxLite, 1_000_000)
	l.MaxTimers = orDefault(l.MaxTimers, DefaultMaxTimers)
	return o
}
