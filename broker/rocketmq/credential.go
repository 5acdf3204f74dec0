package rocketmq

import (
	"context"
	"encoding/hex"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/mqrouter/mqrouter/policy"
)

// scheme begins the authorization header of RocketMQ 5 clients.
const scheme = "MQv2-HMAC-SHA1"

// maxAuthorization bounds the header; bytes. Clients send some 150.
const maxAuthorization = 1 << 10

// signed is what a call shows of its client, as it came.
type signed struct {
	authorization string // empty: none
	date          string
}

// signedOf reads the headers of a call.
func signedOf(ctx context.Context) signed {
	var s signed
	if v := metadata.ValueFromIncomingContext(ctx, "authorization"); len(v) > 0 {
		s.authorization = v[0]
	}
	if v := metadata.ValueFromIncomingContext(ctx, "x-mq-date-time"); len(v) > 0 {
		s.date = v[0]
	}
	return s
}

// credential parses the header: a scheme, then fields between commas, of which
// Credential is the access key with, in some clients, a region and a service behind
// slashes, and Signature is hex in any case. What has no access key is the
// credential of an anonymous client: Python sends a header without one. ok is false
// when the header is none of RocketMQ's.
func (s signed) credential() (c policy.Credential, ok bool) {
	if s.authorization == "" {
		return c, true
	}
	kind, fields, _ := strings.Cut(strings.TrimSpace(s.authorization), " ")
	if kind != scheme || len(s.authorization) > maxAuthorization {
		return c, false
	}
	c.Date = s.date
	for field := range strings.SplitSeq(fields, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		switch name {
		case "Credential":
			c.Key, _, _ = strings.Cut(value, "/")
		case "Signature":
			sum, err := hex.DecodeString(value)
			if err != nil {
				return c, false
			}
			c.Signature = sum
		}
	}
	if c.Key == "" {
		return policy.Credential{}, true
	}
	return c, true
}
