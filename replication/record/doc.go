// Package record owns the bytes of a record and of a landing envelope: one
// encoding for the disk and for the wire.
//
// A record is immutable. It is encoded once, by the broker group that first
// stores it; the log's writer stamps the identity (see [Stamp]) because only it
// knows the position; from then on the bytes are the same in every log, on
// every link and in every landing. What changes from hop to hop is in the
// landing envelope.
//
// The package starts no goroutine, keeps no state, reads no clock and does no
// I/O. Nothing that it is given can make it panic: [Parse] checks every length
// before it is used, so that the accessors of a [View] cannot fail.
//
// # Record, version 1
//
// All integers are little endian. CRC32C is the Castagnoli polynomial.
//
//	offset size field
//	     0    4 total length: header and body, at most [MaxRecord]
//	     4    4 header length: fixed part and fields, at most [MaxHeader]; the body begins here
//	     8    1 version = 1
//	     9    1 type, never 0
//	    10    2 flags; an unknown flag among the upper eight bits: refuse, among the lower: ignore
//	    12    4 header checksum: CRC32C of bytes 0..11 and 16..header length
//	    16    4 body checksum: CRC32C of the body
//	    20    1 message kind
//	    21    1 class
//	    22    1 durability
//	    23    1 lane
//	    24    2 queue
//	    26    2 slot
//	    28    4 shard; 0xFFFFFFFF = none
//	    32    8 identity: incarnation     \
//	    40    8 identity: lineage epoch    } set by Stamp
//	    48    8 identity: position        /
//	    56    8 hash of the message group; 0 = none
//	    64    8 route epoch: term
//	    72    8 route epoch: number
//	    80    8 born at
//	    88    8 stored at
//	    96    8 deliver at
//	   104    8 expire at
//	   112    4 attempt
//	   116    4 priority (signed)
//	   120    1 encoding
//	   121    1 codec of the body; 0 = as the client sent it, others are refused
//	   122    1 1 = target is a channel, 0 = a broker group
//	   123    5 zero; ignored by readers
//	   128      fields up to the header length, then the body
//
// A time is a signed count of microseconds since 1970-01-01T00:00:00Z; 0 stands
// for "none".
//
// A field is a u32 whose lower 8 bits are the tag and whose upper 24 bits are
// the length of the value that follows. Tags ascend strictly. An absent field
// and an empty one mean the same; the encoder leaves empty ones out. A reader
// refuses a record with an unknown tag of 128 and above and skips other unknown
// tags, so that a later version can add fields of both kinds.
//
//	tag value
//	  1 identity: broker group
//	  2 topic
//	  3 target: broker group or channel
//	  4 residency: per city u16 length, bytes
//	  5 message id
//	  6 tag
//	  7 keys: per key u16 length, bytes
//	  8 message group
//	  9 trace context
//	 10 born host
//	 11 digest: u8 type, then the checksum's text
//	 12 properties: per property u16 length, key, u32 length, value
//	 13 cause
//	 14 once: window in milliseconds u64, key 16 bytes, content u64
//	 15 again: lineage, epoch, position, after, sent u64 each, flags u8 (1 decides), then per consumer group u16 length, bytes
//
// # Landing envelope, version 1
//
//	offset size field
//	     0    4 length of the envelope, at most [MaxEnvelope]
//	     4    4 checksum: CRC32C of bytes 0..3 and 8..length
//	     8    1 version = 1
//	     9    1 outcome, never 0
//	    10    2 flags: none defined; upper eight bits required as above
//	    12    2 reason
//	    14    1 hops
//	    15    1 flow: class
//	    16    1 flow: lane
//	    17    1 flow: 1 = target is a channel
//	    18    6 zero; ignored by readers
//	    24    8 flow: incarnation of the origin
//	    32    8 lineage
//	    40    8 lineage epoch
//	    48    8 number
//	    56    8 through
//	    64    8 origin's cursor
//	    72    8 landed at
//	    80      fields: 1 flow origin, 2 flow target, 3 path (per city u16 length, bytes),
//	            4 lineage table of the origin (per row epoch u64, id u64, first u64)
//
// # What is checked where
//
// [Parse] checks lengths, version, required flags and tags and the header
// checksum; it does not read the body. [View.Verify] checks the body. The header
// covers the body's checksum, so the header checksum of a stamped record names
// its whole content: flows use it as fingerprint.
package record
