package transaction

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// A transaction id is the identity of a half message and its seal. Any broker can
// read whose it is; only the owner can tell that it gave it out.
//
// Bytes before base64url without padding, all integers little endian:
//
//	 0  version u8 = 1
//	 1  incarnation u64
//	 9  epoch u64
//	17  position u64
//	25  first 16 bytes of HMAC-SHA256(secret, purpose, all other bytes)
//	41  name of the broker group
const (
	idVersion = 1
	idSeal    = 25
	idGroup   = 41
	maxGroup  = 128 // bytes of a name; the topology allows fewer

	// MaxID is the length of the longest transaction id in characters.
	MaxID = ((idGroup+maxGroup)*8 + 5) / 6
)

// purpose keeps seals of transaction ids apart from those of receipt handles,
// which are made with the same secret.
var purpose = []byte("mqrouter transaction id 1\n")

// idEncoding is strict, so that one id has one text.
var idEncoding = base64.RawURLEncoding.Strict()

// Errors of Owner and Sealer.Open.
var (
	ErrMalformed = errors.New("the transaction id is malformed")
	ErrForeign   = errors.New("the transaction id was not given out by this store")
)

// Sealer makes and checks transaction ids. It is safe for concurrent use.
type Sealer struct{ secret []byte }

// NewSealer returns a sealer; the secret is kept. A secret that stays over a
// restart keeps the ids valid.
func NewSealer(secret []byte) *Sealer { return &Sealer{secret: secret} }

// Seal returns the transaction id of a half message: A-Z a-z 0-9 - _.
func (s *Sealer) Seal(id record.Identity) string {
	b := make([]byte, idGroup, idGroup+len(id.Group))
	b[0] = idVersion
	binary.LittleEndian.PutUint64(b[1:], uint64(id.Incarnation))
	binary.LittleEndian.PutUint64(b[9:], id.Epoch)
	binary.LittleEndian.PutUint64(b[17:], uint64(id.Position))
	b = append(b, id.Group...)
	copy(b[idSeal:idGroup], s.seal(b))
	return idEncoding.EncodeToString(b)
}

func (s *Sealer) seal(b []byte) []byte {
	mac := hmac.New(sha256.New, s.secret)
	mac.Write(purpose)
	mac.Write(b[:idSeal])
	mac.Write(b[idGroup:])
	return mac.Sum(nil)[:idGroup-idSeal]
}

// Owner returns the broker group that a transaction id names, whoever made it.
func Owner(text string) (zone.Group, error) {
	b, err := decode(text)
	if err != nil {
		return "", err
	}
	return zone.Group(b[idGroup:]), nil
}

func decode(text string) ([]byte, error) {
	if len(text) > MaxID {
		return nil, ErrMalformed
	}
	b, err := idEncoding.DecodeString(text)
	if err != nil || len(text) != idEncoding.EncodedLen(len(b)) || len(b) <= idGroup || b[0] != idVersion { // line breaks are passed over
		return nil, ErrMalformed
	}
	return b, nil
}

// Open returns the identity of the half message. ErrMalformed when the text is no
// transaction id, ErrForeign when Seal did not make it with the same secret.
func (s *Sealer) Open(text string) (record.Identity, error) {
	b, err := decode(text)
	if err != nil {
		return record.Identity{}, err
	}
	if !hmac.Equal(b[idSeal:idGroup], s.seal(b)) {
		return record.Identity{}, ErrForeign
	}
	return record.Identity{
		Group:       zone.Group(b[idGroup:]),
		Incarnation: record.Incarnation(binary.LittleEndian.Uint64(b[1:])),
		Epoch:       binary.LittleEndian.Uint64(b[9:]),
		Position:    record.Position(binary.LittleEndian.Uint64(b[17:])),
	}, nil
}
