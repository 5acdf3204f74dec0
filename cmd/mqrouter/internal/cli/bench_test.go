package cli

import (
	"bytes"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestCycle(t *testing.T) {
	for _, c := range []struct {
		list []string
		want []string // of the property userId
	}{
		{nil, []string{""}},
		{[]string{"userId=1065"}, []string{"1065"}},
		{[]string{"userId=8..10", "other=a..b"}, []string{"8", "9", "10"}},
		{[]string{"userId=5..5"}, []string{"5"}},
	} {
		got, err := cycle(c.list)
		if err != nil || len(got) != len(c.want) {
			t.Errorf("%q: %v, %v", c.list, got, err)
			continue
		}
		for i, w := range c.want {
			if got[i]["userId"] != w || (len(c.list) == 2 && got[i]["other"] != "a..b") {
				t.Errorf("%q: set %d is %v", c.list, i, got[i])
			}
		}
	}
	for _, bad := range [][]string{{"userId"}, {"userId=2..1"}, {"userId=0..10000"}, {"a=1..2", "b=1..2"}} {
		if got, err := cycle(bad); err == nil {
			t.Errorf("%q gave %v", bad, got)
		}
	}
}

// Bodies have the size asked for, differ, and are made in the memory given.
func TestBodies(t *testing.T) {
	for _, kind := range []string{"random", "json"} {
		b := newBodies(load{Size: 300, Body: kind}, 3)
		first := b.next(nil)
		was := bytes.Clone(first)
		second := b.next(first)
		if len(was) != 300 || len(second) != 300 || bytes.Equal(was, second) {
			t.Errorf("%s: bodies of %d and %d bytes, equal: %v", kind, len(was), len(second), bytes.Equal(was, second))
		}
		if n := testing.AllocsPerRun(20, func() { second = b.next(second) }); kind == "random" && n > 0 {
			t.Errorf("%s: %v allocations a body", kind, n)
		}
	}
}

// TestPublishersTakeTurns: at a rate no two requests are due at the same time, and all
// publishers together make as many as were asked for.
func TestPublishersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := load{Publishers: 4, Batch: 2, rate: 1000}
		begin := time.Now()
		due := make([]time.Duration, 0, 12)
		for publisher := range uint64(4) {
			p := newPacer(l, publisher, begin)
			for range 3 {
				due = append(due, p.next.Sub(begin))
				p.wait(t.Context())
			}
		}
		slices.Sort(due)
		for i, d := range due {
			if want := time.Duration(i) * 2 * time.Millisecond; d != want {
				t.Errorf("request %d is due after %v, want %v", i, d, want)
			}
		}
	})
}
