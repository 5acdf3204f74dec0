package rocketmqclient

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/hex"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"
)

// signer makes the metadata of requests: it names the moment, to the second, and
// signs it when there are credentials. It is safe for concurrent use.
type signer struct {
	fixed  []string // keys and values that never change
	key    string   // empty: anonymous
	secret string
	now    func() time.Time
	last   atomic.Pointer[stamped] // many requests fall into one second
}

type stamped struct {
	second int64
	md     metadata.MD // read-only
}

// md returns the metadata of a request that begins now. Nobody changes it.
func (s *signer) md() metadata.MD {
	now := s.now().UTC()
	if last := s.last.Load(); last != nil && last.second == now.Unix() {
		return last.md
	}
	date := now.Format("20060102T150405Z")
	md := metadata.Pairs(append([]string{"x-mq-date-time", date}, s.fixed...)...)
	if s.key != "" {
		m := hmac.New(sha1.New, []byte(s.secret))
		m.Write([]byte(date))
		md.Set("authorization", "MQv2-HMAC-SHA1 Credential="+s.key+", SignedHeaders=x-mq-date-time, Signature="+
			strings.ToUpper(hex.EncodeToString(m.Sum(nil))))
	}
	s.last.Store(&stamped{now.Unix(), md})
	return md
}
