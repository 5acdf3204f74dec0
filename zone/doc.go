// Package zone is the ground floor: the deployment as one immutable value.
//
// It owns the topology: cities with their coordinators, zones, broker groups with
// their slots and nodes, user shards, topics with their routes, consumer groups. [Parse] reads it from
// YAML and reports every fault at once, with line, column and a remedy;
// [Topology.Resolve] says where a message goes; [Explain], [Show] and [Diff]
// tell people what the value says, [Moves] and [Advice] what would break or be unwise,
// and the package zone/render draws it.
//
// It never does I/O, never reads a clock, and starts no goroutines: the
// package zone/source watches files and makes a topology live. A *Topology and
// everything that it points to is read-only after Parse and therefore safe for
// concurrent use. As it starts nothing and waits for nothing, it promises no order.
//
// # Two contracts that other nodes rely on
//
// The slot of a message is
//
//	XXH64(message group)              when it has a message group, else
//	XXH64(shard, 4 bytes big endian)  when its route has a shard, else
//	XXH64(message id)
//
// with seed 0, modulo [Slots]. Origin and destination compute it alike, so
// neither the hash nor the order of choice can change without a new record
// version.
//
// The digest of a topology is the SHA-256 of its canonical form (see
// canonical.go): the values and not the way they were written, so comments,
// order of keys, order of lists without meaning and spelled-out defaults do
// not change it.
package zone
