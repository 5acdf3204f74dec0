package broker

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
)

// TestManyStartsOfTheOriginStrandNobody: an origin forgets the oldest rows of a
// lineage table. A destination that was away for longer than the table, and one
// whose store is new, are served all the same.
func TestManyStartsOfTheOriginStrandNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sample(t), testLimits(), "rz02-a-1", "rz03-a-1")
		defer w.close()
		from, to := w.sites["rz02-a"], w.sites["rz03-a"]
		ids := []string{"first"}
		from.publish(from.message("transfer", "first", "userId", "50"))
		w.settled()
		to.down()
		for i := range maxMarks + 10 {
			from.bounce()
			ids = append(ids, fmt.Sprint(i))
			from.publish(from.message("transfer", fmt.Sprint(i), "userId", "50"))
		}
		to.up()
		w.settled()
		wantOnce(t, to.drain("transfer-credit", "transfer"), ids)

		// Nobody holds the old rows any more, then the destination loses its store.
		from.bounce()
		from.publish(from.message("transfer", "next", "userId", "50"))
		w.settled()
		to.down()
		for _, o := range from.Status().Outgoing {
			if st, _ := from.Origin(o.Flow); len(st.Lineage) > maxMarks+1 || st.Lineage[0].First < 2 {
				t.Fatalf("%d rows from %d on", len(st.Lineage), st.Lineage[0].First)
			}
		}
		to.mem = disk.NewMem()
		to.fs = to.mem
		from.publish(from.message("transfer", "last", "userId", "50"))
		to.up()
		w.settled()
		wantOnce(t, to.drain("transfer-credit", "transfer"), append(ids, "next", "last"))
	})
}

// TestTheLineageInForceIsToldBeforeItsRecordIsFolded: a session opened right after
// a start would else tell a table without it, and be refused as diverged with the
// first number that is given.
func TestTheLineageInForceIsToldBeforeItsRecordIsFolded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sample(t), testLimits(), "rz02-a-1", "rz03-a-1")
		defer w.close()
		from := w.sites["rz02-a"]
		from.publish(from.message("transfer", "first", "userId", "50"))
		w.settled()
		id := from.Status().Outgoing[0].Flow
		before, _ := from.Origin(id)
		from.bounce()
		got, _ := from.Origin(id)
		start := from.log.Present()
		want := append(before.Lineage, flow.Mark{Epoch: start.Epoch, ID: start.ID, First: 2})
		if !slices.Equal(got.Lineage, want) {
			t.Errorf("told right after a start: %+v, want %+v", got.Lineage, want)
		}
	})
}

// TestLineageIsFoldedFromItsRecord: the store's table forgets the oldest starts;
// a log that is folded from its beginning may have more of them.
func TestLineageIsFoldedFromItsRecord(t *testing.T) {
	s := newState("rz02-a", 1, nil)
	body := binary.LittleEndian.AppendUint64(nil, 3)
	body = binary.LittleEndian.AppendUint64(body, 99)
	body = binary.LittleEndian.AppendUint64(body, 64)
	for _, b := range [][]byte{body, body[:23]} {
		r, err := record.AppendRecord(nil, &record.Record{Type: record.TypeLineageStart, Body: b})
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.apply(&commitlog.Entry{Kind: commitlog.KindOwn, Position: 64, Size: 200, Record: r})
		if (err == nil) != (len(b) == 24) || s.epoch != 3 || s.lineage != 99 {
			t.Fatalf("a body of %d bytes: epoch %d, lineage %d, %v", len(b), s.epoch, s.lineage, err)
		}
	}
}
