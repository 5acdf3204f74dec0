package broadcast

import (
	"testing"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// FuzzLanded holds that no frame makes the reader panic or accept landings out
// of order, and that landings cost no more than their frame.
func FuzzLanded(f *testing.F) {
	rec, err := record.AppendRecord(nil, &record.Record{Type: record.TypeMessage, Topic: "member", Keys: []string{"k"}, Body: []byte("v"), MessageID: "m",
		Properties: []record.Property{{Key: PropertyOp, Value: "set"}, {Key: PropertyVersion, Value: "1"}}})
	if err != nil {
		f.Fatal(err)
	}
	env, err := record.AppendEnvelope(nil, &record.Envelope{Flow: channelFlow("rz01-a", 1), Lineage: 1, LineageEpoch: 1, Number: 1, Through: 1, Outcome: record.OutcomeLanded})
	if err != nil {
		f.Fatal(err)
	}
	l := wire.Landed{First: 7, Count: 2}
	for _, e := range [][]byte{env, nil} {
		l.Data = wire.AppendItem(wire.AppendItem(l.Data, e), rec)
	}
	l.RawSize = uint32(len(l.Data))
	f.Add(l.Append(nil), uint64(7))
	f.Add([]byte{}, uint64(0))
	f.Fuzz(func(t *testing.T, payload []byte, next uint64) {
		some, err := parseLanded(payload, next)
		if err != nil {
			return
		}
		size := 0
		for i, l := range some {
			size += l.size
			if l.offset != next+uint64(i) || (l.rejected == nil && l.change.Validate() != nil) || (l.damaged && l.rejected == nil) {
				t.Fatalf("landing %d of %d: %+v", i, next, l)
			}
		}
		if len(some) == 0 || size > len(payload) {
			t.Fatalf("%d landings of %d bytes in a frame of %d", len(some), size, len(payload))
		}
	})
}
