package zone

import "github.com/cespare/xxhash/v2"

// hot is what Resolve reads, laid out so that 10,000 zones and 100,000 shards
// stay in a processor's cache: following the pointers of ZoneInfo and the
// strings of a map costs several misses, and with them the promised 100 ns.
type hot struct {
	owners       []uint32     // zone index by shard
	zones        []hotZone    // by zone index
	groups       []*GroupInfo // of all zones, one zone after the other
	destinations nameTable    // zone or city name -> index of the zone where it lands
}

type hotZone struct {
	zone   *ZoneInfo
	city   *CityInfo
	slots  *[Slots]uint16 // as in ZoneInfo
	groups uint32         // index in hot.groups of the zone's first group
	index  uint32         // of the city
}

// makeHot lays out a topology that is valid.
func makeHot(t *Topology) hot {
	h := hot{destinations: makeNameTable(len(t.index.destinations))}
	for _, z := range t.index.zoneList {
		h.zones = append(h.zones, hotZone{
			zone: z, city: z.City, slots: z.slots, groups: uint32(len(h.groups)), index: uint32(z.City.Index),
		})
		h.groups = append(h.groups, z.Groups...)
	}
	for _, z := range t.index.shardOwners {
		h.owners = append(h.owners, uint32(z.Index))
	}
	for name, z := range t.index.destinations {
		h.destinations.put(name, uint32(z.Index))
	}
	return h
}

// owner returns the group of the zone that owns the slot.
func (h *hot) owner(z *hotZone, s Slot) *GroupInfo {
	if z.slots == nil {
		return h.groups[z.groups]
	}
	return h.groups[z.groups+uint32(z.slots[s%Slots])]
}

// nameTable maps names of places to numbers. The names stand in the table
// itself, so that a lookup touches one cache line as a rule. Collisions go to
// the next entry; at most two thirds of the entries are used, so a search ends.
type nameTable struct{ entries []nameEntry }

type nameEntry struct {
	name   [maxPlaceName]byte
	length uint8 // 0: not used
	index  uint32
}

func makeNameTable(names int) nameTable {
	size := 2
	for 2*size < 3*names {
		size *= 2
	}
	return nameTable{entries: make([]nameEntry, size)}
}

// find returns the entry of the name, or the free one where it belongs. name
// has between 1 and maxPlaceName bytes.
func (t nameTable) find(name string) *nameEntry {
	mask := uint64(len(t.entries) - 1)
	for i := xxhash.Sum64String(name); ; i++ {
		e := &t.entries[i&mask]
		if e.length == 0 || string(e.name[:e.length]) == name {
			return e
		}
	}
}

func (t nameTable) put(name string, index uint32) {
	e := t.find(name)
	e.length, e.index = uint8(copy(e.name[:], name)), index
}

func (t nameTable) get(name string) (index uint32, known bool) {
	if len(name) == 0 || len(name) > maxPlaceName || len(t.entries) == 0 {
		return 0, false
	}
	e := t.find(name)
	return e.index, e.length != 0
}
