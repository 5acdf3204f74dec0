package rocketmq

import (
	"crypto/md5"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/replication/record"
)

// checkDigest verifies the digest that a sender gave over the body as it travels. One
// of a type that is not known, of a newer client, says nothing here.
func checkDigest(d *pb.Digest, body []byte) *pb.Status {
	sum := d.GetChecksum()
	if len(sum) > maxDigest {
		return refuse(pb.Code_BAD_REQUEST, fmt.Sprintf("the body digest has %d characters, the limit is %d", len(sum), maxDigest))
	}
	good := false
	switch d.GetType() {
	case pb.DigestType_CRC32:
		good = equalCRC32(sum, crc32.ChecksumIEEE(body))
	case pb.DigestType_MD5:
		good = strings.EqualFold(sum, md5Hex(body))
	case pb.DigestType_SHA1:
		h := sha1.Sum(body)
		good = strings.EqualFold(sum, hex.EncodeToString(h[:]))
	default:
		good = true
	}
	if !good {
		return refuse(pb.Code_MESSAGE_CORRUPTED, "the body does not have the digest that came with it")
	}
	return nil
}

// equalCRC32 compares in each way that a client writes it: hex with or without
// leading zeros, and Node's decimal.
func equalCRC32(text string, sum uint32) bool {
	if v, err := strconv.ParseUint(text, 16, 32); err == nil && uint32(v) == sum {
		return true
	}
	v, err := strconv.ParseUint(text, 10, 32)
	return err == nil && uint32(v) == sum
}

// recordDigest is what of a digest is kept: consumers get one that they can check, so
// what was not checked here is not.
func recordDigest(d *pb.Digest) record.Digest {
	switch t := d.GetType(); t {
	case pb.DigestType_CRC32, pb.DigestType_MD5, pb.DigestType_SHA1:
		return record.Digest{Type: uint8(t), Checksum: d.GetChecksum()}
	}
	return record.Digest{}
}

// digestOf is the digest that a delivery carries. Receivers compare text, so only
// a spelling on which all agree is passed on as it was sent: MD5 and SHA-1 in
// upper-case hex. Otherwise it is the MD5 of the body.
func digestOf(kind uint8, sum, body []byte) *pb.Digest {
	switch t := pb.DigestType(kind); t {
	case pb.DigestType_MD5, pb.DigestType_SHA1:
		if len(sum) > 0 && upperHex(sum) {
			return &pb.Digest{Type: t, Checksum: string(sum)}
		}
	}
	return &pb.Digest{Type: pb.DigestType_MD5, Checksum: md5Hex(body)}
}

func upperHex(s []byte) bool {
	for _, c := range s {
		if digit := c >= '0' && c <= '9'; !digit && (c < 'A' || c > 'F') {
			return false
		}
	}
	return true
}

// md5Hex returns the MD5 in upper-case hex.
func md5Hex(body []byte) string {
	const digits = "0123456789ABCDEF"
	sum := md5.Sum(body)
	var out [2 * md5.Size]byte
	for i, b := range sum {
		out[2*i], out[2*i+1] = digits[b>>4], digits[b&15]
	}
	return string(out[:])
}

// encodingOf is the encoding that a delivery carries; Python fails on 0.
func encodingOf(e record.Encoding) pb.Encoding {
	if e == record.Encoding(pb.Encoding_ENCODING_UNSPECIFIED) {
		return pb.Encoding_IDENTITY
	}
	return pb.Encoding(e)
}
