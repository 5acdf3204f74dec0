package broker

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
)

// TestK1_WhatWasGivenUpStaysSoAfterTrim: the log forgets records once they are
// declared lost, before a snapshot knows of the decision. A power cut in between
// must not have the fold count them to the backlog again: it would then declare
// the records lost that the budget has room for.
func TestK1_WhatWasGivenUpStaysSoAfterTrim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits()
		limits.SegmentBytes, limits.FlowHorizon = 64<<10, time.Second
		limits.SnapshotEvery, limits.TrimEvery = 1000*time.Hour, 1000*time.Hour // only when the test asks
		w := newWorld(t, memberAt(t, "gap"), limits, "rz02-a-1", "cz-sh-a-1", "cz-hz-a-1")
		defer w.close() // shenzhen is down
		from, sent := w.sites["rz02-a"], 0
		send := func(n int) {
			for range n {
				m := from.message("member", fmt.Sprint(sent))
				m.Body = make([]byte, 1<<10)
				from.publish(m)
				sent++
				time.Sleep(50 * time.Millisecond)
			}
		}
		snapshot := func() {
			if err := from.snapshot(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		send(50) // nearly what the budget allows
		snapshot()
		send(1)
		snapshot()
		send(200)
		for from.to("shenzhen", "cz-sz-a").BacklogBytes > 56<<10 {
			send(1) // until the budget of 64 KiB has room for some more
			time.Sleep(time.Second)
		}
		time.Sleep(time.Minute)
		before := from.log.Begin()
		if err := from.trim(wallNow().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if from.log.Begin() == before {
			t.Fatal("nothing was trimmed")
		}
		// Files of an index go whole, so the power cut alone would show nothing.
		kept := func() uint64 {
			from.mu.RLock()
			defer from.mu.RUnlock()
			return from.state.out[flowTo(from)].index.First()
		}
		if first := kept(); first != 0 {
			t.Fatalf("the index begins at %d; the snapshot's cursor is at 0", first)
		}
		want := from.to("shenzhen", "cz-sz-a")
		if want.Lost == 0 || want.BacklogBytes == 0 {
			t.Fatalf("before the power cut: %+v", want)
		}
		from.crash()
		if got := from.to("shenzhen", "cz-sz-a"); got.Lost != want.Lost || got.Untold != want.Untold || got.BacklogBytes != want.BacklogBytes {
			t.Fatalf("after the power cut: %+v\nbefore it: %+v", got, want)
		}
		send(1)
		time.Sleep(2 * time.Minute)
		if got := from.to("shenzhen", "cz-sz-a"); got.Lost != want.Lost {
			t.Fatalf("%d records are declared lost, want %d", got.Lost, want.Lost)
		}
		for range 3 { // now both snapshots know of the decision
			send(1)
			snapshot()
		}
		send(70)
		if err := from.trim(wallNow().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if first := kept(); first < 50 {
			t.Fatalf("the index begins at %d, long after anybody needs that", first)
		}
	})
}

// flowTo returns the flow of the sample's broadcasts that the site is the origin of.
func flowTo(s *site) record.FlowID {
	for id := range s.state.out {
		if id.Channel {
			return id
		}
	}
	return record.FlowID{}
}
