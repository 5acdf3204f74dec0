package policy

import (
	"crypto/hmac"
	"crypto/sha1"
	"math"
	"time"
)

// Credential is what a client shows: an access key, and a signature over the text of
// the moment at which it signed (HMAC-SHA1, as RocketMQ 5 clients compute it).
type Credential struct {
	Key       string
	Signature []byte // decoded
	Date      string // as it was signed, to the byte
}

// Proof says what a credential is worth.
type Proof uint8

// The proofs. The zero value is none.
const (
	Unproven  Proof = iota // the access key or the signature is wrong; which one is not told
	Accepted               // it is the user's
	OutOfTime              // it is the user's, and was signed too long ago, or in the future
	Nameless               // there is no credential, and clients need one
)

// Authenticate judges a credential; one without a key is that of an anonymous
// client. The user is nil unless it is Accepted. An access key that there is not
// costs as much time as a wrong signature, and the time says nothing of either.
func (a *Access) Authenticate(c Credential, now time.Time) (*User, Proof) {
	if c.Key == "" {
		if a.anonymous == nil {
			return nil, Nameless
		}
		return a.anonymous, Accepted
	}
	u, known := a.users[c.Key]
	if !known {
		u = a.nobody
	}
	// Both are computed whatever the first one says.
	first, second := signedBy(u.secrets[0], c), signedBy(u.secrets[1], c)
	switch {
	case !known || !first && (!second || len(u.secrets[1]) == 0):
		return nil, Unproven
	case !a.InTime(c.Date, now):
		return nil, OutOfTime
	}
	return u, Accepted
}

// Still reports whether a user whose credential was accepted once is one now: the
// access key is there, and the secret that signed. What the user may do can differ.
func (a *Access) Still(c Credential) (*User, bool) {
	if c.Key == "" {
		return a.anonymous, a.anonymous != nil
	}
	u, ok := a.users[c.Key]
	if !ok || !signedBy(u.secrets[0], c) && (len(u.secrets[1]) == 0 || !signedBy(u.secrets[1], c)) {
		return nil, false
	}
	return u, true
}

func signedBy(secret []byte, c Credential) bool {
	m := hmac.New(sha1.New, secret)
	m.Write([]byte(c.Date))
	var sum [sha1.Size]byte
	return hmac.Equal(m.Sum(sum[:0]), c.Signature)
}

// Local times behind a literal Z differ from the true one by whole quarter hours, up
// to that of the Line Islands.
const (
	quarter   = 15 * time.Minute
	maxOffset = 14 * time.Hour
)

// InTime judges the moment at which a credential was signed, by its text. Most official clients
// write the local time and put a Z behind it: the difference to now may be that of
// the time zones that are allowed, give or take the skew. A text with an offset of
// its own (RFC 3339) says the moment itself.
func (a *Access) InTime(date string, now time.Time) bool {
	if a.skew == 0 {
		return true
	}
	off, allowed, ok := a.OffTime(date, now)
	return ok && off <= allowed
}

// OffTime returns by how much the moment of a credential differs from now, for the time
// zone of those that are allowed in which that is least, and what is allowed. ok is false
// when the text is no date.
func (a *Access) OffTime(date string, now time.Time) (off, allowed time.Duration, ok bool) {
	local := true
	at, err := time.Parse("20060102T150405Z", date)
	if err != nil {
		local = false
		if at, err = time.Parse(time.RFC3339Nano, date); err != nil {
			return 0, a.skew, false
		}
	}
	ahead := at.Sub(now)
	switch {
	case !local:
		return ahead.Abs(), a.skew, true
	case a.offsets == nil:
		offset := min(max(ahead.Round(quarter), -maxOffset), maxOffset)
		return (ahead - offset).Abs(), a.skew, true
	}
	off = math.MaxInt64
	for _, o := range a.offsets {
		off = min(off, (ahead - o).Abs())
	}
	return off, a.skew, true
}
