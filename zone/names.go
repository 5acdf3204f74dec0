package zone

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// nameRule is what a kind of name has to obey.
type nameRule struct {
	most   int    // characters
	extra  string // allowed beside letters, digits, - and _
	check  func(string) string
	reason string // why the length is bounded; may be empty
}

// maxPlaceName bounds the names of the deployment, cities, zones, broker
// groups and nodes, in bytes.
const maxPlaceName = 40

// The rules of names. Topics and consumer groups follow RocketMQ 5: 127 and
// 120 characters of [%|a-zA-Z0-9_-], system names refused. The names of places
// travel in certificates and in gossip metadata of 512 bytes.
var (
	placeName = nameRule{most: maxPlaceName, check: reservedPlace, reason: "it travels in gossip metadata and certificates, which are small"}
	nodeName  = nameRule{most: maxPlaceName, check: reservedNode, reason: placeName.reason}
	topicName = nameRule{most: 127, extra: "%|", check: reservedTopic, reason: "RocketMQ clients refuse longer ones"}

	consumerGroupName = nameRule{most: 120, extra: "%|", check: reservedConsumerGroup,
		reason: "its dead-letter topic %DLQ%NAME has to fit into a topic's name"}
	propertyName = nameRule{most: 64, extra: ".", check: reservedProperty}
)

// name reads a name and checks it; the name comes back even when it is bad, so
// that what refers to it is not reported too.
func (r *reader) name(v value, what string, rule nameRule) string {
	s, ok := r.text(v, what)
	if !ok {
		return ""
	}
	if s == "" {
		r.add(v.at(), what+" is empty", "give it a name")
		return ""
	}
	if len(s) > rule.most {
		fix := fmt.Sprintf("use at most %d", rule.most)
		if rule.reason != "" {
			fix += ": " + rule.reason
		}
		r.add(v.at(), fmt.Sprintf("%s has %d characters: %s", what, len(s), v.describe()), fix)
		return s
	}
	if bad := strings.IndexFunc(s, func(c rune) bool { return !rule.allows(c) }); bad >= 0 {
		c := []rune(s[bad:])[0]
		r.add(v.at(), fmt.Sprintf("%s is %s: the character %q is not allowed", what, v.describe(), c),
			"use letters, digits, - and _"+orExtra(rule.extra))
		return s
	}
	if problem := rule.check(s); problem != "" {
		r.add(v.at(), fmt.Sprintf("%s is %s: %s", what, v.describe(), problem), "choose another name")
	}
	return s
}

func (n nameRule) allows(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' ||
		strings.ContainsRune(n.extra, c)
}

func orExtra(extra string) string {
	out := ""
	for _, c := range extra {
		out += ", " + string(c)
	}
	return out
}

func reservedPlace(s string) string {
	switch {
	case s == none:
		return "the word says that there is no standby"
	case s[0] == '-' || s[0] == '_':
		return "a name begins with a letter or digit"
	}
	return ""
}

// reservedNode also refuses names whose certificate NAME.pem would have the
// name of somebody's key, or of the authority's.
func reservedNode(s string) string {
	switch {
	case s == "ca":
		return "ca.pem is the authority's certificate"
	case strings.HasSuffix(s, "-key"):
		return s + ".pem would be a key's file, not that of the node's certificate"
	}
	return reservedPlace(s)
}

// systemPrefixes begin the names that RocketMQ and this system make themselves.
var systemPrefixes = []string{"%DLQ%", "%RETRY%", "%SYS%", "%LMQ%", "RMQ_SYS_", "rmq_sys_", "CID_RMQ_SYS_"}

func reserved(s string, names ...string) string {
	for _, p := range systemPrefixes {
		if strings.HasPrefix(s, p) {
			return "names that begin with " + p + " are reserved for the system"
		}
	}
	for _, n := range names {
		if s == n {
			return "the name is reserved for the system"
		}
	}
	return ""
}

func reservedTopic(s string) string {
	return reserved(s, "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
		"RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC")
}

func reservedConsumerGroup(s string) string {
	return reserved(s, "DEFAULT_CONSUMER", "DEFAULT_PRODUCER", "TOOLS_CONSUMER", "FILTERSRV_CONSUMER",
		"SELF_TEST_C_GROUP", "SELF_TEST_P_GROUP", "CID_ONSAPI_OWNER", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_PULL")
}

// reservedProperty refuses the keys that RocketMQ uses itself; a client cannot
// set them.
func reservedProperty(s string) string {
	switch s {
	case "KEYS", "TAGS", "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP", "MIN_OFFSET",
		"MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "RECONSUME_TIME",
		"MSG_REGION", "TRACE_ON", "UNIQ_KEY", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "POP_CK", "INSTANCE_ID",
		"CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "DUP_INFO", "__SHARDINGKEY", "__STARTDELIVERTIME":
		return "clients cannot set this key, RocketMQ uses it itself"
	}
	return ""
}

// cleanAddress returns host:port in one spelling, or what would be right.
func cleanAddress(s string) (clean, fix string) {
	const form = "host:port is needed, such as 10.1.0.7:8081 or \"[fd00::7]:8081\""
	i := strings.LastIndexByte(s, ':')
	if i <= 0 || len(s) > 255 {
		return "", form
	}
	host, portText := s[:i], s[i+1:]
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return "", form
	}
	if port == 0 {
		return "", "the port is a fixed one from 1 to 65535, so that others can find it"
	}
	bare := strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if ip, err := netip.ParseAddr(bare); err == nil {
		if ip.IsUnspecified() {
			return "", "others dial this address: name one of the machine's own"
		}
		return netip.AddrPortFrom(ip.Unmap(), uint16(port)).String(), ""
	}
	if len(bare) != len(host) || !isHostname(host) {
		return "", form
	}
	return strings.ToLower(host) + ":" + strconv.FormatUint(port, 10), ""
}

// isHostname applies RFC 1123, with underscores, which container networks use.
func isHostname(s string) bool {
	for label := range strings.SplitSeq(strings.TrimSuffix(s, "."), ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range label {
			if !(nameRule{}).allows(c) {
				return false
			}
		}
	}
	return true
}
