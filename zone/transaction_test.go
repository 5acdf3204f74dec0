package zone

import (
	"strings"
	"testing"
	"time"
)

// withTransaction is the sample whose topic audit has the key and kind.
func withTransaction(t *testing.T, keys string) string {
	t.Helper()
	return replaced(t, sampleText(t), "  - name: audit\n", "  - name: audit\n"+keys)
}

func TestTransactionOfATopic(t *testing.T) {
	for keys, want := range map[string]Transaction{
		"    kind: transaction\n":                                                                 DefaultTransaction,
		"    kind: transaction\n    transaction: {}\n":                                            DefaultTransaction,
		"    kind: transaction\n    transaction: {checks: 3}\n":                                   {Immunity: 6 * time.Second, Interval: 30 * time.Second, Checks: 3},
		"    transaction: {immunity: 1m, interval: 500ms, checks: 1000}\n    kind: transaction\n": {Immunity: time.Minute, Interval: 500 * time.Millisecond, Checks: 1000},
		"": {},
	} {
		if got := mustParse(t, withTransaction(t, keys)).FindTopic("audit").Transaction; got != want {
			t.Errorf("%q: %+v, want %+v", keys, got, want)
		}
	}
}

func TestTransactionFaults(t *testing.T) {
	for name, c := range map[string]struct{ keys, what string }{
		"other kind":   {"    transaction: {checks: 3}\n", "its kind is normal"},
		"no check":     {"    kind: transaction\n    transaction: {checks: 0}\n", "transaction.checks"},
		"too many":     {"    kind: transaction\n    transaction: {checks: 1001}\n", "transaction.checks"},
		"long":         {"    kind: transaction\n    transaction: {immunity: 61m}\n", "transaction.immunity"},
		"no interval":  {"    kind: transaction\n    transaction: {interval: 0s}\n", "transaction.interval"},
		"unknown key":  {"    kind: transaction\n    transaction: {immunty: 1s}\n", "immunty"},
		"plain value":  {"    kind: transaction\n    transaction: 6s\n", "transaction"},
		"negative one": {"    kind: transaction\n    transaction: {interval: -5s}\n", "transaction.interval"},
	} {
		if _, err := Parse([]byte(withTransaction(t, c.keys)), "test.yaml"); err == nil || !strings.Contains(err.Error(), c.what) {
			t.Errorf("%s: %v, want %q", name, err, c.what)
		}
	}
}

// A change of the checks is a change of the topology, and an operator sees which.
func TestTransactionIsPartOfDigestAndDiff(t *testing.T) {
	a := mustParse(t, withTransaction(t, "    kind: transaction\n"))
	b := mustParse(t, withTransaction(t, "    kind: transaction\n    transaction: {checks: 3}\n"))
	same := mustParse(t, withTransaction(t, "    kind: transaction\n    transaction: {checks: 15}\n"))
	if a.Digest == b.Digest || a.Digest != same.Digest {
		t.Error("the digest does not follow the checks")
	}
	changes := Diff(a, b)
	if len(changes) != 1 || changes[0].What != "topic audit: transaction" || changes[0].To != "immunity 6s, interval 30s, checks 3" {
		t.Errorf("changes %+v", changes)
	}
	steps := a.Explain(Query{Topic: a.FindTopic("audit"), From: a.Zones()[0], MessageID: "M"})
	if !strings.Contains(steps[2].Detail, "checks 15") {
		t.Errorf("explanation %+v", steps)
	}
}
