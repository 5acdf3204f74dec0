package broadcast

import (
	"context"
	"fmt"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Applier is a cache that changes are applied to. The place and the watermarks
// of a topic live in the cache that they describe and move in the same atomic
// step as its data, so that a cache that lost its newest part says so itself.
//
// Methods are safe for concurrent use and end with ctx. Several topics may
// share an applier; each topic has one caller of Apply at a time.
type Applier interface {
	// Load returns where the cache stands in a topic; the zero Progress when it has
	// applied nothing of it.
	Load(ctx context.Context, topic zone.Topic) (Progress, error)
	// Apply does the whole batch, in order, or nothing of it. It keeps nothing
	// of b. It returns *MovedError when the cache does not stand at b.From. After
	// any other error nobody knows whether the batch was applied: the caller
	// gives the same batch again, and learns by a *MovedError that it was.
	//
	// A batch with an OpFlushPrefix has no other change. It is not atomic: the
	// keys go one after another, and the place moves when all are gone.
	Apply(ctx context.Context, b *Batch) (Result, error)
	// Flush drops every value, of all topics, and keeps the fences for at least the
	// horizon. Repeating it
	// does no harm.
	Flush(ctx context.Context, horizon time.Duration) error
	// Get returns what the cache has of a key.
	Get(ctx context.Context, key string) (Entry, error)
}

// Progress is where a cache stands in a topic.
type Progress struct {
	Place Place
	Marks []Mark
}

// Batch is what an Applier does in one step.
type Batch struct {
	Topic   zone.Topic
	From    Place // where the cache must stand
	To      Place // where it stands then; its incarnation is not 0
	Changes []Change
	Marks   []Mark          // watermarks that move
	Drop    []record.FlowID // watermarks that go
	Now     time.Time
	Horizon time.Duration // how long a tombstone is kept
}

// Result counts what became of the changes of a batch.
type Result struct {
	Applied    int // the key has its value, or none, because of the change
	Superseded int // the cache had the same or something newer
}

// MovedError says that a cache is not where the batch begins: it lost its
// newest part, it was emptied, or somebody else has applied changes to it.
type MovedError struct {
	Topic    zone.Topic
	From, At Place // expected and found
}

// Error implements error.
func (e *MovedError) Error() string {
	return fmt.Sprintf("broadcast: the cache stands at offset %d of store %016x of topic %s, not at %d of %016x",
		e.At.Offset, uint64(e.At.Incarnation), e.Topic, e.From.Offset, uint64(e.From.Incarnation))
}

// Entry is what a cache has of a key.
type Entry struct {
	Found   bool // Value is the key's value
	Deleted bool // there is no value as of Version: the key was deleted, flushed, expired or dropped
	Version uint64
	Value   []byte // the caller's
}
