package wire

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// TestG2_ReachThatDoesNotFitTellsTheNearest: what a router tells about paths is
// bounded by its frame; nothing is sent that the other side would refuse.
func TestG2_ReachThatDoesNotFitTellsTheNearest(t *testing.T) {
	var x Reach
	for i := range 2 * MaxCities {
		x.Cities = append(x.Cities, Reached{
			City: zone.City(fmt.Sprintf("%03d-%s", i, strings.Repeat("x", 90))), RTT: time.Duration(i+1) * time.Millisecond,
		})
	}
	b := x.Append(nil)
	if len(b) > MaxHello {
		t.Fatalf("%d bytes, control frames have at most %d", len(b), MaxHello)
	}
	got, err := ParseReach(b)
	if err != nil || len(got.Cities) < 32 {
		t.Fatalf("%d cities, %v", len(got.Cities), err)
	}
	for i, c := range got.Cities {
		if c != x.Cities[i] {
			t.Fatalf("city %d is %+v, want %+v", i, c, x.Cities[i])
		}
	}
}

func TestBatchResidencyIsReadWithoutItsRecords(t *testing.T) {
	for _, c := range []struct {
		path, residency []zone.City
		into            zone.City
		want            bool
	}{
		{nil, nil, "anywhere", true},
		{[]zone.City{"a", "b"}, nil, "anywhere", true},
		{[]zone.City{"a"}, []zone.City{"a", "b"}, "b", true},
		{[]zone.City{"c"}, []zone.City{"a", "b"}, "c", false}, // the path is not the residency
		{nil, []zone.City{"a"}, "", false},
	} {
		b := Batch{First: 1, Count: 1, Path: c.path, Residency: c.residency, RawSize: 1, Data: []byte("x")}
		payload := b.Append(nil)
		got, err := BatchMayEnter(payload, c.into)
		if got != c.want || err != nil {
			t.Errorf("residency %v into %q: %v, %v", c.residency, c.into, got, err)
		}
		if n := testing.AllocsPerRun(10, func() { _, _ = BatchMayEnter(payload, c.into) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
		head := len(payload) - (1 + 4 + 4 + 4 + 1)
		for n := range head {
			if ok, err := BatchMayEnter(payload[:n:n], c.into); ok || err == nil {
				t.Fatalf("%d of %d bytes are let through", n, head)
			}
		}
	}
}
