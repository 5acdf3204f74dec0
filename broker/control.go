package broker

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// BodyError says that the body of a control record cannot be read: it is
// damaged, or written by a newer version.
type BodyError struct {
	What    string
	Version uint8
}

// Error names the body and its version.
func (e *BodyError) Error() string {
	return fmt.Sprintf("%s: version %d cannot be read", e.What, e.Version)
}

// The bodies of control records. str is a uvarint length and its bytes, n a
// uvarint count, flow as in Cause. Each begins with a version byte.
//
//	TypeTopologyApplied  version u8 = 1 or 2 | term, number uvarint | digest 32 bytes |
//	                     n, each topic:   name str, queues uvarint, retention ms uvarint, flags u8 (1 broadcast, 2 its channel follows, 4 the topic of its receipts follows, 8 the number of its lite topics follows), channel str, receipts str, lite topics uvarint |
//	                     n, each group:   name str, flags u8 (1 cache), n, each topic name str |
//	                     n, each channel: name str, n, each leg: city str, group str |
//	                     n, each zone:    name str, owned u64 (hash of its shards and its groups' slots)
//	                     in version 2: n, each channel: name str, served onward u8, n, each leg onward from here: city str, group str
//	TypeProgress         version u8 = 1 | n, each topic: name str, incarnation u64 | a delta of package consumer
//	TypeSettle           version u8 = 2 | n, each leg: flow, city str, group str, through uvarint,
//	                     lineage u64 of a flow that landed here, else 0
//	TypeSeal             version u8 = 1 | flow
//	TypeGiveUp           version u8 = 1 | flow, city str, group str, kind u8 (1 gap, 2 compacted, 3 withdrawn) |
//	                     n, each range: distance from the end of the one before, length
//	TypeOffsets          version u8 = 1 | group str, topic str, incarnation u64 | n, each queue: number uvarint, offset uvarint
//	TypeLite             version u8 = 1 | kind u8 = 1 (forgotten) | topic str, incarnation u64 | n, each lite topic: number u32, offset of its newest message uvarint
//	                     version u8 = 1 | kind u8 = 2 (moved) | topic str, incarnation u64, group str | settled, to come again: ranges of offsets as in TypeGiveUp
//	TypeCarried          version u8 = 1 (a dead letter; a half message: topic empty, all up to the time 0, stored ms) |
//	                     topic str, incarnation u64, offset uvarint, hash u32, given up ms u64 |
//	                     record: length uvarint, bytes
//	                     version u8 = 2 (a delayed message) | bucket uvarint, number uvarint, number that its handle names uvarint, due ms u64 |
//	                     record: length uvarint, bytes
//	TypeRecall           version u8 = 1 | bucket uvarint, number uvarint; its Cause, when an operator ordered it: version u8 = 16 | by str, why str
//	TypeHalf             the message; its Cause: version u8 = 1 | immunity ms uvarint
//	TypeRollback         version u8 = 1 | epoch uvarint, position uvarint of the half message; its Cause as that of TypeRecall
//	TypeChecked          version u8 = 2 | n, each half message: epoch uvarint, position uvarint, checks uvarint, of these forgiven uvarint (not in version 1)
const (
	topologyVersion = 1
	topologyOnward  = 2 // with what is served onward; written only when there is something
	progressVersion = 1
	settleVersion   = 2
	sealVersion     = 1
	giveUpVersion   = 1
	carriedVersion  = 1
	offsetsVersion  = 1
	liteVersion     = 1
	carriedTimer    = 2
	recallVersion   = 1
	termsVersion    = 1
	rollbackVersion = 1
	checkedVersion  = 2
	checkedPlain    = 1 // without what is forgiven; only read
)

const (
	flagBroadcast = 1
	flagChannel   = 2
	flagReceipts  = 4
	flagLite      = 8
	flagCache     = 1
)

// topologyBody is what the fold needs of a topology: what lands and consumes
// in this zone, and the legs of channels.
type topologyBody struct {
	epoch    zone.Epoch
	digest   zone.Digest
	topics   []topicBody
	groups   []groupBody
	channels []channelBody
	owners   []ownerBody
}

// ownerBody says what a zone owns, as a hash: a broker that finds another one
// under a newer topology knows that something has moved. The zone without a
// name stands for the choice of the active GZone.
type ownerBody struct {
	zone  zone.Zone
	owned uint64
}

type topicBody struct {
	name      zone.Topic
	queues    int
	retention time.Duration
	broadcast bool
	channel   string // whose numbers the topic's records have; empty when it is no broadcast
	receipts  zone.Topic
	lite      int // lite topics that it may have; 0 = none
}

type groupBody struct {
	name   zone.ConsumerGroup
	cache  bool
	topics []zone.Topic
}

type channelBody struct {
	name   string
	legs   []legKey
	serves bool     // what lands here may be asked for by other cities, or goes onward
	onward []legKey // from this group to the zones of its city
}

// legKey is a destination inside a flow.
type legKey struct {
	city  zone.City
	group zone.Group
}

func (t *topologyBody) append(dst []byte) []byte {
	e := encoder{b: dst}
	onward := slices.ContainsFunc(t.channels, func(c channelBody) bool { return c.serves })
	if onward {
		e.byte(topologyOnward)
	} else {
		e.byte(topologyVersion)
	}
	e.uint(t.epoch.Term)
	e.uint(t.epoch.Number)
	e.raw(t.digest[:])
	e.uint(uint64(len(t.topics)))
	for _, x := range t.topics {
		e.str(string(x.name))
		e.uint(uint64(x.queues))
		e.uint(uint64(x.retention / time.Millisecond))
		e.byte(flagIf(x.broadcast, flagBroadcast) | flagIf(x.channel != "", flagChannel) | flagIf(x.receipts != "", flagReceipts) | flagIf(x.lite > 0, flagLite))
		if x.channel != "" {
			e.str(x.channel)
		}
		if x.receipts != "" {
			e.str(string(x.receipts))
		}
		if x.lite > 0 {
			e.uint(uint64(x.lite))
		}
	}
	e.uint(uint64(len(t.groups)))
	for _, x := range t.groups {
		e.str(string(x.name))
		e.byte(flagIf(x.cache, flagCache))
		e.uint(uint64(len(x.topics)))
		for _, topic := range x.topics {
			e.str(string(topic))
		}
	}
	e.uint(uint64(len(t.channels)))
	for _, x := range t.channels {
		e.str(x.name)
		e.uint(uint64(len(x.legs)))
		for _, l := range x.legs {
			e.str(string(l.city))
			e.str(string(l.group))
		}
	}
	e.uint(uint64(len(t.owners)))
	for _, o := range t.owners {
		e.str(string(o.zone))
		e.u64(o.owned)
	}
	if onward {
		e.uint(uint64(len(t.channels)))
		for _, c := range t.channels {
			e.str(c.name)
			e.bool(c.serves)
			e.legKeys(c.onward)
		}
	}
	return e.b
}

func flagIf(on bool, flag byte) byte {
	if on {
		return flag
	}
	return 0
}

func parseTopologyBody(b []byte) (*topologyBody, error) {
	d := decoder{b: b}
	version := d.byte()
	if version != topologyVersion && version != topologyOnward {
		return nil, &BodyError{What: "topology applied", Version: version}
	}
	t := &topologyBody{epoch: zone.Epoch{Term: d.uint(), Number: d.uint()}}
	copy(t.digest[:], d.take(uint64(len(t.digest))))
	for range d.count() {
		x := topicBody{
			name:      zone.Topic(d.str()),
			queues:    int(d.uint()),
			retention: time.Duration(d.uint()) * time.Millisecond,
		}
		flags := d.byte()
		x.broadcast = flags&flagBroadcast != 0
		if flags&flagChannel != 0 {
			x.channel = d.str()
		}
		if flags&flagReceipts != 0 {
			x.receipts = zone.Topic(d.str())
		}
		if flags&flagLite != 0 {
			x.lite = int(d.uint())
		}
		t.topics = append(t.topics, x)
	}
	for range d.count() {
		g := groupBody{name: zone.ConsumerGroup(d.str()), cache: d.byte()&flagCache != 0}
		for range d.count() {
			g.topics = append(g.topics, zone.Topic(d.str()))
		}
		t.groups = append(t.groups, g)
	}
	for range d.count() {
		c := channelBody{name: d.str()}
		for range d.count() {
			c.legs = append(c.legs, legKey{city: zone.City(d.str()), group: zone.Group(d.str())})
		}
		t.channels = append(t.channels, c)
	}
	for range d.count() {
		t.owners = append(t.owners, ownerBody{zone: zone.Zone(d.str()), owned: d.u64()})
	}
	if version == topologyOnward {
		d.onward(t.channels)
	}
	if !d.ok() {
		return nil, &BodyError{What: "topology applied", Version: version}
	}
	return t, nil
}

// onward reads the legs onward of the channels, which come in the same order.
func (d *decoder) onward(channels []channelBody) {
	if d.count() != len(channels) {
		d.bad = true
		return
	}
	for i := range channels {
		if d.str() != channels[i].name {
			d.bad = true
		}
		channels[i].serves = d.bool()
		channels[i].onward = d.legKeys()
	}
}

// appendProgressBody encodes a delta with the incarnation of each topic in it,
// so that progress of a former topic of the same name is void.
func appendProgressBody(dst []byte, incarnations map[zone.Topic]record.Position, delta *consumer.Delta) []byte {
	e := encoder{b: dst}
	e.byte(progressVersion)
	e.uint(uint64(len(incarnations)))
	for _, name := range sortedKeys(incarnations) {
		e.str(string(name))
		e.u64(uint64(incarnations[name]))
	}
	return delta.Append(e.b)
}

func parseProgressBody(b []byte) (map[zone.Topic]record.Position, consumer.Delta, error) {
	d := decoder{b: b}
	if v := d.byte(); v != progressVersion {
		return nil, consumer.Delta{}, &BodyError{What: "progress", Version: v}
	}
	incarnations := map[zone.Topic]record.Position{}
	for range d.count() {
		name := zone.Topic(d.str())
		incarnations[name] = record.Position(d.u64())
	}
	if d.bad {
		return nil, consumer.Delta{}, &BodyError{What: "progress", Version: progressVersion}
	}
	delta, err := consumer.ParseDelta(d.b)
	return incarnations, delta, err
}

// settled is how far a leg is settled.
type settled struct {
	through uint64
	// lineage is the one that through is of, for a flow that landed here: when its
	// origin came back as an older copy meanwhile, the number has another meaning
	// and moves no cursor. 0 for a flow of this group.
	lineage record.LineageID
}

// then returns what holds when b is heard after a.
func (a settled) then(b settled) settled {
	if b.through == 0 || a.lineage == b.lineage && a.through > b.through {
		return a
	}
	return b
}

// settleItem moves the cursor of one leg.
type settleItem struct {
	leg flow.Leg
	to  settled
}

func appendSettleBody(dst []byte, items []settleItem) []byte {
	e := encoder{b: dst}
	e.byte(settleVersion)
	e.uint(uint64(len(items)))
	for _, it := range items {
		e.flow(it.leg.Flow)
		e.str(string(it.leg.City))
		e.str(string(it.leg.Group))
		e.uint(it.to.through)
		e.u64(uint64(it.to.lineage))
	}
	return e.b
}

func parseSettleBody(b []byte) ([]settleItem, error) {
	d := decoder{b: b}
	if v := d.byte(); v != settleVersion {
		return nil, &BodyError{What: "settle", Version: v}
	}
	var items []settleItem
	for range d.count() {
		it := settleItem{leg: flow.Leg{Flow: d.flow(), City: zone.City(d.str()), Group: zone.Group(d.str())}}
		it.to = settled{d.uint(), record.LineageID(d.u64())}
		items = append(items, it)
	}
	if !d.ok() {
		return nil, &BodyError{What: "settle", Version: settleVersion}
	}
	return items, nil
}

func appendSealBody(dst []byte, id record.FlowID) []byte {
	e := encoder{b: dst}
	e.byte(sealVersion)
	e.flow(id)
	return e.b
}

func parseSealBody(b []byte) (record.FlowID, error) {
	d := decoder{b: b}
	if v := d.byte(); v != sealVersion {
		return record.FlowID{}, &BodyError{What: "seal", Version: v}
	}
	id := d.flow()
	if !d.ok() {
		return record.FlowID{}, &BodyError{What: "seal", Version: sealVersion}
	}
	return id, nil
}

// sortedKeys returns the keys in ascending order: what the fold does in order,
// it does in the same order at every replay.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	return slices.Sorted(maps.Keys(m))
}
