package e2e

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"crypto/md5"
	"crypto/sha1"
	"fmt"
	"hash/crc32"
	"io"
	"strings"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// packing is how a client may send a body: these clients send every body as it is
// and without a digest, so a relay does for them what those of other languages, and
// older ones, do.
type packing struct {
	name   string
	pack   func(*bytes.Buffer) io.WriteCloser // nil: as it is
	digest *pb.Digest                         // its checksum is a verb for sum
	sum    func([]byte) any
	except string // the language whose client cannot unpack it
}

var packings = []packing{
	{name: "gzip, MD5", pack: gzipped, digest: &pb.Digest{Type: pb.DigestType_MD5, Checksum: "%X"}, sum: func(b []byte) any { return md5.Sum(b) }},
	{name: "gzip, SHA-1", pack: gzipped, digest: &pb.Digest{Type: pb.DigestType_SHA1, Checksum: "%X"}, sum: func(b []byte) any { return sha1.Sum(b) }},
	{name: "gzip, CRC-32", pack: gzipped, digest: &pb.Digest{Type: pb.DigestType_CRC32, Checksum: "%X"}, sum: func(b []byte) any { return crc32.ChecksumIEEE(b) }},
	{name: "gzip, no digest", pack: gzipped},
	// What the client for C++ calls gzip.
	{name: "zlib, no digest", pack: zipped, except: "node"},
	{name: "MD5 in small letters", digest: &pb.Digest{Type: pb.DigestType_MD5, Checksum: "%x"}, sum: func(b []byte) any { return md5.Sum(b) }},
	{name: "SHA-1", digest: &pb.Digest{Type: pb.DigestType_SHA1, Checksum: "%X"}, sum: func(b []byte) any { return sha1.Sum(b) }},
	{name: "CRC-32 of eight digits", digest: &pb.Digest{Type: pb.DigestType_CRC32, Checksum: "%08X"}, sum: func(b []byte) any { return crc32.ChecksumIEEE(b) }},
	{name: "CRC-32 without zeros", digest: &pb.Digest{Type: pb.DigestType_CRC32, Checksum: "%x"}, sum: func(b []byte) any { return crc32.ChecksumIEEE(b) }},
	{name: "CRC-32 as a number", digest: &pb.Digest{Type: pb.DigestType_CRC32, Checksum: "%d"}, sum: func(b []byte) any { return crc32.ChecksumIEEE(b) }},
}

func gzipped(b *bytes.Buffer) io.WriteCloser { return gzip.NewWriter(b) }
func zipped(b *bytes.Buffer) io.WriteCloser  { return zlib.NewWriter(b) }

// apply packs the bodies of a request.
func (p packing) apply(req *pb.SendMessageRequest) {
	for _, m := range req.GetMessages() {
		if p.pack != nil {
			var b bytes.Buffer
			w := p.pack(&b)
			_, _ = w.Write(m.GetBody()) // into memory
			_ = w.Close()
			m.Body = b.Bytes()
			m.SystemProperties.BodyEncoding = pb.Encoding_GZIP
		}
		if p.digest != nil {
			m.SystemProperties.BodyDigest = &pb.Digest{Type: p.digest.GetType(), Checksum: fmt.Sprintf(p.digest.GetChecksum(), p.sum(m.GetBody()))}
		}
	}
}

// packed publishes bodies in every packing: consumers see what was inside, and no
// body counts as corrupted. One whose digest is wrong is refused.
func packed(s *stage) {
	push := s.consumer("push", s.there(), "transfer", s.tag())
	simple := s.consumer("simple", s.there(), "transfer", s.tag())
	r := s.relay()
	producer := s.open("producer", map[string]any{"endpoint": r.at(rz01), "topics": []string{"transfer"}, "attempts": 3})
	want := map[string]string{}
	var sent []string
	for _, p := range packings {
		if p.except == s.d.lang.name {
			continue
		}
		m := message{topic: "transfer", body: strings.Repeat(p.name+" ", 300), tag: s.tag(), properties: s.to()}
		r.editing(p.apply)
		id := s.send(producer, m)
		want[id], sent = m.body, append(sent, id)
	}
	for _, kind := range []pb.DigestType{pb.DigestType_CRC32, pb.DigestType_MD5, pb.DigestType_SHA1} {
		wrong := packing{digest: &pb.Digest{Type: kind, Checksum: "%X"}, sum: func([]byte) any { return []byte("of another body") }}
		r.editing(wrong.apply)
		s.refused(producer, message{topic: "transfer", body: "damaged on its way", tag: s.tag() + "-damaged", properties: s.to()}, "digest")
	}
	for who, got := range map[string]map[string]seen{"push": s.pushed(push, len(sent)), "simple": s.take(simple, len(sent))} {
		s.same(who, got, sent)
		for id, body := range want {
			if got[id].SHA256 != sum([]byte(body)) {
				s.Errorf("%s: %q came for %.40q", who, got[id].Body, body)
			}
		}
	}
}
