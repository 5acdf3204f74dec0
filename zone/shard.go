package zone

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// ShardBy says how a shard is taken from a user id.
type ShardBy uint8

// The ways to take a shard from a user id. The zero value means that the
// deployment has no shards.
const (
	// ShardByLastDigits takes the last decimal digits of the id; the shard
	// count is a power of ten that tells how many. What stands before those
	// digits is not looked at; a shorter id counts as padded with zeros.
	ShardByLastDigits ShardBy = iota + 1
	// ShardByModulo takes the id, a decimal number of any length, modulo the
	// shard count.
	ShardByModulo
	// ShardByXXHash takes the XXH64 (seed 0) of the id's bytes modulo the
	// shard count.
	ShardByXXHash
)

// ShardOf returns the shard of a user id. The error is ErrMissingUser for an
// empty id, ErrBadUser for one without the digits that the rule needs, and
// ErrShardUnowned when the deployment has no shards. It does not allocate.
func (t *Topology) ShardOf(user string) (Shard, error) {
	s, kind := t.shardOf(user)
	if kind != 0 {
		return 0, generic(kind)
	}
	return s, nil
}

func (t *Topology) shardOf(user string) (Shard, ResolveKind) {
	if user == "" {
		return 0, MissingUser
	}
	if t.ShardCount == 0 {
		return 0, ShardUnowned
	}
	n := uint64(t.ShardCount)
	switch t.ShardBy {
	case ShardByLastDigits:
		return lastDigits(user, n)
	case ShardByModulo:
		return moduloOf(user, n)
	case ShardByXXHash:
		return Shard(xxhash.Sum64String(user) % n), 0
	}
	return 0, ShardUnowned
}

// lastDigits reads as many digits from the end of user as count has zeros.
func lastDigits(user string, count uint64) (Shard, ResolveKind) {
	var value uint64
	i := len(user)
	for weight := uint64(1); weight < count && i > 0; weight *= 10 {
		i--
		d := user[i] - '0'
		if d > 9 {
			return 0, BadUser
		}
		value += uint64(d) * weight
	}
	return Shard(value % count), 0
}

// moduloOf reduces a decimal number of any length.
func moduloOf(user string, count uint64) (Shard, ResolveKind) {
	// Reduce only when one more digit could overflow: a division for each
	// digit would cost more than the rest of Resolve.
	const nearlyFull = (1<<64 - 1 - 9) / 10
	var value uint64
	for i := 0; i < len(user); i++ {
		d := user[i] - '0'
		if d > 9 {
			return 0, BadUser
		}
		if value > nearlyFull {
			value %= count
		}
		value = value*10 + uint64(d)
	}
	return Shard(value % count), 0
}

// HashSlot returns the slot of a message group or message id: its XXH64 (seed
// 0) modulo Slots.
func HashSlot(key string) Slot { return Slot(xxhash.Sum64String(key) % Slots) }

// ShardSlot returns the slot of a shard: the XXH64 (seed 0) of its number as 4
// bytes, big endian, modulo Slots.
func ShardSlot(s Shard) Slot {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(s))
	return Slot(xxhash.Sum64(b[:]) % Slots)
}

// SlotOf returns the slot of the message: by its message group, else by its
// shard when the topic's route has one, else by its message id. For a
// broadcast it is the channel's slot. It does not allocate.
func (t *Topology) SlotOf(q Query) Slot {
	if q.Topic != nil && q.Topic.Channel != nil {
		return q.Topic.Channel.Slot
	}
	if q.MessageGroup != "" {
		return HashSlot(q.MessageGroup)
	}
	if q.Topic != nil && q.Topic.Route.Kind == RouteShard {
		if s, kind := t.shardOf(q.User); kind == 0 {
			return ShardSlot(s)
		}
	}
	return HashSlot(q.MessageID)
}
