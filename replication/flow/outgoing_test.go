package flow

import (
	"testing"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// TestJoinedAcksCanBeRead: an origin that sends numbers again is told their
// outcomes again; what waits is joined only where the ranges go on ascending.
func TestJoinedAcksCanBeRead(t *testing.T) {
	o := outgoing{wake: make(chan struct{}, 1)}
	tell := func(through uint64, ranges ...uint64) {
		a := wire.Ack{Through: through}
		for i := 0; i < len(ranges); i += 2 {
			a.Outcomes = append(a.Outcomes, wire.Outcome{First: ranges[i], Through: ranges[i+1], Outcome: record.OutcomeParked})
		}
		o.ack(1, zone.ClassBulk, &a)
	}
	tell(10, 3, 4)
	tell(12)
	tell(14, 13, 13)
	tell(14, 3, 4, 13, 13) // numbers came again
	tell(15)
	var through []uint64
	for f, ok := o.next(); ok; f, ok = o.next() {
		a, err := wire.ParseAck(f.ack.Append(nil))
		if err != nil {
			t.Fatalf("ack through %d: %v", f.ack.Through, err)
		}
		through = append(through, a.Through)
	}
	if len(through) != 2 || through[0] != 14 || through[1] != 15 {
		t.Fatalf("acks through %v, want 14 and 15", through)
	}
}
