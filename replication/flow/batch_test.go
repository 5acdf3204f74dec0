package flow

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

func item(t *testing.T, n uint64, size int, cities ...zone.City) Item {
	b, err := record.AppendRecord(nil, &record.Record{
		Type: record.TypeMessage, Topic: "t", Kind: zone.KindNormal, Class: zone.ClassBulk, Target: "b",
		Residency: cities, Body: make([]byte, size), Stored: epoch0, Born: epoch0,
	})
	if err != nil {
		t.Fatal(err)
	}
	return Item{Number: n, Record: b}
}

func TestCutMakesHomogeneousRuns(t *testing.T) {
	items := []Item{
		item(t, 1, 10), item(t, 2, 10), item(t, 3, 10, "A", "B"), item(t, 4, 10, "A", "B"), item(t, 5, 10, "A", "C"),
		{Number: 6, Skip: true}, {Number: 7, Skip: true}, item(t, 8, 10), item(t, 9, 5000), item(t, 10, 10),
		{Number: 11, Record: []byte("no record")}, item(t, 12, 10, "A"),
	}
	type piece struct {
		first, last uint64
		skip        bool
		residency   []zone.City
	}
	want := []piece{
		{1, 2, false, nil}, {3, 4, false, []zone.City{"A", "B"}}, {5, 5, false, []zone.City{"A", "C"}}, {6, 7, true, nil},
		{8, 8, false, nil}, {9, 9, false, nil}, {10, 11, false, nil}, {12, 12, false, []zone.City{"A"}},
	}
	var got []piece
	var old []zone.City
	for len(items) > 0 {
		r := cut(items, 1000, old, false)
		if !r.skip {
			old = r.residency
		}
		got = append(got, piece{r.items[0].Number, r.items[len(r.items)-1].Number, r.skip, r.residency})
		if size := len(appendData(nil, &r)); !r.skip && size != r.raw {
			t.Errorf("run at %d: %d data bytes, said %d", r.items[0].Number, size, r.raw)
		}
		items = items[len(r.items):]
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("cut into\n%v, want\n%v", got, want)
	}
}

func TestAppendRawIsTheBatchThatWireWrites(t *testing.T) {
	r := cut([]Item{item(t, 1, 10), item(t, 2, 300)}, 1000, nil, false)
	b := wire.Batch{First: 1, Count: 2, Lineage: 1, LineageEpoch: 1, Path: []zone.City{"A"}}
	got := appendRaw(nil, &b, &r)
	b.Data = appendData(nil, &r)
	if want := b.Append(nil); !bytes.Equal(got, want) {
		t.Errorf("payload differs from wire's")
	}
	p, err := wire.ParseBatch(got)
	if err != nil {
		t.Fatal(err)
	}
	records, err := split(p.Data, 2, 1)
	if err != nil || len(records) != 1 || !bytes.Equal(records[0], r.items[1].Record) {
		t.Errorf("split: %d records, %v", len(records), err)
	}
}

func TestThriftStopsPackingWhatDoesNotPack(t *testing.T) {
	var th thrift
	if th.worth(minPacked - 1) {
		t.Errorf("packs less than a packet")
	}
	tries := 0
	for range 1000 {
		if th.worth(10000) {
			tries++
			if th.saw(10000, 9900) {
				t.Errorf("1 %% pays")
			}
		}
	}
	if tries < 5 || tries > 30 {
		t.Errorf("tried %d of 1000 batches that do not pack", tries)
	}
	th, tries = thrift{}, 0
	for range 1000 {
		if th.worth(10000) && th.saw(10000, 3000) {
			tries++
		}
	}
	if tries != 1000 {
		t.Errorf("packed %d of 1000 batches that pack well", tries)
	}
}

func TestPackedCacheIsBounded(t *testing.T) {
	c := newPackedCache(1000)
	id := testFlow(0)
	for n := range uint64(50) {
		c.put(id, &packed{first: n, data: make([]byte, 100)})
		c.get(id, 0) // stays in use
		if c.bytes > 1000 || len(c.by) != c.order.Len() {
			t.Fatalf("%d bytes, %d entries of %d", c.bytes, len(c.by), c.order.Len())
		}
	}
	if c.get(id, 0) == nil || c.get(id, 49) == nil || c.get(id, 10) != nil {
		t.Errorf("kept the wrong ones")
	}
	if c.put(id, &packed{first: 99, data: make([]byte, 1001)}); c.get(id, 99) != nil {
		t.Errorf("keeps what is larger than the cache")
	}
	if c.get(testFlow(1), 49) != nil {
		t.Errorf("mixes flows")
	}
}
