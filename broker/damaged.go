package broker

import (
	"errors"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/internal/disk"
)

// Damage is how sure it is that a store which Open refuses will not open again.
type Damage uint8

// The degrees.
const (
	DamageNone   Damage = iota
	DamageUnread        // the device could not read or write something: now and then that passes
	DamageSure          // what is there is not what was once durable: only a copy helps
)

// DamageOf says what an error of Open means for the store.
func DamageOf(err error) Damage {
	var s *SnapshotError
	switch {
	case disk.IsBroken(err): // also of a part whose checksum could not be asked for
		return DamageUnread
	case commitlog.Damaged(err), errors.As(err, &s) && s.Damage:
		return DamageSure
	}
	return DamageNone
}
