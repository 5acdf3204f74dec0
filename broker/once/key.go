package once

import (
	"crypto/sha256"
	"encoding/binary"
)

// Key stands for a client's message id: 16 bytes of its SHA-256. A publisher must
// not be able to make an id that passes for somebody else's.
func Key(id string) (key [16]byte) {
	sum := sha256.Sum256([]byte(id))
	copy(key[:], sum[:])
	return key
}

// Content is the digest of what makes two messages with one id the same: the
// texts, one behind the other and each with its length, and the body. Fewer bytes
// than of a key are enough: it tells a publisher's mistake, and nobody gains by
// making his own two messages pass for one.
func Content(texts []string, body []byte) uint64 {
	h := sha256.New()
	var n [8]byte
	for _, s := range texts {
		binary.LittleEndian.PutUint64(n[:], uint64(len(s)))
		_, _ = h.Write(n[:]) // a hash never fails
		_, _ = h.Write([]byte(s))
	}
	_, _ = h.Write(body)
	var sum [sha256.Size]byte
	return binary.LittleEndian.Uint64(h.Sum(sum[:0]))
}
