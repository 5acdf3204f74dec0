package flow

import (
	"encoding/binary"
	"slices"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// run is the next piece of a flow that goes into one frame: records that share
// a residency, or numbers that are not for this leg.
type run struct {
	items     []Item
	skip      bool          // numbers without records
	gap       bool          // they are lost
	reason    record.Reason // why they are not sent
	residency []zone.City   // of the records; nil = all
	raw       int           // data bytes of the records
	traced    traced        // of the records
	topic     []byte        // of the first record, a part of it; nil when it does not parse
	free      bool          // the first record may enter any city
}

// cut takes the first run of items that has at most limit data bytes. The run
// of a first record that is larger alone has that record. old is the residency
// of the run before, used again when it is the same. trace says to note which
// records ask for spans.
func cut(items []Item, limit int, old []zone.City, trace bool) run {
	r := run{skip: items[0].Skip, gap: items[0].Gap, reason: items[0].Reason}
	for i := range items {
		it := &items[i]
		if it.Skip != r.skip || it.Gap != r.gap || it.Reason != r.reason || it.Hops != items[0].Hops || !slices.Equal(it.Path, items[0].Path) {
			break
		}
		if r.skip {
			r.items = items[:i+1]
			continue
		}
		size := wire.ItemSize(len(it.Record))
		if i > 0 && r.raw+size > limit {
			break
		}
		v, err := record.Parse(it.Record)
		// A record that does not parse goes on alone in its residency of "all":
		// the source has offered it, and the destination parks it as corrupt.
		free := err != nil || v.Unrestricted()
		if i == 0 && err == nil {
			r.topic, r.free = v.Topic(), free
		}
		switch {
		case i == 0 && !free:
			r.residency = residencyOf(v, old)
		case i > 0 && free != (len(r.residency) == 0), i > 0 && !free && !sameResidency(v, r.residency):
			return r
		}
		r.raw += size
		r.items = items[:i+1]
		if trace && err == nil && len(v.TraceContext()) > 0 {
			r.traced.add(it.Number, &v)
		}
	}
	return r
}

func residencyOf(v record.View, old []zone.City) []zone.City {
	if sameResidency(v, old) {
		return old
	}
	var cities []zone.City
	v.Residency(func(city []byte) bool {
		cities = append(cities, zone.City(city))
		return true
	})
	return cities
}

func sameResidency(v record.View, cities []zone.City) bool {
	i := 0
	v.Residency(func(city []byte) bool {
		if i < len(cities) && string(city) == string(cities[i]) {
			i++
			return true
		}
		i = -1
		return false
	})
	return i == len(cities)
}

// appendRaw appends the payload of a batch with its records' data uncompressed,
// copying each record once.
func appendRaw(dst []byte, b *wire.Batch, r *run) []byte {
	b.Codec, b.RawSize, b.Data = wire.CodecNone, uint32(r.raw), nil
	dst = slices.Grow(dst, r.raw+256)
	dst = b.Append(dst)
	// The data is the payload's last field: its length stands in the last four
	// bytes, 0 until here.
	binary.LittleEndian.PutUint32(dst[len(dst)-4:], uint32(r.raw))
	return appendData(dst, r)
}

func appendData(dst []byte, r *run) []byte {
	for i := range r.items {
		dst = wire.AppendItem(dst, r.items[i].Record)
	}
	return dst
}

// split takes a batch's data apart into its records, dropping the first skip.
func split(data []byte, count, skip uint64) ([][]byte, error) {
	records := make([][]byte, 0, count-skip)
	for i := range count {
		item, rest, err := wire.NextItem(data)
		if err != nil {
			return nil, err
		}
		data = rest
		if i >= skip {
			records = append(records, item)
		}
	}
	if len(data) > 0 {
		return nil, refused(wire.CodeMalformed, "%d bytes behind the last record", len(data))
	}
	return records, nil
}

// isIn reports whether the residency allows the city.
func isIn(residency []zone.City, c zone.City) bool {
	return len(residency) == 0 || slices.Contains(residency, c)
}
