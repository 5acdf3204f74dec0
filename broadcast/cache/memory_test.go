package cache

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/mqrouter/mqrouter/broadcast"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemoryConforms(t *testing.T) {
	conformance(t, func(*testing.T) broadcast.Applier { return NewMemory(MemoryOptions{}) })
}

func TestMemoryStaysWithinItsBoundAndNeverGoesBack(t *testing.T) {
	const bound = 64 << 10
	m := NewMemory(MemoryOptions{MaxBytes: bound})
	r := newRig(t, m)
	value := string(make([]byte, 1024))
	for i := range 2000 {
		r.apply(set(fmt.Sprintf("k%d", i), 2, value))
		if m.bytes > bound {
			t.Fatalf("%d bytes after %d keys", m.bytes, i)
		}
	}
	if m.Evicted() == 0 || m.Len() == 0 {
		t.Errorf("evicted %d, has %d", m.Evicted(), m.Len())
	}
	// The fence of k0 may be gone; an older change must not come back by that.
	for i := range 2000 {
		late := set(fmt.Sprintf("k%d", i), 1, "stale")
		late.Stored = r.now.Add(-time.Second)
		r.apply(late)
		if e, err := m.Get(t.Context(), late.Key); err != nil || string(e.Value) == "stale" {
			t.Fatalf("%s is %+v, %v", late.Key, e, err)
		}
	}
}

func TestMemoryForgetsTombstonesAfterTheHorizon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, NewMemory(MemoryOptions{}))
		brief := set("brief", 1, "v")
		brief.TTL = time.Minute
		r.apply(del("gone", 5), brief)
		r.want("brief", "v", 1)
		time.Sleep(time.Minute)
		r.want("brief", "-", 1)
		time.Sleep(horizon)
		r.now = time.Now()
		old := set("gone", 4, "old")
		old.Stored = r.now.Add(-horizon - time.Second)
		r.apply(old, set("brief", 1, "again"))
		r.want("gone", "-", 4)
		r.want("brief", "again", 1)
	})
}

func TestMemoryForgetsTheOldestOfManyNamespaces(t *testing.T) {
	m := NewMemory(MemoryOptions{})
	r := newRig(t, m)
	first := r.now
	for i := range maxNamespaces + 10 {
		r.now = first.Add(time.Duration(i) * time.Millisecond)
		r.apply(flush(fmt.Sprintf("ns%05d:", i), 5))
	}
	if len(m.spaces) > maxNamespaces {
		t.Fatalf("%d namespaces", len(m.spaces))
	}
	late := set("ns00000:x", 4, "stale")
	late.Stored = first.Add(-time.Second)
	r.apply(late)
	r.want("ns00000:x", "-", 4)
}

func TestMemoryHandsOutCopies(t *testing.T) {
	m := NewMemory(MemoryOptions{})
	r := newRig(t, m)
	r.apply(set("k", 1, "abc"))
	e, err := m.Get(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	e.Value[0] = 'X'
	r.want("k", "abc", 1)
}
