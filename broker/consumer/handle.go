package consumer

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"sync"

	"github.com/cespare/xxhash/v2"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Handle names one delivery of one message to one consumer group. Its text
// needs no memory anywhere else: any node that has the secret can check it.
//
// Bytes before base64url without padding, all integers little endian:
//
//	 0  version u8 = 1
//	 1  incarnation u64
//	 9  group u64
//	17  topic u64
//	25  queue u16
//	27  offset u64
//	35  delivery u64
//	43  first 16 bytes of HMAC-SHA256(secret, bytes 0 to 42)
type Handle struct {
	Incarnation record.Incarnation // of the store that holds the message
	Group       uint64             // HashGroup of the consumer group
	Topic       uint64             // the broker's id of the topic, incarnation of the topic included
	Queue       uint16
	Offset      uint64
	Delivery    uint64
}

// The sizes of a handle in bytes. 128 bits of a MAC cannot be guessed, and
// they keep the text below 80 characters.
const (
	handleVersion = 1
	handleData    = 43
	handleMAC     = 16
	handleSize    = handleData + handleMAC
)

// handleText is the length of every handle's text in characters.
const handleText = (handleSize*8 + 5) / 6

// handleEncoding is strict, so that one handle has one text.
var handleEncoding = base64.RawURLEncoding.Strict()

// HashGroup returns the hash of a consumer group's name as handles carry it.
func HashGroup(g zone.ConsumerGroup) uint64 { return xxhash.Sum64String(string(g)) }

// Sealer makes and checks handles. It is safe for concurrent use.
type Sealer struct {
	states sync.Pool // of *sealing, each keyed with the secret
}

// sealing is what one Seal or Open needs.
type sealing struct {
	mac hash.Hash
	b   [handleSize]byte
	sum [sha256.Size]byte
	txt [handleText]byte
}

// NewSealer returns a sealer; the secret is copied. A secret of 32 random
// bytes is right; a node that keeps it over a restart keeps its handles valid.
func NewSealer(secret []byte) *Sealer {
	secret = bytes.Clone(secret)
	s := &Sealer{}
	s.states.New = func() any { return &sealing{mac: hmac.New(sha256.New, secret)} }
	return s
}

// Seal returns the text of a handle: 79 characters of A-Z a-z 0-9 - _.
func (s *Sealer) Seal(h Handle) string {
	t := s.states.Get().(*sealing)
	defer s.states.Put(t)
	b := t.b[:0]
	b = append(b, handleVersion)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.Incarnation))
	b = binary.LittleEndian.AppendUint64(b, h.Group)
	b = binary.LittleEndian.AppendUint64(b, h.Topic)
	b = binary.LittleEndian.AppendUint16(b, h.Queue)
	b = binary.LittleEndian.AppendUint64(b, h.Offset)
	binary.LittleEndian.PutUint64(t.b[len(b):], h.Delivery)
	copy(t.b[handleData:], t.seal())
	handleEncoding.Encode(t.txt[:], t.b[:])
	return string(t.txt[:])
}

// seal returns the truncated MAC over the data in t.b; valid until the next call.
func (t *sealing) seal() []byte {
	t.mac.Reset()
	t.mac.Write(t.b[:handleData])
	return t.mac.Sum(t.sum[:0])[:handleMAC]
}

// Open checks and decodes the text of a handle. *HandleError with
// ReasonMalformed when Seal did not make it with the same secret.
func (s *Sealer) Open(text string) (Handle, error) {
	if len(text) != handleText {
		return Handle{}, &HandleError{Reason: ReasonMalformed}
	}
	t := s.states.Get().(*sealing)
	defer s.states.Put(t)
	copy(t.txt[:], text)
	n, err := handleEncoding.Decode(t.b[:], t.txt[:])
	if err != nil || n != handleSize || t.b[0] != handleVersion || !hmac.Equal(t.seal(), t.b[handleData:]) {
		return Handle{}, &HandleError{Reason: ReasonMalformed}
	}
	return Handle{
		Incarnation: record.Incarnation(binary.LittleEndian.Uint64(t.b[1:])),
		Group:       binary.LittleEndian.Uint64(t.b[9:]),
		Topic:       binary.LittleEndian.Uint64(t.b[17:]),
		Queue:       binary.LittleEndian.Uint16(t.b[25:]),
		Offset:      binary.LittleEndian.Uint64(t.b[27:]),
		Delivery:    binary.LittleEndian.Uint64(t.b[35:]),
	}, nil
}
