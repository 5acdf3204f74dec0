package broker

import (
	"fmt"
	"testing"

	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// benchContext is what the records of BenchmarkLand carry: a trace that is not
// sampled.
const benchContext = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"

// BenchmarkLand lands batches of 64 records of 1 KiB on the real disk, up to 16
// batches ahead, as a flow does.
func BenchmarkLand(b *testing.B) {
	s := openBench(b)
	const batch, ahead = 64, 16
	l := flow.Landing{
		Flow:    record.FlowID{Origin: "rz03-a", Incarnation: 9, Target: string(s.Group().Name), Class: zone.ClassBulk},
		Lineage: 7, LineageEpoch: 1, Hops: 1, Path: []zone.City{"hangzhou"},
	}
	for i := range batch {
		rec, err := record.AppendRecord(nil, &record.Record{
			Type: record.TypeMessage, Identity: record.Identity{Group: "rz03-a", Incarnation: 9, Epoch: 1, Position: 64},
			Topic: "transfer", Kind: zone.KindNormal, Class: zone.ClassBulk, Durability: zone.DurabilityAllInSync, Shard: 20,
			Target: l.Flow.Target, RouteEpoch: zone.Epoch{Term: 1, Number: 1}, MessageID: fmt.Sprint("m", i),
			TraceContext: benchContext, Body: make([]byte, 1024),
		})
		if err != nil {
			b.Fatal(err)
		}
		l.Records = append(l.Records, rec)
	}
	sink, room := s.Sink(), make(chan error, ahead)
	for range ahead {
		room <- nil
	}
	done := func(err error) { room <- err }
	b.SetBytes(batch * 1024)
	b.ReportAllocs()
	for b.Loop() {
		if err := <-room; err != nil {
			b.Fatal(err)
		}
		l.First, l.Through = l.Through+1, l.Through+batch
		if err := sink.Land(l, done); err != nil {
			b.Fatal(err)
		}
	}
	for range ahead {
		if err := <-room; err != nil {
			b.Fatal(err)
		}
	}
}
