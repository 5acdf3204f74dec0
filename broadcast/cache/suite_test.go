package cache

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/broadcast"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

const horizon = time.Hour

// rig applies changes to a cache one batch after another, as a Sync does.
type rig struct {
	t     *testing.T
	a     broadcast.Applier
	at    broadcast.Place
	now   time.Time
	topic zone.Topic
}

func newRig(t *testing.T, a broadcast.Applier) *rig {
	return &rig{t: t, a: a, now: time.Now(), topic: "member"}
}

func (r *rig) batch(changes ...broadcast.Change) *broadcast.Batch {
	to := broadcast.Place{Group: "cz-sh-a", Incarnation: 0xFEDC_BA98_7654_3210, Offset: r.at.Offset + uint64(len(changes))}
	for i := range changes {
		if changes[i].Stored.IsZero() {
			changes[i].Stored = r.now
		}
	}
	return &broadcast.Batch{Topic: r.topic, From: r.at, To: to, Changes: changes, Now: r.now, Horizon: horizon}
}

// apply applies changes; a flush-prefix gets a batch of its own.
func (r *rig) apply(changes ...broadcast.Change) (total broadcast.Result) {
	r.t.Helper()
	for len(changes) > 0 {
		n := slices.IndexFunc(changes, func(c broadcast.Change) bool { return c.Op == broadcast.OpFlushPrefix })
		switch n {
		case -1:
			n = len(changes)
		case 0:
			n = 1
		}
		b := r.batch(changes[:n]...)
		res, err := r.a.Apply(r.t.Context(), b)
		if err != nil {
			r.t.Fatal(err)
		}
		r.at, changes = b.To, changes[n:]
		total.Applied += res.Applied
		total.Superseded += res.Superseded
	}
	return total
}

// want fails unless the key has the value; "-" is a fence without a value, ""
// nothing at all.
func (r *rig) want(key, value string, version uint64) {
	r.t.Helper()
	e, err := r.a.Get(r.t.Context(), key)
	if err != nil {
		r.t.Fatal(err)
	}
	got := ""
	switch {
	case e.Found:
		got = string(e.Value)
	case e.Deleted:
		got = "-"
	}
	if got != value || e.Version != version {
		r.t.Errorf("%s is %q of version %d, want %q of %d", key, got, e.Version, value, version)
	}
}

func set(key string, version uint64, value string) broadcast.Change {
	return broadcast.Change{Op: broadcast.OpSet, Key: key, Version: version, Value: []byte(value)}
}

func del(key string, version uint64) broadcast.Change {
	return broadcast.Change{Op: broadcast.OpDelete, Key: key, Version: version}
}

func flush(prefix string, version uint64) broadcast.Change {
	return broadcast.Change{Op: broadcast.OpFlushPrefix, Key: prefix, Version: version}
}

// conformance is what every applier promises. open returns an empty cache.
func conformance(t *testing.T, open func(t *testing.T) broadcast.Applier) {
	for name, test := range map[string]func(*testing.T, *rig){
		"SetDeleteSetInAnyOrderEndsWithTheLast": testReorder,
		"VersionsAreExact":                      testExactVersions,
		"ValuesAreKeptToTheByte":                testBytes,
		"EqualVersionsCannotDiverge":            testEqualVersions,
		"FlushPrefixCoversItsNamespaceOnly":     testFlushPrefix,
		"ForgottenTombstonesLetNothingOldIn":    testHorizon,
		"TimeToLive":                            testTTL,
		"PlaceAndMarksMoveWithTheData":          testState,
		"ABatchFromElsewhereDoesNothing":        testMoved,
		"FlushDropsValuesAndKeepsFences":        testFlush,
		"TopicsShareTheDataOnly":                testTopics,
		"EveryOrderConverges":                   testConverge,
	} {
		t.Run(name, func(t *testing.T) { test(t, newRig(t, open(t))) })
	}
	t.Run("ThreeCitiesConverge", func(t *testing.T) { testThreeCities(t, open) })
}

func testReorder(_ *testing.T, r *rig) {
	for i, order := range [][]broadcast.Change{
		{set("k", 1, "old"), del("k", 2), set("k", 3, "new")},
		{set("k", 1, "old"), set("k", 3, "new"), del("k", 2)},
		{del("k", 2), set("k", 1, "old"), set("k", 3, "new")},
		{del("k", 2), set("k", 3, "new"), set("k", 1, "old")},
		{set("k", 3, "new"), del("k", 2), set("k", 1, "old")},
		{set("k", 3, "new"), set("k", 1, "old"), del("k", 2)},
	} {
		key := fmt.Sprintf("k%d", i)
		for j := range order {
			order[j].Key = key
			r.apply(order[j])
		}
		r.want(key, "new", 3)
		r.apply(del(key, 4), set(key, 3, "new"), set(key, 1, "old"))
		r.want(key, "-", 4)
	}
	r.want("never", "", 0)
}

func testExactVersions(_ *testing.T, r *rig) {
	for i, v := range []uint64{1, 9, 1<<53 - 1, 1 << 53, 1<<63 - 1, math.MaxUint64 - 1} {
		key := fmt.Sprintf("k%d", i)
		r.apply(set(key, v+1, "new"), set(key, v, "old"))
		r.want(key, "new", v+1)
		r.apply(set(key+"b", v, "old"), set(key+"b", v+1, "new"))
		r.want(key+"b", "new", v+1)
	}
	r.apply(set("len", 9, "a"), set("len", 10, "b"), set("len", 8, "c"))
	r.want("len", "b", 10)
}

func testBytes(_ *testing.T, r *rig) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	r.apply(set("all bytes", 1, string(all)), set("空 {x} *?[a] \\ 'q' \"d\"", 2, "v"), set("empty", 3, ""), set("large", 4, strings.Repeat("x", 1<<20)))
	r.want("all bytes", string(all), 1)
	r.want("空 {x} *?[a] \\ 'q' \"d\"", "v", 2)
	r.want("empty", "", 3)
	if e, err := r.a.Get(r.t.Context(), "empty"); err != nil || !e.Found {
		r.t.Errorf("an empty value is %+v, %v", e, err)
	}
	r.want("large", strings.Repeat("x", 1<<20), 4)
}

func testEqualVersions(_ *testing.T, r *rig) {
	a, b := set("k", 5, "a"), set("k", 5, "b")
	winner := "a"
	if b.Rank() > a.Rank() {
		winner = "b"
	}
	r.apply(a, b)
	r.want("k", winner, 5)
	b.Key, a.Key = "l", "l"
	r.apply(b, a)
	r.want("l", winner, 5)
	if res := r.apply(a, b); res.Superseded != 2 {
		r.t.Errorf("a repeat: %+v", res)
	}
	r.apply(del("k", 5), set("k", 5, "a"))
	r.want("k", "-", 5)
}

func testFlushPrefix(_ *testing.T, r *rig) {
	r.apply(set("member:1", 3, "a"), set("member:2", 5, "b"), set("member:3", 6, "c"), set("memberx", 1, "d"), set("m*mber:1", 1, "e"), del("member:4", 2))
	if res := r.apply(flush("member:", 5)); res.Applied != 1 {
		r.t.Errorf("%+v", res)
	}
	r.want("member:1", "-", 5)
	r.want("member:2", "-", 5)
	r.want("member:3", "c", 6)
	r.want("member:4", "-", 5)
	r.want("member:9", "-", 5)
	r.want("memberx", "d", 1)
	r.want("m*mber:1", "e", 1)
	if res := r.apply(set("member:1", 5, "late"), set("member:9", 4, "late"), flush("member:", 5), flush("member:", 4)); res.Superseded != 4 {
		r.t.Errorf("%+v", res)
	}
	r.want("member:1", "-", 5)
	r.want("member:9", "-", 5)
	r.apply(set("member:1", 6, "new"), flush("m*", 9))
	r.want("member:1", "new", 6)
	r.want("m*mber:1", "-", 9)
	r.apply(flush("member:1", 7), set("member:10", 7, "x"), set("member:2", 7, "y"))
	r.want("member:1", "-", 7)
	r.want("member:10", "-", 7)
	r.want("member:2", "y", 7)
}

func testHorizon(_ *testing.T, r *rig) {
	old := set("k", 5, "old")
	old.Stored = r.now.Add(-horizon - time.Minute)
	r.apply(old)
	r.want("k", "-", 5)
	r.apply(set("l", 1, "a"))
	old.Key = "l"
	r.apply(old)
	r.want("l", "old", 5)
}

func testTTL(_ *testing.T, r *rig) {
	over, on := set("over", 2, "v"), set("on", 2, "v")
	over.TTL, over.Stored = time.Second, r.now.Add(-time.Minute)
	on.TTL = time.Hour
	r.apply(set("over", 1, "older"), over, on)
	r.want("over", "-", 2)
	r.want("on", "v", 2)
	r.apply(set("over", 1, "older"), set("on", 3, "stays"))
	r.want("over", "-", 2)
	r.want("on", "stays", 3)
}

func flowOf(origin zone.Group, store record.Incarnation) record.FlowID {
	return record.FlowID{Origin: origin, Incarnation: store, Target: "member", Channel: true, Class: zone.ClassUrgent}
}

func testState(t *testing.T, r *rig) {
	ctx := t.Context()
	if p, err := r.a.Load(ctx, r.topic); err != nil || !p.Place.Empty() || len(p.Marks) > 0 {
		t.Fatalf("an empty cache stands at %+v, %v", p, err)
	}
	a, b, a2 := broadcast.Mark{Flow: flowOf("rz01-a", 1), Lineage: 5, Epoch: 1, Number: math.MaxUint64}, broadcast.Mark{Flow: flowOf("rz02-a", 2), Lineage: 6, Epoch: 2, Number: 1},
		broadcast.Mark{Flow: flowOf("rz01-a", 3), Lineage: 7, Epoch: 1, Number: 1}
	step := func(fill func(*broadcast.Batch), want ...broadcast.Mark) {
		t.Helper()
		batch := r.batch(set("k", r.at.Offset+1, "v"))
		fill(batch)
		if _, err := r.a.Apply(ctx, batch); err != nil {
			t.Fatal(err)
		}
		r.at = batch.To
		p, err := r.a.Load(ctx, r.topic)
		if err != nil || p.Place != r.at || !reflect.DeepEqual(p.Marks, want) {
			t.Fatalf("stands at %+v, %v; want %+v and %+v", p, err, r.at, want)
		}
	}
	step(func(x *broadcast.Batch) { x.Marks = []broadcast.Mark{a, b} }, a, b)
	b.Number = 2
	step(func(x *broadcast.Batch) { x.Marks = []broadcast.Mark{b} }, a, b)
	step(func(x *broadcast.Batch) { x.Marks, x.Drop = []broadcast.Mark{a2}, []record.FlowID{a.Flow} }, a2, b)
	step(func(x *broadcast.Batch) { x.To.Incarnation, x.To.Offset, x.To.Group = 9, 0, "cz-sh-b" }, a2, b)
	step(func(x *broadcast.Batch) { x.Changes = nil; x.To.Incarnation, x.To.Offset = 9, math.MaxUint64 }, a2, b)
}

func testMoved(t *testing.T, r *rig) {
	r.apply(set("k", 1, "a"), set("k", 2, "b"))
	for name, from := range map[string]broadcast.Place{
		"behind": {Incarnation: r.at.Incarnation, Offset: 1}, "ahead": {Incarnation: r.at.Incarnation, Offset: 3},
		"another store": {Incarnation: 4, Offset: 2}, "empty": {},
	} {
		for _, c := range []broadcast.Change{set("k", 9, "x"), flush("k", 9)} {
			b := r.batch(c)
			b.From = from
			_, err := r.a.Apply(t.Context(), b)
			var moved *broadcast.MovedError
			if !errors.As(err, &moved) || moved.At.Incarnation != r.at.Incarnation || moved.At.Offset != 2 {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	r.want("k", "b", 2)
}

func testFlush(t *testing.T, r *rig) {
	r.apply(set("a", 3, "v"), set("b", 1, "w"), del("c", 2))
	for range 2 {
		if err := r.a.Flush(t.Context(), horizon); err != nil {
			t.Fatal(err)
		}
	}
	r.want("a", "-", 3)
	r.want("b", "-", 1)
	r.apply(set("a", 2, "stale"), set("b", 2, "new"))
	r.want("a", "-", 3)
	r.want("b", "new", 2)
	if p, err := r.a.Load(t.Context(), r.topic); err != nil || p.Place != r.at {
		t.Errorf("the place moved to %+v, %v", p, err)
	}
}

func testTopics(t *testing.T, r *rig) {
	other := newRig(t, r.a)
	other.topic = "prices"
	r.apply(set("k", 1, "a"))
	other.apply(set("k", 2, "b"), set("p", 1, "c"))
	r.apply(set("k", 1, "a"))
	r.want("k", "b", 2)
	for topic, at := range map[zone.Topic]uint64{"member": 2, "prices": 2, "none": 0} {
		if p, err := r.a.Load(t.Context(), topic); err != nil || p.Place.Offset != at {
			t.Errorf("%s stands at %+v, %v", topic, p, err)
		}
	}
}

// model is the plain meaning of a set of changes: per key the greatest rank,
// unless a flush covers it.
type model map[string]broadcast.Change

func (m model) of(changes []broadcast.Change) (model, map[string]uint64) {
	spaces := map[string]uint64{}
	for _, c := range changes {
		if c.Op == broadcast.OpFlushPrefix {
			spaces[c.Key] = max(spaces[c.Key], c.Version)
		} else if old, ok := m[c.Key]; !ok || c.Rank() > old.Rank() {
			m[c.Key] = c
		}
	}
	return m, spaces
}

func (r *rig) wantModel(changes []broadcast.Change, keys []string) {
	r.t.Helper()
	m, spaces := model{}.of(changes)
	for _, key := range keys {
		c, known := m[key]
		var generation uint64
		for prefix, v := range spaces {
			if strings.HasPrefix(key, prefix) {
				generation = max(generation, v)
			}
		}
		switch {
		case known && c.Version > generation && c.Op == broadcast.OpSet:
			r.want(key, string(c.Value), c.Version)
		case known || generation > 0:
			r.want(key, "-", max(c.Version, generation))
		default:
			r.want(key, "", 0)
		}
	}
}

// randomChanges are changes with many collisions of keys and versions.
func randomChanges(rnd *rand.Rand, n int) (changes []broadcast.Change, keys []string) {
	for i := range 6 {
		keys = append(keys, fmt.Sprintf("m:%d", i), fmt.Sprintf("n:%d", i))
	}
	for range n {
		key, version := keys[rnd.IntN(len(keys))], 1+rnd.Uint64N(9)
		switch rnd.IntN(8) {
		case 0, 1:
			changes = append(changes, del(key, version))
		case 2:
			changes = append(changes, flush([]string{"m:", "n", "m:1", "x"}[rnd.IntN(4)], 1+rnd.Uint64N(5)))
		default:
			changes = append(changes, set(key, version, string(rune('a'+rnd.IntN(3)))))
		}
	}
	return changes, keys
}

func testConverge(t *testing.T, r *rig) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	for round := range 20 {
		changes, keys := randomChanges(rnd, 40)
		// Each round has its own names, so that one cache serves all.
		for i := range changes {
			changes[i].Key = fmt.Sprintf("%d.%s", round, changes[i].Key)
		}
		for i := range keys {
			keys[i] = fmt.Sprintf("%d.%s", round, keys[i])
		}
		rnd.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
		res := r.apply(changes...)
		if res.Applied+res.Superseded != len(changes) {
			t.Errorf("%+v of %d", res, len(changes))
		}
		r.wantModel(changes, keys)
		r.apply(changes[:20]...) // a refill changes nothing
		r.wantModel(changes, keys)
	}
}

// testThreeCities gives three caches the same three streams, each in another
// interleaving that keeps every stream's order.
func testThreeCities(t *testing.T, open func(t *testing.T) broadcast.Applier) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 2))
	var streams [3][]broadcast.Change
	var all []broadcast.Change
	var keys []string
	for i := range streams {
		streams[i], keys = randomChanges(rnd, 60)
		all = append(all, streams[i]...)
	}
	for range 3 {
		r := newRig(t, open(t))
		var left [3][]broadcast.Change
		copy(left[:], streams[:])
		for n := len(all); n > 0; n-- {
			i := rnd.IntN(3)
			for len(left[i]) == 0 {
				i = (i + 1) % 3
			}
			r.apply(left[i][0])
			left[i] = left[i][1:]
		}
		r.wantModel(all, keys)
	}
}
