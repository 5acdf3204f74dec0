package broadcast_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/mqrouter/mqrouter/broadcast"
	"github.com/mqrouter/mqrouter/broadcast/cache"
	"github.com/mqrouter/mqrouter/broadcast/internal/redistest"
)

// patience bounds what a test waits for; it decides nothing unless the thing
// never happens.
const patience = 3 * time.Minute

// eventually waits until the status is as wanted.
func (r *reader) eventually(what string, ok func(broadcast.Status) bool) {
	r.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(patience); ; {
		st := r.Status()
		if ok(st) {
			return
		}
		select {
		case <-tick.C:
		case <-end:
			r.t.Fatalf("%s: status %+v", what, st)
		}
	}
}

func (r *reader) caughtUp(l *landings) {
	r.t.Helper()
	l.mu.Lock()
	n := uint64(len(l.entries))
	l.mu.Unlock()
	r.eventually("catch up", func(s broadcast.Status) bool {
		return s.State == broadcast.StateFollowing && s.Place.Offset == n && s.Problem == ""
	})
}

// TestRedisThatFellBackIsRefilled empties a Redis in two ways while changes
// come: it must end with the newest of every key, and say what happened.
func TestRedisThatFellBackIsRefilled(t *testing.T) {
	s := redistest.Start(t)
	a, err := cache.NewRedis(cache.RedisOptions{Addrs: []string{s.Addr}, Prefix: "sh:"})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	l, o := newLandings(5), newOrigin("rz01-a")
	version := uint64(0)
	publish := func(n int) {
		for range n {
			version++
			l.set(t, o, fmt.Sprintf("k%d", version%50), version, fmt.Sprint(version))
		}
	}
	check := func() {
		t.Helper()
		for v := version - 49; v <= version; v++ {
			want(t, a, fmt.Sprintf("k%d", v%50), fmt.Sprint(v), v)
		}
	}
	publish(1000)
	r := startSync(t, l, a, func(o *broadcast.Options) { o.BatchChanges, o.Check = 64, 20*time.Millisecond })
	defer r.stop()
	r.caughtUp(l)
	check()

	publish(500)
	s.Kill()
	publish(500)
	r.eventually("notice that the Redis is dead", func(s broadcast.Status) bool { return s.State == broadcast.StateHeld && s.Problem != "" })
	s.Start(t)
	r.caughtUp(l)
	check()
	r.eventually("tell the regression", func(s broadcast.Status) bool { return s.Regressed == 1 && s.Gaps == 2 })

	c := redis.NewClient(&redis.Options{Addr: s.Addr})
	defer c.Close()
	if err := c.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	r.eventually("notice FLUSHALL without any change", func(s broadcast.Status) bool { return s.Regressed == 2 && s.Gaps == 3 })
	publish(10)
	r.caughtUp(l)
	check()
	if got := c.Get(t.Context(), fmt.Sprintf("sh:k%d", version%50)).Val(); got != fmt.Sprint(version) {
		t.Errorf("an ordinary GET returns %q", got)
	}
	if w, ok := r.Status().Watermark(o.flow); !ok || w.Number != version {
		t.Errorf("watermark %+v", w)
	}
}

// TestRedisKeepsItsPlaceOverARestartOfTheReader holds that nothing is read
// twice: the place is in the cache.
func TestRedisKeepsItsPlaceOverARestartOfTheReader(t *testing.T) {
	s := redistest.Start(t)
	l, o := newLandings(5), newOrigin("rz01-a")
	for round := range uint64(3) {
		a, err := cache.NewRedis(cache.RedisOptions{Addrs: []string{s.Addr}})
		if err != nil {
			t.Fatal(err)
		}
		for i := range uint64(100) {
			l.set(t, o, fmt.Sprintf("k%d", i), round+1, "v")
		}
		r := startSync(t, l, a)
		r.caughtUp(l)
		r.stop()
		gaps := uint64(0)
		if round == 0 {
			gaps = 1 // the first start
		}
		st := r.Status()
		if st.Applied != 100 || st.Superseded != 0 || st.Gaps != gaps {
			t.Errorf("round %d: %+v", round, st)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}
