package flow

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	// maxTopics is how many topics an Outbox learns about at a time. Each takes up to
	// Limits.sampleBytes of samples, or 1.7 MB for a dictionary's two encoders.
	maxTopics = 8
	// topicIdle is how long the batches of a topic have to stay away before another
	// topic takes its place.
	topicIdle = 10 * time.Minute
	// maxDictBatch is the data above which a batch is packed without a dictionary,
	// and does as well without one: records have each other to refer to. Bytes.
	maxDictBatch = 8 << 10
	// minDictBatch is the data below which a batch goes out as it is, bytes: what a
	// frame and its packet take beside it is more.
	minDictBatch = 128
	// maxSample is the largest record that is a sample, bytes.
	maxSample = 4 << 10
	// sampleEvery is one of how many batches gives a sample, so that they are of more
	// than one moment.
	sampleEvery = 4
	// learnRest is how long a topic rests when its dictionary did not pay, or does not
	// any more. It doubles with each failure in a row up to learnRestMax.
	learnRest, learnRestMax = 10 * time.Minute, 4 * time.Hour
	// checkEvery is one of how many batches with a dictionary are packed without it as
	// well, and checks how many of these decide whether it still pays.
	checkEvery, checks = 64, 32
	// staleRatio is the size with a dictionary, in parts of that without, above which
	// it is given up. Above dictionaryRatio, so that it does not come and go.
	staleRatio = 0.93
	// deafRest is how long a destination that refused what a dictionary was needed for
	// gets none.
	deafRest = time.Hour
)

// library holds the dictionaries of an Outbox, one a topic, and what they are made
// of. Every lane uses the same. Safe for concurrent use.
type library struct {
	log   *slog.Logger
	met   *outboxMetrics
	plain *zstd.Encoder
	bytes int         // of samples that one dictionary is made of
	ready chan *topic // to run; capacity maxTopics, and each topic is in it once at most

	mu     sync.Mutex
	topics map[string]*topic        // guarded by mu
	deaf   map[zone.Group]time.Time // destinations that get none, and until when. Guarded by mu
}

// topic is what a library knows of one.
type topic struct {
	name    string
	current atomic.Pointer[dictionary] // nil = none
	seen    time.Time                  // guarded by library.mu

	mu      sync.Mutex
	samples [][]byte      // guarded by mu
	bytes   int           // of samples; guarded by mu
	batches int           // since the last sample or check; guarded by mu
	busy    bool          // it is in library.ready, or trained; guarded by mu
	until   time.Time     // nothing is learnt before; guarded by mu
	rest    time.Duration // the next one; guarded by mu
	checked int           // guarded by mu
	with    int           // bytes of the batches checked; guarded by mu
	without int           // what they would have had; guarded by mu
}

func newLibrary(o *Outbox) *library {
	return &library{
		log: o.log, met: o.met, plain: o.encoder, bytes: o.lim.sampleBytes, ready: make(chan *topic, maxTopics),
		topics: make(map[string]*topic), deaf: make(map[zone.Group]time.Time),
	}
}

// topic returns what is known of a topic, or nil when there are too many others.
func (lib *library) topic(name []byte, now time.Time) *topic {
	lib.mu.Lock()
	defer lib.mu.Unlock()
	t := lib.topics[string(name)]
	if t == nil {
		if len(lib.topics) >= maxTopics && !lib.evict(now) {
			return nil
		}
		t = &topic{name: string(name), rest: learnRest}
		lib.topics[t.name] = t
	}
	t.seen = now
	return t
}

// evict makes room for a topic. lib.mu is held.
func (lib *library) evict(now time.Time) bool {
	for name, t := range lib.topics {
		if now.Sub(t.seen) >= topicIdle {
			delete(lib.topics, name)
			return true
		}
	}
	return false
}

// learn takes a record, as it stands in a batch, for a sample when one is due.
func (lib *library) learn(t *topic, rec []byte, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.batches++; t.batches < sampleEvery || t.busy || now.Before(t.until) || len(rec) > maxSample {
		return
	}
	t.batches = 0
	t.samples = append(t.samples, wire.AppendItem(nil, rec))
	t.bytes += len(rec)
	if t.bytes < lib.bytes || len(t.samples) < minSamples {
		return
	}
	select {
	case lib.ready <- t:
		t.busy = true
	default: // the next sample asks again; cannot be, see ready
	}
}

// run trains what is ready, one dictionary at a time, until ctx ends.
func (lib *library) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case t := <-lib.ready:
			lib.train(t)
		}
	}
}

// train makes the dictionary of a topic that has all samples.
func (lib *library) train(t *topic) {
	t.mu.Lock()
	samples := t.samples
	t.mu.Unlock()
	d, err := train(samples, lib.plain)
	lib.met.trained(err == nil)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.samples, t.bytes, t.batches, t.busy = nil, 0, 0, false
	switch {
	case err == nil:
		t.rest = learnRest
		t.current.Store(d)
		lib.log.Info("small batches of a topic are packed with a dictionary from now on",
			"topic", t.name, "bytes", len(d.content), "saves", d.saves)
		return
	case !errors.Is(err, errUseless):
		lib.log.Warn("no dictionary for a topic", "topic", t.name, "err", err)
	}
	t.rests(time.Now())
}

// rests lets nothing be learnt for a while. t.mu is held.
func (t *topic) rests(now time.Time) {
	t.until = now.Add(t.rest)
	t.rest = min(2*t.rest, learnRestMax)
}

// due reports whether the batch that was packed with the dictionary is to be packed
// without it as well.
func (t *topic) due() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.batches++
	if t.batches < checkEvery {
		return false
	}
	t.batches = 0
	return true
}

// check tells what a batch took with d, and what without. A dictionary that does not
// pay any more is given up.
func (lib *library) check(t *topic, d *dictionary, with, without int, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.checked, t.with, t.without = t.checked+1, t.with+with, t.without+without
	if t.checked < checks {
		return
	}
	stale := float64(t.with) > staleRatio*float64(t.without)
	t.checked, t.with, t.without = 0, 0, 0
	if stale && t.current.CompareAndSwap(d, nil) {
		lib.log.Info("the dictionary of a topic does not pay any more", "topic", t.name)
		t.rests(now)
	}
}

// refused tells that a destination refused a session in which a dictionary was sent.
func (lib *library) refused(g zone.Group, now time.Time) {
	lib.mu.Lock()
	defer lib.mu.Unlock()
	for g, until := range lib.deaf {
		if now.After(until) {
			delete(lib.deaf, g)
		}
	}
	lib.deaf[g] = now.Add(deafRest)
}

// speaks reports whether a destination may be sent dictionaries.
func (lib *library) speaks(g zone.Group, now time.Time) bool {
	lib.mu.Lock()
	defer lib.mu.Unlock()
	return !now.Before(lib.deaf[g])
}

// shelf is what a lane knows of the dictionaries of its session. It belongs to the
// lane. The zero value is a session that takes none.
type shelf struct {
	keeps  int                     // dictionaries that the destination keeps
	told   []*dictionary           // what it has, oldest first; at most keeps
	missed map[*dictionary]float64 // bytes that each would have saved so far, had it been there
}

// worth reports whether a batch of so many bytes goes out with d, and whether the
// destination has d already. It gets d when that would have paid for itself in this
// session: what comes next is not known, and so d costs no more than twice what was
// the best to do.
func (s *shelf) worth(d *dictionary, raw int) (use, has bool) {
	for _, t := range s.told {
		if t == d {
			return true, true
		}
	}
	if s.missed == nil || len(s.missed) > 2*maxTopics {
		s.missed = make(map[*dictionary]float64)
	}
	s.missed[d] += d.saves * float64(raw)
	return s.missed[d] >= float64(len(d.content)), false
}

// sent tells that d is on its way to the destination.
func (s *shelf) sent(d *dictionary) {
	delete(s.missed, d)
	s.told = append(s.told, d)
	if len(s.told) > s.keeps {
		s.told = append(s.told[:0], s.told[1:]...)
	}
}

// dictionaryFor returns the dictionary that a batch is packed with, and its topic. It
// is nil when there is none, or none that pays.
func (l *lane) dictionaryFor(r *run) (t *topic, d *dictionary, has bool) {
	if l.shelf.keeps == 0 || r.topic == nil || r.raw < minDictBatch || r.raw > maxDictBatch {
		return nil, nil, false
	}
	now := time.Now()
	if t = l.o.library.topic(r.topic, now); t == nil {
		return nil, nil, false
	}
	d = t.current.Load()
	if d == nil {
		// What a dictionary is made of goes to any city.
		if r.free {
			l.o.library.learn(t, r.items[0].Record, now)
		}
		return nil, nil, false
	}
	use, has := l.shelf.worth(d, r.raw)
	if !use {
		return nil, nil, false
	}
	return t, d, has
}

// sendWith sends records packed with a dictionary, and before them the dictionary
// when the destination has it not.
func (l *lane) sendWith(ctx context.Context, c *conn, t *topic, d *dictionary, has bool, b *wire.Batch, r *run) error {
	if !has {
		p := wire.Dictionary{ID: d.id, Content: d.content}
		if err := l.send(ctx, c, wire.TypeDictionary, p.Append(l.payload[:0])); err != nil {
			return err
		}
		l.shelf.sent(d)
		l.met.dictionary(len(d.content))
	}
	l.scratch = appendData(l.scratch[:0], r)
	l.squeezed = d.encoder.EncodeAll(l.scratch, l.squeezed[:0])
	size := len(l.squeezed)
	b.Codec, b.Dictionary, b.RawSize, b.Data = wire.CodecZstd, d.id, uint32(r.raw), l.squeezed
	if size >= r.raw {
		b.Codec, b.Dictionary, b.Data, size = wire.CodecNone, 0, l.scratch, r.raw
	}
	last := r.items[len(r.items)-1].Number
	if err := l.sendData(ctx, c, b, last, r.raw, &r.traced, b.Append(l.payload[:0])); err != nil {
		return err
	}
	if t.due() {
		l.o.library.check(t, d, size, sizeWithout(l.scratch, l.o.encoder, &l.squeezed), time.Now())
	}
	return nil
}
