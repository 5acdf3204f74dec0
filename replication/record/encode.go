package record

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"slices"
	"time"
)

// Offsets of the fixed part of a record; see the package comment.
const (
	offTotal       = 0
	offHeader      = 4
	offVersion     = 8
	offType        = 9
	offFlags       = 10
	offHeaderSum   = 12
	offBodySum     = 16
	offKind        = 20
	offClass       = 21
	offDurability  = 22
	offLane        = 23
	offQueue       = 24
	offSlot        = 26
	offShard       = 28
	offIncarnation = 32
	offEpoch       = 40
	offPosition    = 48
	offGroupHash   = 56
	offRouteTerm   = 64
	offRouteNumber = 72
	offBorn        = 80
	offStored      = 88
	offDeliver     = 96
	offExpire      = 104
	offAttempt     = 112
	offPriority    = 116
	offEncoding    = 120
	offCodec       = 121
	offChannel     = 122
	fixedLen       = 128
)

// Tags of the fields of a record; see the package comment.
const (
	tagGroup = iota + 1
	tagTopic
	tagTarget
	tagResidency
	tagMessageID
	tagTag
	tagKeys
	tagMessageGroup
	tagTrace
	tagBornHost
	tagDigest
	tagProperties
	tagCause
	tagOnce
	tagAgain
	tagEnd // one above the highest known tag
)

// EncodedLen returns the number of bytes that AppendRecord appends for r.
func EncodedLen(r *Record) int { return headerLen(r) + len(r.Body) }

func headerLen(r *Record) int {
	n := fixedLen +
		fieldLen(len(r.Identity.Group)) + fieldLen(len(r.Topic)) + fieldLen(len(r.Target)) +
		fieldLen(listLen(r.Residency)) + fieldLen(len(r.MessageID)) + fieldLen(len(r.Tag)) +
		fieldLen(listLen(r.Keys)) + fieldLen(len(r.MessageGroup)) + fieldLen(len(r.TraceContext)) +
		fieldLen(len(r.BornHost)) + fieldLen(propertiesLen(r.Properties)) + fieldLen(len(r.Cause)) + r.Once.len() + r.Again.len()
	if r.Digest != (Digest{}) {
		n += fieldLen(1 + len(r.Digest.Checksum))
	}
	return n
}

func propertiesLen(list []Property) int {
	n := 0
	for i := range list {
		n += 2 + len(list[i].Key) + 4 + len(list[i].Value)
	}
	return n
}

// AppendRecord appends the encoded record to dst and returns the longer slice.
// It computes both checksums, so that the writer of the log has only to Stamp.
// It does not keep r or anything that r points to, and does not allocate when
// dst has room.
//
// Errors: *LimitError when a value or the whole exceeds the format's limits,
// *FormatError when Type is 0; dst is returned unchanged then.
func AppendRecord(dst []byte, r *Record) ([]byte, error) {
	header := headerLen(r)
	if err := checkRecord(r, header); err != nil {
		return dst, err
	}
	start := len(dst)
	dst = slices.Grow(dst, header+len(r.Body))[:start+fixedLen]
	putFixed(dst[start:], r, header)

	dst = appendField(dst, tagGroup, r.Identity.Group)
	dst = appendField(dst, tagTopic, r.Topic)
	dst = appendField(dst, tagTarget, r.Target)
	dst = appendList(dst, tagResidency, r.Residency)
	dst = appendField(dst, tagMessageID, r.MessageID)
	dst = appendField(dst, tagTag, r.Tag)
	dst = appendList(dst, tagKeys, r.Keys)
	dst = appendField(dst, tagMessageGroup, r.MessageGroup)
	dst = appendField(dst, tagTrace, r.TraceContext)
	dst = appendField(dst, tagBornHost, r.BornHost)
	if r.Digest != (Digest{}) {
		dst = appendFieldHead(dst, tagDigest, 1+len(r.Digest.Checksum))
		dst = append(dst, r.Digest.Type)
		dst = append(dst, r.Digest.Checksum...)
	}
	dst = appendProperties(dst, r.Properties)
	dst = appendField(dst, tagCause, r.Cause)
	dst = r.Once.append(dst)
	dst = r.Again.append(dst)
	dst = append(dst, r.Body...)

	b := dst[start:]
	binary.LittleEndian.PutUint32(b[offBodySum:], crc32.Checksum(b[header:], castagnoli))
	binary.LittleEndian.PutUint32(b[offHeaderSum:], headerSum(b, header))
	return dst, nil
}

func putFixed(b []byte, r *Record, header int) {
	le := binary.LittleEndian
	clear(b[:fixedLen])
	le.PutUint32(b[offTotal:], uint32(header+len(r.Body)))
	le.PutUint32(b[offHeader:], uint32(header))
	b[offVersion] = Version
	b[offType] = byte(r.Type)
	le.PutUint16(b[offFlags:], uint16(r.Flags))
	b[offKind] = byte(r.Kind)
	b[offClass] = byte(r.Class)
	b[offDurability] = byte(r.Durability)
	b[offLane] = r.Lane
	le.PutUint16(b[offQueue:], r.Queue)
	le.PutUint16(b[offSlot:], uint16(r.Slot))
	le.PutUint32(b[offShard:], r.Shard)
	le.PutUint64(b[offIncarnation:], uint64(r.Identity.Incarnation))
	le.PutUint64(b[offEpoch:], r.Identity.Epoch)
	le.PutUint64(b[offPosition:], uint64(r.Identity.Position))
	le.PutUint64(b[offGroupHash:], r.GroupHash)
	le.PutUint64(b[offRouteTerm:], r.RouteEpoch.Term)
	le.PutUint64(b[offRouteNumber:], r.RouteEpoch.Number)
	le.PutUint64(b[offBorn:], putTime(r.Born))
	le.PutUint64(b[offStored:], putTime(r.Stored))
	le.PutUint64(b[offDeliver:], putTime(r.DeliverAt))
	le.PutUint64(b[offExpire:], putTime(r.ExpireAt))
	le.PutUint32(b[offAttempt:], r.Attempt)
	le.PutUint32(b[offPriority:], uint32(r.Priority))
	b[offEncoding] = byte(r.Encoding)
	if r.Channel {
		b[offChannel] = 1
	}
}

func appendProperties(dst []byte, list []Property) []byte {
	if len(list) == 0 {
		return dst
	}
	dst = appendFieldHead(dst, tagProperties, propertiesLen(list))
	for i := range list {
		dst = appendShort(dst, list[i].Key)
		dst = binary.LittleEndian.AppendUint32(dst, uint32(len(list[i].Value)))
		dst = append(dst, list[i].Value...)
	}
	return dst
}

func checkRecord(r *Record, header int) error {
	switch {
	case r.Type == 0:
		return &FormatError{Offset: offType, What: "type 0"}
	case header > MaxHeader:
		return &LimitError{Field: "header", Size: header, Limit: MaxHeader}
	case header+len(r.Body) > MaxRecord:
		return &LimitError{Field: "record", Size: header + len(r.Body), Limit: MaxRecord}
	}
	if n := listLen(r.Again.Groups); n > MaxAgainGroups {
		return &LimitError{Field: "consumer groups", Size: n, Limit: MaxAgainGroups}
	}
	if err := checkShort("key", r.Keys); err != nil {
		return err
	}
	if err := checkShort("residency city", r.Residency); err != nil {
		return err
	}
	for i := range r.Properties {
		if n := len(r.Properties[i].Key); n > math.MaxUint16 {
			return &LimitError{Field: "property key", Size: n, Limit: math.MaxUint16}
		}
	}
	return nil
}

func checkShort[S ~string](field string, list []S) error {
	for _, s := range list {
		if len(s) > math.MaxUint16 {
			return &LimitError{Field: field, Size: len(s), Limit: math.MaxUint16}
		}
	}
	return nil
}

// Stamp sets the identity of an encoded own record and its header checksum. b
// is what AppendRecord appended; bytes that CanStamp refuses make it panic, so it
// is not for bytes from outside.
func Stamp(b []byte, inc Incarnation, epoch uint64, pos Position) {
	binary.LittleEndian.PutUint64(b[offIncarnation:], uint64(inc))
	binary.LittleEndian.PutUint64(b[offEpoch:], epoch)
	binary.LittleEndian.PutUint64(b[offPosition:], uint64(pos))
	header := int(binary.LittleEndian.Uint32(b[offHeader:]))
	binary.LittleEndian.PutUint32(b[offHeaderSum:], headerSum(b, header))
}

// CanStamp reports whether b has the form that Stamp relies on. It does not read
// checksums or fields: Parse does.
func CanStamp(b []byte) bool {
	if len(b) < fixedLen || b[offVersion] != Version || b[offType] == 0 {
		return false
	}
	total, header := binary.LittleEndian.Uint32(b[offTotal:]), binary.LittleEndian.Uint32(b[offHeader:])
	return uint64(total) == uint64(len(b)) && header >= fixedLen && header <= total && header <= MaxHeader
}

func headerSum(b []byte, header int) uint32 {
	sum := crc32.Checksum(b[:offHeaderSum], castagnoli)
	return crc32.Update(sum, castagnoli, b[offBodySum:header])
}

func putTime(t time.Time) uint64 {
	if t.IsZero() {
		return 0
	}
	return uint64(t.UnixMicro())
}

func getTime(b []byte) time.Time {
	us := int64(binary.LittleEndian.Uint64(b))
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}
