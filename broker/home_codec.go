package broker

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// The bodies of CallPublish: messages there, results back. Integers, str and n are
// as in control.go; a time is a u64 of microseconds since 1970, 0 = none.
//
//	sends    version u8 = 1 | n, each message: topic str, id str, tag str, n keys: str, message group str, kind u8,
//	         n properties: key str, value str, encoding u8, digest type u8, digest str, born, born host str,
//	         trace context str, queue + 1, attempt, deliver at, recovery ms,
//	         priority u32, body str
//	results  version u8 = 1 | n, each: error kind, error text str, queue, offset + 1, level u8, zone str, group str, channel str, recall handle str,
//	         transaction id str
const sendsVersion = 1

var errSends = errors.New("messages or results that another broker sent cannot be read")

// appendSends encodes as many of the messages, in order, as one call takes, and
// returns how many.
func appendSends(msgs []Message) (body []byte, n int) {
	size := 16
	for n < len(msgs) && size+sendSize(&msgs[n]) <= MaxCallBody {
		size += sendSize(&msgs[n])
		n++
	}
	e := encoder{b: make([]byte, 0, size)}
	e.byte(sendsVersion)
	e.uint(uint64(n))
	for i := range n {
		e.send(&msgs[i])
	}
	return e.b, n
}

// sendSize is at least the length of a message's encoding.
func sendSize(m *Message) int {
	const each = 10 // the longest varint
	n := 16*each + len(m.Topic.Name) + len(m.ID) + len(m.Tag) + len(m.MessageGroup) + len(m.Digest.Checksum) +
		len(m.BornHost) + len(m.TraceContext) + len(m.Body)
	for _, k := range m.Keys {
		n += each + len(k)
	}
	for k, v := range m.Properties {
		n += 2*each + len(k) + len(v)
	}
	return n
}

func (e *encoder) time(t time.Time) {
	if t.IsZero() {
		e.u64(0)
		return
	}
	e.u64(uint64(t.UnixMicro()))
}

func (d *decoder) time() time.Time {
	us := int64(d.u64())
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

func (e *encoder) send(m *Message) {
	e.str(string(m.Topic.Name))
	e.str(m.ID)
	e.str(m.Tag)
	e.uint(uint64(len(m.Keys)))
	for _, k := range m.Keys {
		e.str(k)
	}
	e.str(m.MessageGroup)
	e.byte(byte(m.Kind))
	e.uint(uint64(len(m.Properties)))
	for _, k := range slices.Sorted(maps.Keys(m.Properties)) {
		e.str(k)
		e.str(m.Properties[k])
	}
	e.byte(byte(m.Encoding))
	e.byte(m.Digest.Type)
	e.str(m.Digest.Checksum)
	e.time(m.Born)
	e.str(m.BornHost)
	e.str(m.TraceContext)
	e.uint(uint64(max(m.Queue, AnyQueue) + 1))
	e.uint(uint64(max(m.Attempt, 0)))
	e.time(m.DeliverAt)
	e.uint(uint64(max(m.Recovery, 0) / time.Millisecond))
	e.u32(uint32(m.Priority))
	e.uint(uint64(len(m.Body)))
	e.raw(m.Body)
}

// parseSends reads messages; their topics are the topology's. Bodies are parts of b.
func parseSends(topo *zone.Topology, b []byte) ([]Message, error) {
	d := decoder{b: b}
	if v := d.byte(); v != sendsVersion {
		return nil, &Error{Op: "publish", Kind: KindUnsupported, Text: fmt.Sprintf("messages of version %d", v)}
	}
	msgs := make([]Message, 0, min(d.count(), 1024))
	for range cap(msgs) {
		m, err := d.send(topo)
		if err != nil {
			return nil, err
		}
		msgs = append(msgs, m)
	}
	if !d.ok() {
		return nil, &Error{Op: "publish", Kind: KindInvalid, Err: errSends}
	}
	return msgs, nil
}

func (d *decoder) send(topo *zone.Topology) (m Message, err error) {
	name := zone.Topic(d.str())
	if m.Topic = topo.FindTopic(name); m.Topic == nil && !d.bad {
		return m, &Error{Op: "publish", Kind: KindTopicUnknown, Topic: name, Text: "at the group that must store it"}
	}
	m.ID, m.Tag = d.str(), d.str()
	for range d.count() {
		m.Keys = append(m.Keys, d.str())
	}
	m.MessageGroup, m.Kind = d.str(), zone.MessageKind(d.byte())
	if n := d.count(); n > 0 {
		m.Properties = make(map[string]string, n)
		for range n {
			k := d.str()
			m.Properties[k] = d.str()
		}
	}
	m.Encoding = record.Encoding(d.byte())
	m.Digest = record.Digest{Type: d.byte(), Checksum: d.str()}
	m.Born = d.time()
	m.BornHost, m.TraceContext = d.str(), d.str()
	m.Queue, m.Attempt = int(d.uint())-1, int(d.uint())
	m.DeliverAt = d.time()
	m.Recovery = time.Duration(d.uint()) * time.Millisecond
	m.Priority = int32(d.u32())
	m.Body = d.bytes()
	return m, nil
}

// appendSent encodes results.
func appendSent(dst []byte, out []PublishResult) []byte {
	e := encoder{b: dst}
	e.byte(sendsVersion)
	e.uint(uint64(len(out)))
	for i := range out {
		e.sent(&out[i])
	}
	return e.b
}

func (e *encoder) sent(r *PublishResult) {
	kind, text := Kind(0), ""
	if r.Err != nil {
		kind, text = max(KindOf(r.Err), 1), r.Err.Error()
	}
	e.uint(uint64(kind))
	e.str(text)
	e.uint(uint64(r.Queue))
	e.uint(uint64(r.Offset + 1))
	e.byte(byte(r.Level))
	var z zone.Zone
	var g zone.Group
	var c zone.Channel
	if r.Destination.Zone != nil {
		z = r.Destination.Zone.Name
	}
	if r.Destination.Group != nil {
		g = r.Destination.Group.Name
	}
	if r.Destination.Channel != nil {
		c = r.Destination.Channel.Name
	}
	e.str(string(z))
	e.str(string(g))
	e.str(string(c))
	e.str(r.Recall)
	e.str(r.TransactionID)
}

// parseSent reads the results of the messages. Destinations that this topology
// does not know are left out.
func (v *view) parseSent(b []byte, msgs []Message, out []PublishResult) error {
	d := decoder{b: b}
	if version := d.byte(); version != sendsVersion || d.count() != len(msgs) {
		return &Error{Op: "publish", Kind: KindInternal, Err: errSends}
	}
	for i := range out {
		out[i] = d.sent(v, msgs[i].Topic)
	}
	if !d.ok() {
		return &Error{Op: "publish", Kind: KindInternal, Err: errSends}
	}
	return nil
}

func (d *decoder) sent(v *view, t *zone.TopicInfo) (r PublishResult) {
	if kind, text := Kind(d.uint()), d.str(); kind != 0 {
		r.Err = &Error{Op: "publish", Kind: kind, Topic: t.Name, Text: text}
	}
	r.Queue, r.Offset, r.Level = int(d.uint()), int64(d.uint())-1, Level(d.byte())
	r.Destination.Zone = v.topo.FindZone(zone.Zone(d.str()))
	r.Destination.Group = v.topo.FindGroup(zone.Group(d.str()))
	if name := zone.Channel(d.str()); name != "" && t.Channel != nil && t.Channel.Name == name {
		r.Destination.Channel = t.Channel
	}
	r.Recall, r.TransactionID = d.str(), d.str()
	return r
}
