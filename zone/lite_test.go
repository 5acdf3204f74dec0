package zone

import (
	"strings"
	"testing"
	"time"
)

// withLite is the sample whose topic audit has the keys.
func withLite(t *testing.T, keys string) string {
	t.Helper()
	return replaced(t, sampleText(t), "  - name: audit\n", "  - name: audit\n"+keys)
}

func TestLiteOfATopic(t *testing.T) {
	for keys, want := range map[string]Lite{
		"    kind: lite\n":                                                   DefaultLite,
		"    kind: lite\n    lite: {}\n":                                     DefaultLite,
		"    kind: lite\n    lite: {topics: 7}\n":                            {Topics: 7, TTL: 3 * day, Subscriptions: 2000},
		"    lite: {topics: 1, ttl: 1s, subscriptions: 1}\n    kind: lite\n": {Topics: 1, TTL: time.Second, Subscriptions: 1},
		"": {},
	} {
		if got := mustParse(t, withLite(t, keys)).FindTopic("audit").Lite; got != want {
			t.Errorf("%q: %+v, want %+v", keys, got, want)
		}
	}
}

func TestLiteFaults(t *testing.T) {
	for name, c := range map[string]struct{ keys, what string }{
		"other kind":    {"    lite: {topics: 3}\n", "its kind is normal"},
		"no topic":      {"    kind: lite\n    lite: {topics: 0}\n", "lite.topics"},
		"too many":      {"    kind: lite\n    lite: {topics: 1048577}\n", "lite.topics"},
		"long":          {"    kind: lite\n    lite: {ttl: 31d}\n", "lite.ttl"},
		"short":         {"    kind: lite\n    lite: {ttl: 1ms}\n", "lite.ttl"},
		"subscriptions": {"    kind: lite\n    lite: {subscriptions: 10001}\n", "lite.subscriptions"},
		"unknown key":   {"    kind: lite\n    lite: {topic: 1}\n", "topic"},
		"plain value":   {"    kind: lite\n    lite: 6s\n", "lite"},
		"receipts":      {"    kind: lite\n    receipts: orders\n", "has receipts"},
	} {
		if _, err := Parse([]byte(withLite(t, c.keys)), "test.yaml"); err == nil || !strings.Contains(err.Error(), c.what) {
			t.Errorf("%s: %v, want %q", name, err, c.what)
		}
	}
	text := replaced(t, sampleText(t), "  - name: member\n", "  - name: member\n    kind: lite\n")
	if _, err := Parse([]byte(text), "test.yaml"); err == nil || !strings.Contains(err.Error(), "is of kind lite, and its route is broadcast") {
		t.Errorf("a broadcast of lite topics: %v", err)
	}
}

func TestLiteModeOfAGroup(t *testing.T) {
	group := func(keys string) string {
		return withLite(t, "    kind: lite\n") + "  - {name: chatters, topics: [audit]" + keys + "}\n"
	}
	for keys, want := range map[string]LiteMode{"": LiteShared, ", lite: shared": LiteShared, ", lite: exclusive": LiteExclusive, ", lite: all": LiteAll} {
		topo := mustParse(t, group(keys))
		if got := topo.LiteModeOf("chatters"); got != want || topo.LiteModeOf("nobody") != LiteShared || !topo.InOrder("chatters", topo.FindTopic("audit")) {
			t.Errorf("%q: %v, want %v", keys, got, want)
		}
	}
	for name, c := range map[string]struct{ text, what string }{
		"unknown mode":      {group(", lite: some"), "lite"},
		"no topic for that": {sampleText(t) + "  - {name: chatters, topics: [audit], lite: all}\n", "none of its topics is of kind lite"},
	} {
		if _, err := Parse([]byte(c.text), "test.yaml"); err == nil || !strings.Contains(err.Error(), c.what) {
			t.Errorf("%s: %v, want %q", name, err, c.what)
		}
	}
}

// A change of bounds or mode is a change of the topology, and an operator sees which.
func TestLiteIsPartOfDigestAndDiff(t *testing.T) {
	a := mustParse(t, withLite(t, "    kind: lite\n")+"  - {name: chatters, topics: [audit]}\n")
	b := mustParse(t, withLite(t, "    kind: lite\n    lite: {topics: 3}\n")+"  - {name: chatters, topics: [audit], lite: all}\n")
	same := mustParse(t, withLite(t, "    kind: lite\n    lite: {topics: 100000}\n")+"  - {name: chatters, topics: [audit], lite: shared}\n")
	if a.Digest == b.Digest || a.Digest != same.Digest {
		t.Error("the digest does not follow the bounds")
	}
	changes := Diff(a, b)
	if len(changes) != 2 || changes[0].To != "topics 3, ttl 72h, subscriptions 2000" || changes[1].To != "all" {
		t.Errorf("changes %+v", changes)
	}
	text := ""
	for _, s := range a.Explain(Query{Topic: a.FindTopic("audit"), From: a.Zones()[0], MessageGroup: "room-7", MessageID: "M"}) {
		text += s.Title + ": " + s.Detail + "\n"
	}
	if !strings.Contains(text, "lite: ") || !strings.Contains(text, "has the order of its lite topic") {
		t.Errorf("explanation:\n%s", text)
	}
}

func TestLiteName(t *testing.T) {
	for name, good := range map[string]bool{"a": true, "room-7_%|Z": true, strings.Repeat("x", 64): true,
		"": false, " ": false, strings.Repeat("x", 65): false, "a b": false, "ü": false, "a/b": false, "\x00": false} {
		if text := LiteName(name); (text == "") != good {
			t.Errorf("%q: %q", name, text)
		}
	}
}
