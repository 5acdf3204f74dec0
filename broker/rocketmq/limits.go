package rocketmq

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// Limits of the protocol, with RocketMQ's defaults, which the official clients know,
// unless it says otherwise.
const (
	maxTopicName    = 127      // characters
	maxGroupName    = 120      // characters
	maxBody         = 4 << 20  // bytes; a topic may say otherwise, up to what the topology allows
	maxProperties   = 128      // user properties of a message
	maxPropertyText = 64 << 10 // bytes: property keys and values, tag, keys; RocketMQ has 16 KiB, below the 256 KiB of a record's header with room to spare
	maxMessageGroup = 63       // bytes
	maxReceiveBatch = 32       // messages; more is cut to this
	maxInvisible    = 12 * time.Hour
	minInvisible    = 10 * time.Second // receives of simple consumers
)

// Limits of our own, where the protocol has none.
const (
	maxRequestBytes  = 16 << 20            // of one gRPC message: well above a body of maxBody, so that one too large is answered and not cut off
	leastRequests    = 4 * maxRequestBytes // of MaxRequests: below, a few large requests keep all others out
	maxReceiveBytes  = 16 << 20            // bodies of one receive
	orderedBatch     = 1                   // messages of one receive of a push consumer in order: clients work a batch off one after the other, so that a slow message group would hold up the others of its batch
	maxBatch         = 1024                // messages of one SendMessage
	maxAckEntries    = 1024
	maxMessageID     = 128 // bytes; ids are 34 today, older ones shorter
	maxClientID      = 255 // bytes
	maxHost          = 255 // bytes of born_host (a DNS name's limit)
	maxTraceContext  = 512 // bytes; a W3C traceparent has 55
	maxEncoding      = 255 // of a body; a record has a byte for it
	maxDigest        = 128 // bytes; SHA-1 in hex has 40
	maxHandle        = 4 << 10
	maxFilter        = 4 << 10 // bytes of a tag filter; filter.MaxLength bounds an SQL one
	maxFilterTags    = 128
	maxSubscriptions = 1024 // topics of one consumer
	maxSettingsBytes = 64 << 10
	maxSessions      = 12 // Telemetry streams of one client; the newest win. It has one over each node of a group, five at most, and perhaps one over a balancer, and again while it changes them
)

// Limits of client_properties in Settings (RocketMQ's defaults).
const (
	maxClientProperties     = 32
	maxClientPropertyKey    = 64      // bytes
	maxClientPropertyValue  = 256     // bytes
	maxClientPropertiesText = 4 << 10 // bytes, all keys and values
)

// nameRune is the alphabet of topics and groups: [%|a-zA-Z0-9_-].
func nameRune(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '%' || c == '|' || c == '_' || c == '-'
}

// checkName judges the name of a topic or consumer group. The text is empty when
// the name is good.
func checkName(what, name string, limit int) string {
	if name == "" {
		return what + " is empty"
	}
	if len(name) > limit {
		return fmt.Sprintf("%s has %d characters, the limit is %d", what, len(name), limit)
	}
	for i := range len(name) {
		if !nameRune(name[i]) {
			return what + " may only have the characters %|a-zA-Z0-9_-"
		}
	}
	return ""
}

// blank reports whether s has nothing but white space.
func blank(s string) bool { return strings.TrimSpace(s) == "" }

// control reports whether s has a control character.
func control(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7f {
			return true
		}
		if s[i] >= 0x80 {
			return strings.IndexFunc(s[i:], unicode.IsControl) >= 0
		}
	}
	return false
}

// reservedProperties are the keys that RocketMQ uses itself; a client that sets
// one would change what other clients read of a message.
var reservedProperties = func() map[string]bool {
	set := map[string]bool{}
	for _, k := range strings.Fields(`
		KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID
		ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY
		EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET 1ST_POP_TIME
		TRAN_PREPARED_QUEUE_OFFSET DUP_INFO INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME
		PUSH_REPLY_TIME CLUSTER MSG_TYPE INNER_MULTI_QUEUE_OFFSET INNER_MULTI_DISPATCH INNER_NUM INNER_BASE
		TIMER_DELAY_SEC TIMER_DELAY_MS TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES
		TIMER_OUT_MS TIMER_DEL_UNIQKEY __SHARDINGKEY __STARTDELIVERTIME __TRANSACTIONID__`) {
		set[k] = true
	}
	return set
}()

// checkTag judges a message's tag.
func checkTag(tag string) *pb.Status {
	switch {
	case blank(tag):
		return refuse(pb.Code_ILLEGAL_MESSAGE_TAG, "the tag is blank")
	case strings.ContainsRune(tag, '|'):
		return refuse(pb.Code_ILLEGAL_MESSAGE_TAG, "the tag must not contain |")
	case control(tag):
		return refuse(pb.Code_ILLEGAL_MESSAGE_TAG, "the tag must not contain control characters")
	}
	return nil
}

// checkProperties judges user properties, and their size together with tag and keys.
func checkProperties(m *pb.Message) *pb.Status {
	sp := m.GetSystemProperties()
	props := m.GetUserProperties()
	if len(props) > maxProperties {
		return refuse(pb.Code_MESSAGE_PROPERTIES_TOO_LARGE, fmt.Sprintf("%d user properties, the limit is %d", len(props), maxProperties))
	}
	size := len(sp.GetTag())
	for _, k := range sp.GetKeys() {
		if blank(k) || control(k) {
			return refuse(pb.Code_ILLEGAL_MESSAGE_KEY, "a message key is blank or contains control characters")
		}
		size += len(k)
	}
	for k, v := range props {
		if blank(k) || control(k) {
			return refuse(pb.Code_ILLEGAL_MESSAGE_PROPERTY_KEY, "a property key is blank or contains control characters")
		}
		if reservedProperties[k] {
			return refuse(pb.Code_ILLEGAL_MESSAGE_PROPERTY_KEY, "the property key "+k+" is reserved for the system")
		}
		size += len(k) + len(v)
	}
	if size > maxPropertyText {
		return refuse(pb.Code_MESSAGE_PROPERTIES_TOO_LARGE, fmt.Sprintf("properties, tag and keys have %d bytes, the limit is %d", size, maxPropertyText))
	}
	return nil
}

// checkClientProperties judges the client_properties of Settings. The text is
// empty when they are good.
func checkClientProperties(props map[string]string) string {
	if len(props) > maxClientProperties {
		return fmt.Sprintf("%d client properties, the limit is %d", len(props), maxClientProperties)
	}
	size := 0
	for k, v := range props {
		if k == "" || len(k) > maxClientPropertyKey || !propertyKey(k) {
			return fmt.Sprintf("a client property's key must match [a-zA-Z][a-zA-Z0-9_.-]* and have 1 to %d characters", maxClientPropertyKey)
		}
		if len(v) > maxClientPropertyValue {
			return fmt.Sprintf("the value of client property %s has %d bytes, the limit is %d", k, len(v), maxClientPropertyValue)
		}
		size += len(k) + len(v)
	}
	if size > maxClientPropertiesText {
		return fmt.Sprintf("client properties have %d bytes, the limit is %d", size, maxClientPropertiesText)
	}
	return ""
}

func propertyKey(k string) bool {
	for i := range len(k) {
		c := k[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		later := c >= '0' && c <= '9' || c == '_' || c == '.' || c == '-'
		if !letter && (i == 0 || !later) {
			return false
		}
	}
	return true
}
