package zone

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Lite bounds the lite topics of a topic of kind lite: the many small topics that
// its messages name, each of which springs into being with its first message.
type Lite struct {
	// Topics is how many lite topics may live at once at one broker group, at least
	// 1. Beyond it a message that would make another one is refused.
	Topics int
	// TTL is how long after its last message a lite topic lives on. Then it is
	// forgotten, with what was not consumed of it.
	TTL time.Duration
	// Subscriptions is how many lite topics one client may subscribe to, at least 1.
	Subscriptions int
}

// MaxLiteName bounds the name of a lite topic in bytes; its characters are those of
// a topic's name. It is RocketMQ's bound, which the official clients begin with.
const MaxLiteName = 64

// Bounds of a topic's lite key. A lite topic takes some 160 bytes of memory at its
// broker group (BenchmarkLiteTopics of package broker).
const (
	minLiteTTL           = time.Second // a test's; clients tell their subscriptions anew every 30 s
	maxLiteTTL           = 30 * day    // RocketMQ's
	maxLiteTopics        = 1 << 20
	maxLiteSubscriptions = 10_000
)

// DefaultLite is what holds when the topology does not say: subscriptions as in
// RocketMQ, the time as messages are kept by default.
var DefaultLite = Lite{Topics: 100_000, TTL: defaultRetention, Subscriptions: 2000}

// String returns the values as topology files write them.
func (l Lite) String() string {
	return fmt.Sprintf("topics %d, ttl %s, subscriptions %d", l.Topics, FormatDuration(l.TTL), l.Subscriptions)
}

// LiteMode says how the clients of a consumer group get the lite topics of a topic
// of kind lite.
type LiteMode uint8

// The modes.
const (
	LiteShared    LiteMode = iota // each client subscribes by name; those that name the same one share it
	LiteExclusive                 // likewise, and the last client that names one has it alone
	LiteAll                       // every client gets all of them, without a subscription
)

var liteModeWords = []word[LiteMode]{{LiteShared, "shared"}, {LiteExclusive, "exclusive"}, {LiteAll, "all"}}

// String returns the word of topology files.
func (m LiteMode) String() string { return say(liteModeWords, m) }

// LiteModeOf returns how a consumer group gets the lite topics of a topic. A group
// that is not declared shares them.
func (t *Topology) LiteModeOf(group ConsumerGroup) LiteMode {
	if g := t.FindConsumerGroup(group); g != nil {
		return g.Lite
	}
	return LiteShared
}

// LiteName says what is wrong with the name of a lite topic; empty when it is good.
func LiteName(name string) string {
	switch {
	case strings.TrimSpace(name) == "":
		return "it is blank"
	case len(name) > MaxLiteName:
		return fmt.Sprintf("it has %d characters, the limit is %d", len(name), MaxLiteName)
	}
	for i := range len(name) {
		if !topicName.allows(rune(name[i])) {
			return "it may only have the characters %|a-zA-Z0-9_-"
		}
	}
	return ""
}

// readLite reads {topics, ttl, subscriptions}.
func (d *draft) readLite(v value, t *draftTopic) {
	t.liteAt = v.at()
	x := DefaultLite
	r := &d.reader
	d.object(v, "lite", []field{
		{"topics", false, func(v value) { integer(r, v, "lite.topics", 1, maxLiteTopics, &x.Topics) }},
		{"ttl", false, func(v value) { d.duration(v, "lite.ttl", minLiteTTL, maxLiteTTL, &x.TTL) }},
		{"subscriptions", false, func(v value) {
			integer(r, v, "lite.subscriptions", 1, maxLiteSubscriptions, &x.Subscriptions)
		}},
	})
	t.info.Lite = x
}

// checkLite gives topics of kind lite the defaults, and refuses the key elsewhere and
// what does not go with lite topics.
func (d *draft) checkLite(t *draftTopic) {
	info := t.info
	if info.Kind != KindLite {
		if info.Kind != 0 && t.liteAt.line > 0 {
			d.add(t.liteAt, fmt.Sprintf("topic %s bounds its lite topics, and its kind is %s", info.Name, info.Kind),
				"write kind: lite, or remove the key")
		}
		return
	}
	if info.Lite == (Lite{}) {
		info.Lite = DefaultLite
	}
	if info.Channel != nil {
		d.add(t.kindAt, fmt.Sprintf("topic %s is of kind lite, and its route is %s", info.Name, info.Route),
			"a broadcast has one order and no subscriptions by name; use another route, or kind normal")
	}
	if info.Receipts != nil {
		d.add(t.receipts.at, fmt.Sprintf("topic %s is of kind lite and has receipts", info.Name),
			"a lite topic may be forgotten before it was consumed, of which a receipt would tell nothing; remove receipts")
	}
}

// checkLiteMode refuses a group's lite key when none of its topics has lite topics.
func (d *draft) checkLiteMode(g *draftConsumers) {
	lite := slices.ContainsFunc(g.info.Topics, func(t *TopicInfo) bool { return t.Kind == KindLite })
	if g.liteAt.line > 0 && !lite && len(g.info.Topics) == len(g.topics) {
		d.add(g.liteAt, fmt.Sprintf("consumer group %s says how it gets lite topics, and none of its topics is of kind lite", g.info.Name),
			"remove the key, or subscribe to a topic of kind lite")
	}
}

// liteText is for tables of changes; empty when the topic has no lite topics.
func liteText(t *TopicInfo) string {
	if t.Kind != KindLite {
		return ""
	}
	return t.Lite.String()
}
