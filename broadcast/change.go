package broadcast

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mqrouter/mqrouter/replication/record"
)

// Names of the user properties of a change. They are part of the format.
const (
	PropertyVersion = "mqr.version" // decimal, 1 to 2^64-1, grows with every change of a key
	PropertyOp      = "mqr.op"      // set, delete or flush-prefix
	PropertyTTL     = "mqr.ttl"     // optional, set only: decimal milliseconds from the publish on
	PropertyEmpty   = "mqr.empty"   // optional, set only: "true" says that the value is empty, whatever the body is
)

// Reserved begins the names that appliers keep beside the data. No key may
// begin with it.
const Reserved = "mqr:"

// Limits of a change.
const (
	MaxKey   = 1024    // bytes of a key
	MaxValue = 4 << 20 // bytes of a value, decompressed
	MaxTTL   = 10 * 365 * 24 * time.Hour
)

// Op is what a change does.
type Op uint8

// The operations. Their texts are part of the format.
const (
	OpSet         Op = iota + 1 // the key has the value
	OpDelete                    // the key has no value
	OpFlushPrefix               // no key that begins with Key and is not newer has a value
)

var opNames = [...]string{OpSet: "set", OpDelete: "delete", OpFlushPrefix: "flush-prefix"}

// String returns the value of PropertyOp.
func (o Op) String() string {
	if o == 0 || int(o) >= len(opNames) {
		return "op-" + strconv.Itoa(int(o))
	}
	return opNames[o]
}

// ParseOp parses the value of PropertyOp.
func ParseOp(s string) (Op, bool) {
	for o := OpSet; int(o) < len(opNames); o++ {
		if opNames[o] == s {
			return o, true
		}
	}
	return 0, false
}

// Change is one change of a cache. It is a value; Value must not be modified
// while anybody uses the change.
type Change struct {
	Op      Op
	Key     string        // of OpFlushPrefix: the prefix
	Version uint64        // at least 1
	Value   []byte        // OpSet only; may be empty
	TTL     time.Duration // OpSet only; 0 = stays until changed; whole milliseconds
	Stored  time.Time     // when the origin stored it, by the origin's clock; not part of the message
}

// ChangeError says why a message is no change. Match it with errors.As.
type ChangeError struct {
	Field string // "key", "body" or the name of a property
	Value string // what was found, shortened
	Want  string // what would be right
}

// Error implements error.
func (e *ChangeError) Error() string {
	return fmt.Sprintf("broadcast: %s is %q, want %s", e.Field, e.Value, e.Want)
}

func wrong(field, value, want string) error {
	const most = 64
	if len(value) > most {
		value = strings.ToValidUTF8(value[:most], "") + "..."
	}
	return &ChangeError{Field: field, Value: value, Want: want}
}

// Validate reports the first fault of the change: *ChangeError.
func (c *Change) Validate() error {
	if err := checkKey(c.Key, c.Op); err != nil {
		return err
	}
	switch {
	case c.Op.String() == "" || c.Op == 0 || int(c.Op) >= len(opNames):
		return wrong(PropertyOp, c.Op.String(), "set, delete or flush-prefix")
	case c.Version == 0:
		return wrong(PropertyVersion, "0", "a decimal number from 1 to 18446744073709551615")
	case c.Op != OpSet && len(c.Value) > 0:
		return wrong("value", fmt.Sprintf("%d bytes", len(c.Value)), "none with "+c.Op.String())
	case len(c.Value) > MaxValue:
		return wrong("body", fmt.Sprintf("%d bytes", len(c.Value)), fmt.Sprintf("at most %d bytes", MaxValue))
	case c.TTL < 0 || c.TTL > MaxTTL || c.TTL%time.Millisecond != 0:
		return wrong(PropertyTTL, c.TTL.String(), "whole milliseconds, at most ten years")
	case c.TTL > 0 && c.Op != OpSet:
		return wrong(PropertyTTL, c.TTL.String(), "none with "+c.Op.String())
	}
	return nil
}

func checkKey(key string, op Op) error {
	switch {
	case key == "":
		return wrong("key", "", "the cache key as the only key of the message")
	case len(key) > MaxKey:
		return wrong("key", key, fmt.Sprintf("at most %d bytes", MaxKey))
	case !utf8.ValidString(key):
		return wrong("key", key, "valid UTF-8")
	case strings.HasPrefix(key, Reserved):
		return wrong("key", key, "one that does not begin with "+Reserved)
	case op == OpFlushPrefix && strings.HasPrefix(Reserved, key):
		return wrong("key", key, "a prefix that "+Reserved+" does not begin with")
	}
	return nil
}

// Message is a change as an ordinary message: what to give to any RocketMQ
// client.
type Message struct {
	Key        string // the message's only key
	Properties map[string]string
	Body       []byte // at least one byte
}

// Format returns the message of a change. Its body is the change's value, not
// a copy. Errors are those of Validate.
func (c *Change) Format() (Message, error) {
	if err := c.Validate(); err != nil {
		return Message{}, err
	}
	m := Message{Key: c.Key, Body: c.Value, Properties: map[string]string{
		PropertyOp: c.Op.String(), PropertyVersion: strconv.FormatUint(c.Version, 10)}}
	if c.TTL > 0 {
		m.Properties[PropertyTTL] = strconv.FormatInt(c.TTL.Milliseconds(), 10)
	}
	if len(c.Value) == 0 {
		m.Body = []byte{'-'}
		if c.Op == OpSet {
			m.Properties[PropertyEmpty] = "true"
		}
	}
	return m, nil
}

// Parse returns the change that a message carries: keys and user properties as
// a client receives them. Value is a part of body. Errors are *ChangeError.
func Parse(keys []string, properties map[string]string, body []byte) (Change, error) {
	if len(keys) != 1 {
		return Change{}, wrong("key", strings.Join(keys, " "), "the cache key as the only key of the message")
	}
	return parse(keys[0], func(name string) (string, bool) {
		v, ok := properties[name]
		return v, ok
	}, func() ([]byte, error) { return body, nil })
}

// gzipBody is the encoding of a body that a RocketMQ client has compressed.
const gzipBody record.Encoding = 2

// ParseRecord returns the change that a landed record carries. Value is a part
// of the record's bytes unless the body is compressed. It does not verify the
// body's checksum. Errors are *ChangeError.
func ParseRecord(v record.View) (Change, error) {
	var key string
	keys := 0
	v.Keys(func(k []byte) bool {
		key = string(k)
		keys++
		return keys < 2
	})
	if keys != 1 {
		return Change{}, wrong("key", fmt.Sprintf("%d keys", keys), "the cache key as the only key of the message")
	}
	c, err := parse(key, func(name string) (string, bool) {
		p, ok := v.Property(name)
		return string(p), ok
	}, func() ([]byte, error) { return body(v) })
	c.Stored = v.Stored()
	return c, err
}

// body returns a record's body, decompressed.
func body(v record.View) ([]byte, error) {
	switch v.Encoding() {
	case 0, 1:
		return v.Body(), nil
	case gzipBody:
		r, err := gzip.NewReader(bytes.NewReader(v.Body()))
		if err != nil {
			return nil, wrong("body", err.Error(), "gzip, as the message's encoding says")
		}
		b, err := io.ReadAll(io.LimitReader(r, MaxValue+1))
		if err != nil {
			return nil, wrong("body", err.Error(), "gzip, as the message's encoding says")
		}
		return b, nil
	}
	return nil, wrong("body", fmt.Sprintf("encoding %d", v.Encoding()), "encoding identity or gzip")
}

// parse reads the body last: a message that is no change costs nothing more.
func parse(key string, property func(string) (string, bool), body func() ([]byte, error)) (Change, error) {
	c := Change{Key: key}
	text, _ := property(PropertyOp)
	var ok bool
	if c.Op, ok = ParseOp(text); !ok {
		return Change{}, wrong(PropertyOp, text, "set, delete or flush-prefix")
	}
	text, _ = property(PropertyVersion)
	var err error
	if c.Version, err = parseDecimal(text); err != nil {
		return Change{}, wrong(PropertyVersion, text, "a decimal number from 1 to 18446744073709551615")
	}
	if text, ok = property(PropertyTTL); ok {
		ms, err := parseDecimal(text)
		if err != nil || ms > uint64(MaxTTL/time.Millisecond) {
			return Change{}, wrong(PropertyTTL, text, "milliseconds as a decimal number, at most ten years")
		}
		c.TTL = time.Duration(ms) * time.Millisecond
	}
	empty := false
	if text, ok = property(PropertyEmpty); ok {
		if text != "true" && text != "false" {
			return Change{}, wrong(PropertyEmpty, text, "true or false")
		}
		empty = text == "true"
	}
	if c.Op == OpSet && !empty {
		if c.Value, err = body(); err != nil {
			return Change{}, err
		}
	}
	if err := c.Validate(); err != nil {
		return Change{}, err
	}
	return c, nil
}

var errDecimal = errors.New("not a positive decimal number")

// parseDecimal takes digits only and refuses 0, so that a text has one meaning
// in every language.
func parseDecimal(s string) (uint64, error) {
	if s == "" || s[0] < '1' || s[0] > '9' {
		return 0, errDecimal
	}
	return strconv.ParseUint(s, 10, 64)
}
