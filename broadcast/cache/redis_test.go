package cache

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/mqrouter/mqrouter/broadcast"
	"github.com/mqrouter/mqrouter/broadcast/internal/redistest"
)

func openRedis(t testing.TB, o RedisOptions) *Redis {
	t.Helper()
	r, err := NewRedis(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return r
}

// plainClient is what a reader in another process has.
func plainClient(t testing.TB, s *redistest.Server) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: s.Addr})
	t.Cleanup(func() { c.Close() })
	return c
}

func TestRedisConforms(t *testing.T) {
	s := redistest.Start(t)
	var n atomic.Int32
	conformance(t, func(t *testing.T) broadcast.Applier {
		return openRedis(t, RedisOptions{Addrs: []string{s.Addr}, Prefix: fmt.Sprintf("c%d[*]?:", n.Add(1))})
	})
}

// TestRedisClusterConforms runs the suite against a cluster of one node that
// refuses scripts over several slots.
func TestRedisClusterConforms(t *testing.T) {
	s := redistest.Start(t, "--cluster-enabled", "yes")
	c := plainClient(t, s)
	if err := c.ClusterAddSlotsRange(t.Context(), 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(3 * time.Minute)
	for !strings.Contains(c.ClusterInfo(t.Context()).Val(), "cluster_state:ok") {
		if time.Now().After(deadline) {
			t.Fatal("the cluster does not come up")
		}
	}
	if _, err := NewRedis(RedisOptions{Addrs: []string{s.Addr}, Cluster: true, Prefix: "member:"}); !errors.Is(err, ErrNoHashTag) {
		t.Errorf("a prefix without a hash tag: %v", err)
	}
	var n atomic.Int32
	conformance(t, func(t *testing.T) broadcast.Applier {
		return openRedis(t, RedisOptions{Addrs: []string{s.Addr}, Cluster: true, Prefix: fmt.Sprintf("{c%d}:", n.Add(1))})
	})
}

// TestRedisLayoutIsPinned reads with plain commands: readers in other languages
// depend on the layout.
func TestRedisLayoutIsPinned(t *testing.T) {
	s := redistest.Start(t)
	r := newRig(t, openRedis(t, RedisOptions{Addrs: []string{s.Addr}, Prefix: "sh:"}))
	brief := set("brief", 1, "v")
	brief.TTL = time.Minute
	r.apply(set("member:1", 42, "gold"), del("member:2", math.MaxUint64), brief)
	b := r.batch(flush("old:", 7))
	b.Marks = []broadcast.Mark{{Flow: flowOf("rz01-a", 1), Lineage: 5, Epoch: 2, Number: 3}}
	if _, err := r.a.Apply(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	c, ctx := plainClient(t, s), t.Context()
	for key, want := range map[string]string{
		"sh:member:1":       "gold",
		"sh:mqr:v:member:1": "00000000000000000042" + "0" + "02654854652520285030",
		"sh:mqr:v:member:2": "18446744073709551615" + "1" + "00000000000000000000",
	} {
		if got, err := c.Get(ctx, key).Result(); err != nil || got != want {
			t.Errorf("%s is %q, %v; want %q", key, got, err, want)
		}
	}
	if n := c.Exists(ctx, "sh:member:2").Val(); n != 0 {
		t.Error("a deleted key has a value")
	}
	state := c.HGetAll(ctx, "sh:mqr:state:member").Val()
	want := map[string]string{"group": "cz-sh-a", "incarnation": "fedcba9876543210", "offset": "00000000000000000004",
		"wm|rz01-a|0000000000000001|channel|member|2|0": "0000000000000005|2|3"}
	if fmt.Sprint(state) != fmt.Sprint(want) {
		t.Errorf("state %v, want %v", state, want)
	}
	if got := c.HGet(ctx, "sh:mqr:flush", "old:").Val(); got != fmt.Sprintf("00000000000000000007 %d", r.now.UnixMilli()) {
		t.Errorf("flush %q", got)
	}
	for key, bounds := range map[string][2]time.Duration{
		"sh:member:1": {-1, -1}, "sh:mqr:v:member:1": {-1, -1}, "sh:mqr:v:member:2": {horizon / 2, horizon},
		"sh:brief": {time.Second, time.Minute}, "sh:mqr:v:brief": {horizon / 2, horizon},
	} {
		if ttl := c.PTTL(ctx, key).Val(); ttl < bounds[0] || ttl > bounds[1] {
			t.Errorf("%s lives for %v, want %v", key, ttl, bounds)
		}
	}
}

func TestRedisTouchesOnlyItsOwnKeys(t *testing.T) {
	s := redistest.Start(t)
	c, ctx := plainClient(t, s), t.Context()
	c.Set(ctx, "member:theirs", "x", 0)
	c.Set(ctx, "other", "y", 0)
	r := newRig(t, openRedis(t, RedisOptions{Addrs: []string{s.Addr}}))
	r.apply(set("member:1", 1, "a"), flush("member:", 5), set("member:2", 6, "b"))
	if err := r.a.Flush(ctx, horizon); err != nil {
		t.Fatal(err)
	}
	if c.Get(ctx, "member:theirs").Val() != "x" || c.Get(ctx, "other").Val() != "y" {
		t.Error("keys of somebody else are gone")
	}
	if n := c.Exists(ctx, "member:1", "member:2").Val(); n != 0 {
		t.Errorf("%d values are left", n)
	}
}

func TestRedisIsNotStoppedByKeysOfAnotherKind(t *testing.T) {
	s := redistest.Start(t)
	c, ctx := plainClient(t, s), t.Context()
	c.LPush(ctx, "k", "x")
	c.LPush(ctx, "mqr:v:k", "x")
	c.Set(ctx, "mqr:v:l", "no rank", 0)
	r := newRig(t, openRedis(t, RedisOptions{Addrs: []string{s.Addr}}))
	r.apply(set("k", 1, "a"), set("l", 1, "b"))
	r.want("k", "a", 1)
	r.want("l", "b", 1)
	c.HSet(ctx, "mqr:state:member", "offset", "soon")
	var bad *StateError
	if _, err := r.a.Load(ctx, "member"); !errors.As(err, &bad) {
		t.Errorf("a state of somebody else: %v", err)
	}
	if _, err := r.a.Apply(ctx, r.batch(set("k", 2, "c"))); !errors.As(err, &bad) {
		t.Errorf("a state of somebody else: %v", err)
	}
	c.HSet(ctx, "mqr:state:member", "incarnation", "1", "offset", "5", "wm|x", "y")
	var mark *broadcast.MarkError
	if _, err := r.a.Load(ctx, "member"); !errors.As(err, &mark) {
		t.Errorf("a watermark of somebody else: %v", err)
	}
}

// TestRedisFlushPrefixSweepsManyKeysAndResumes ends the first attempt within
// the sweep; the second one finishes it.
func TestRedisFlushPrefixSweepsManyKeysAndResumes(t *testing.T) {
	s := redistest.Start(t)
	a := openRedis(t, RedisOptions{Addrs: []string{s.Addr}})
	r := newRig(t, a)
	var changes []broadcast.Change
	for i := range 4 * sweepChunk {
		changes = append(changes, set(fmt.Sprintf("m:%d", i), 2, "v"), set(fmt.Sprintf("n:%d", i), 2, "v"))
	}
	r.apply(changes...)
	ctx, cancel := context.WithCancel(t.Context())
	a.client.AddHook(&cancelAfter{cancel: cancel, name: "scan", left: 2})
	b := r.batch(flush("m:", 3))
	if _, err := a.Apply(ctx, b); err == nil {
		t.Fatal("the first attempt was not ended")
	}
	if p, err := a.Load(t.Context(), r.topic); err != nil || p.Place != r.at {
		t.Fatalf("the place moved before the end: %+v, %v", p, err)
	}
	r.apply(flush("m:", 3))
	c := plainClient(t, s)
	if m, n := len(c.Keys(t.Context(), "m:*").Val()), len(c.Keys(t.Context(), "n:*").Val()); m != 0 || n != 4*sweepChunk {
		t.Errorf("%d and %d keys are left", m, n)
	}
}

// cancelAfter cancels a context after some commands of a name.
type cancelAfter struct {
	cancel context.CancelFunc
	name   string
	left   int
}

func (h *cancelAfter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *cancelAfter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == h.name {
			if h.left--; h.left == 0 {
				h.cancel()
			}
		}
		return err
	}
}

func (h *cancelAfter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestRedisThatIsDeadIsAnErrorAndComesBack(t *testing.T) {
	s := redistest.Start(t)
	r := newRig(t, openRedis(t, RedisOptions{Addrs: []string{s.Addr}}))
	r.apply(set("k", 1, "a"))
	s.Kill()
	b := r.batch(set("k", 2, "b"))
	if _, err := r.a.Apply(t.Context(), b); err == nil {
		t.Fatal("a dead Redis took a batch")
	}
	if _, err := r.a.Get(t.Context(), "k"); err == nil {
		t.Fatal("a dead Redis answered")
	}
	s.Start(t)
	_, err := r.a.Apply(t.Context(), b)
	var moved *broadcast.MovedError
	if !errors.As(err, &moved) || !moved.At.Empty() {
		t.Fatalf("an emptied Redis answers %v", err)
	}
	r.at = broadcast.Place{}
	r.apply(set("k", 2, "b"))
	r.want("k", "b", 2)
}

func TestNewRedisChecksItsOptions(t *testing.T) {
	if _, err := NewRedis(RedisOptions{}); err == nil {
		t.Error("no address was taken")
	}
	for prefix, ok := range map[string]bool{"": false, "a:": false, "{}": false, "}{": false, "{a": false, "{a}": true, "x{a}y:": true, "{}{a}": false} {
		r, err := NewRedis(RedisOptions{Addrs: []string{"127.0.0.1:1", "127.0.0.1:2"}, Prefix: prefix})
		if (err == nil) != ok {
			t.Errorf("prefix %q in a cluster: %v", prefix, err)
		}
		if r != nil {
			r.Close()
		}
	}
}

// BenchmarkRedisApply applies batches of 512 changes of 200 bytes to a real
// Redis on the same machine.
func BenchmarkRedisApply(b *testing.B) {
	s := redistest.Start(b)
	benchmarkApply(b, openRedis(b, RedisOptions{Addrs: []string{s.Addr}}))
}

func BenchmarkMemoryApply(b *testing.B) { benchmarkApply(b, NewMemory(MemoryOptions{})) }

func benchmarkApply(b *testing.B, a broadcast.Applier) {
	const size = 512
	value := make([]byte, 200)
	var at broadcast.Place
	b.ReportAllocs()
	b.SetBytes(size * int64(len(value)))
	for i := 0; b.Loop(); i++ {
		batch := &broadcast.Batch{Topic: "member", From: at, To: broadcast.Place{Incarnation: 1, Offset: at.Offset + size}, Now: time.Now(), Horizon: horizon}
		for j := range size {
			batch.Changes = append(batch.Changes, broadcast.Change{Op: broadcast.OpSet, Key: fmt.Sprintf("member:%d", (i*size+j)%100_000), Version: uint64(i + 1), Value: value, Stored: batch.Now})
		}
		if _, err := a.Apply(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
		at = batch.To
	}
	b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "changes/s")
}
