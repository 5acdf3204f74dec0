package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hashicorp/memberlist"

	"github.com/mqrouter/mqrouter/zone"
)

// MaxMeta is the limit of the encoded metadata in bytes; it is memberlist's.
const MaxMeta = memberlist.MetaMaxSize

const (
	metaVersion  = 1    // what every version begins with
	termVersion  = 2    // appends the epoch of the group's term
	awayVersion  = 3    // appends who does not follow the master
	metaFixed    = 27   // bytes before the texts; see the package comment
	flagDraining = 0x01 // bit 0 of the flags
	flagLeads    = 0x02 // bit 1 of the flags
)

// Errors of the metadata.
var (
	// ErrMetaTooLarge says that the encoded metadata would be longer than
	// MaxMeta, or one of its texts longer than 255 bytes.
	ErrMetaTooLarge = errors.New("gossip: metadata too large")
	// ErrMetaMalformed says that received metadata is not what this package
	// writes.
	ErrMetaMalformed = errors.New("gossip: malformed metadata")
)

// Meta is what a node tells about itself.
type Meta struct {
	Role     zone.Role
	Draining bool
	// Start is the process start in Unix nanoseconds. It orders the starts of
	// one node. Zero lets Open take the clock.
	Start uint64
	Epoch zone.Epoch // the topology that the node runs with
	City  zone.City
	Zone  zone.Zone  // empty for routers
	Group zone.Group // empty for routers
	// Term is the newest epoch of the group's coordinator that the node knows; 0 = none,
	// or the group has one node. Leads says that the node is master in it. Hints.
	Term  uint64
	Leads bool
	// Away names the nodes of the group that do not follow this master, joined by commas:
	// it knows that before the pool does. A hint of at most 255 bytes, which is left out
	// where there is no room; empty of one that does not lead.
	Away string
	Peer string // host:port of in-city TCP
	QUIC string // host:port between cities; empty for brokers
}

// Encode appends the encoded form to dst. It fails with ErrMetaTooLarge.
func (m *Meta) Encode(dst []byte) ([]byte, error) {
	texts := m.texts()
	size := metaFixed
	for _, t := range texts {
		if len(t) > 255 {
			return dst, fmt.Errorf("%w: %d bytes in one field, at most 255", ErrMetaTooLarge, len(t))
		}
		size += 1 + len(t)
	}
	version := byte(metaVersion)
	if m.Term != 0 {
		version = termVersion
		size += 8
	}
	if n := 1 + len(m.Away); m.Term != 0 && m.Leads && n > 1 && n <= 256 && size+n <= MaxMeta {
		version = awayVersion
		size += n
	}
	if size > MaxMeta {
		return dst, fmt.Errorf("%w: %d bytes, at most %d", ErrMetaTooLarge, size, MaxMeta)
	}
	var flags byte
	if m.Draining {
		flags |= flagDraining
	}
	if m.Leads {
		flags |= flagLeads
	}
	dst = append(dst, version, byte(m.Role), flags)
	dst = binary.BigEndian.AppendUint64(dst, m.Start)
	dst = binary.BigEndian.AppendUint64(dst, m.Epoch.Term)
	dst = binary.BigEndian.AppendUint64(dst, m.Epoch.Number)
	for _, t := range texts {
		dst = append(dst, byte(len(t)))
		dst = append(dst, t...)
	}
	if version >= termVersion {
		dst = binary.BigEndian.AppendUint64(dst, m.Term)
	}
	if version == awayVersion {
		dst = append(append(dst, byte(len(m.Away))), m.Away...)
	}
	return dst, nil
}

func (m *Meta) texts() [5]string {
	return [5]string{string(m.City), string(m.Zone), string(m.Group), m.Peer, m.QUIC}
}

// DecodeMeta parses what Encode wrote. Bytes after the known fields are a
// later version's and are ignored. It fails with ErrMetaMalformed and keeps
// no reference to b.
func DecodeMeta(b []byte) (Meta, error) {
	if len(b) > MaxMeta || len(b) < metaFixed {
		return Meta{}, fmt.Errorf("%w: %d bytes", ErrMetaMalformed, len(b))
	}
	if b[0] < metaVersion {
		return Meta{}, fmt.Errorf("%w: version %d", ErrMetaMalformed, b[0])
	}
	m := Meta{
		Role:     zone.Role(b[1]),
		Draining: b[2]&flagDraining != 0,
		Start:    binary.BigEndian.Uint64(b[3:]),
		Epoch: zone.Epoch{
			Term:   binary.BigEndian.Uint64(b[11:]),
			Number: binary.BigEndian.Uint64(b[19:]),
		},
	}
	rest := b[metaFixed:]
	var texts [5]string
	for i := range texts {
		if len(rest) < 1 || len(rest) < 1+int(rest[0]) {
			return Meta{}, fmt.Errorf("%w: cut off in field %d", ErrMetaMalformed, i)
		}
		n := 1 + int(rest[0])
		texts[i], rest = string(rest[1:n]), rest[n:]
	}
	m.City, m.Zone, m.Group = zone.City(texts[0]), zone.Zone(texts[1]), zone.Group(texts[2])
	m.Peer, m.QUIC = texts[3], texts[4]
	if b[0] >= termVersion {
		if len(rest) < 8 {
			return Meta{}, fmt.Errorf("%w: cut off in the term", ErrMetaMalformed)
		}
		m.Term, rest = binary.BigEndian.Uint64(rest), rest[8:]
	}
	m.Leads = b[2]&flagLeads != 0 && m.Term != 0
	if b[0] >= awayVersion && m.Leads {
		if len(rest) < 1 || len(rest) < 1+int(rest[0]) {
			return Meta{}, fmt.Errorf("%w: cut off in who is away", ErrMetaMalformed)
		}
		m.Away = string(rest[1 : 1+int(rest[0])])
	}
	return m, nil
}
