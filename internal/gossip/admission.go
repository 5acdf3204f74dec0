package gossip

import (
	"crypto/aes"
	"crypto/cipher"
	"sync/atomic"

	"github.com/hashicorp/memberlist"
)

// Layout of what memberlist sends: a label header (type, length, label), then
// for packets the encrypted payload: version 1, nonce, ciphertext with tag,
// where the label is authenticated data.
const (
	labelType      = 244 // memberlist's message type of the label header
	cipherVersion  = 1   // memberlist's encryption version without padding
	nonceSize      = 12  // bytes, AES-GCM
	cipherOverhead = 1 + nonceSize + 16
)

// Stats counts what a pool refused since it was opened.
type Stats struct {
	ForeignLabel   uint64 // packets and streams of another pool
	ForeignKey     uint64 // packets and streams with the right label and an unknown key
	Malformed      uint64 // metadata or names that this package does not write
	StreamsRefused uint64 // inbound streams above the bound
	PacketsDropped uint64 // packets that came faster than they were handled
	NameConflicts  uint64 // other living nodes seen under this node's name
	JoinFailures   uint64 // attempts to reach a seed that failed
}

// counters are the Stats, each safe for concurrent use.
type counters struct {
	foreignLabel, foreignKey, malformed, streamsRefused atomic.Uint64
	packetsDropped, nameConflicts, joinFailures         atomic.Uint64
}

func (c *counters) stats() Stats {
	return Stats{
		ForeignLabel: c.foreignLabel.Load(), ForeignKey: c.foreignKey.Load(),
		Malformed: c.malformed.Load(), StreamsRefused: c.streamsRefused.Load(),
		PacketsDropped: c.packetsDropped.Load(), NameConflicts: c.nameConflicts.Load(),
		JoinFailures: c.joinFailures.Load(),
	}
}

// admission decides what belongs to the pool. It is safe for concurrent use.
type admission struct {
	streamPrefix []byte // label header; never changed
	label        []byte // never changed
	aeads        atomic.Pointer[[]cipher.AEAD]
}

func newAdmission(label string, keys [][]byte) (*admission, error) {
	prefix, err := memberlist.AddLabelHeaderToPacket(nil, label)
	if err != nil {
		return nil, err
	}
	a := &admission{streamPrefix: prefix, label: []byte(label)}
	return a, a.accept(keys)
}

// accept replaces the keys.
func (a *admission) accept(keys [][]byte) error {
	var aeads []cipher.AEAD
	for _, k := range keys {
		block, err := aes.NewCipher(k)
		if err != nil {
			return err
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			return err
		}
		aeads = append(aeads, aead)
	}
	a.aeads.Store(&aeads)
	return nil
}

// packet reports whether the packet carries the pool's label and was sealed
// with one of its keys, and counts it when not. memberlist checks the same
// again, but logs every failure, and whoever can reach the port could flood
// the log. It does not change b.
func (a *admission) packet(b []byte, c *counters) bool {
	rest, label, err := memberlist.RemoveLabelHeaderFromPacket(b)
	if err != nil || label != string(a.label) {
		c.foreignLabel.Add(1)
		return false
	}
	if len(rest) >= cipherOverhead && rest[0] == cipherVersion {
		for _, aead := range *a.aeads.Load() {
			if _, err := aead.Open(nil, rest[1:1+nonceSize], rest[1+nonceSize:], a.label); err == nil {
				return true
			}
		}
	}
	c.foreignKey.Add(1)
	return false
}
