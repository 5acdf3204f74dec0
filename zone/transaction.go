package zone

import (
	"fmt"
	"time"
)

// Transaction is how the producers of a topic of kind transaction are asked what
// became of a half message that they left undecided.
type Transaction struct {
	// Immunity is how long a half message is left alone after it was stored; it
	// counts as no check. A message may bring its own, up to an hour.
	Immunity time.Duration
	// Interval is the time from one check to the next, and from the last check
	// until the message is parked.
	Interval time.Duration
	// Checks is how many checks reach a producer at most, at least 1.
	Checks int
}

// Bounds of a topic's transaction key.
const (
	minTransactionTime = 100 * time.Millisecond // a test's; producers need seconds
	maxTransactionTime = time.Hour              // RocketMQ's bound of the immunity time
	maxChecks          = 1000
)

// DefaultTransaction is how a topic's half messages are checked when the topology
// does not say: the values of RocketMQ.
var DefaultTransaction = Transaction{Immunity: 6 * time.Second, Interval: 30 * time.Second, Checks: 15}

// String returns the values as topology files write them.
func (t Transaction) String() string {
	return fmt.Sprintf("immunity %s, interval %s, checks %d", FormatDuration(t.Immunity), FormatDuration(t.Interval), t.Checks)
}

// readTransaction reads {immunity, interval, checks}.
func (d *draft) readTransaction(v value, t *draftTopic) {
	t.transactionAt = v.at()
	x := DefaultTransaction
	d.object(v, "transaction", []field{
		{"immunity", false, func(v value) {
			d.duration(v, "transaction.immunity", minTransactionTime, maxTransactionTime, &x.Immunity)
		}},
		{"interval", false, func(v value) {
			d.duration(v, "transaction.interval", minTransactionTime, maxTransactionTime, &x.Interval)
		}},
		{"checks", false, func(v value) { integer(&d.reader, v, "transaction.checks", 1, maxChecks, &x.Checks) }},
	})
	t.info.Transaction = x
}

// checkTransaction gives topics of kind transaction the defaults, and refuses the
// key elsewhere.
func (d *draft) checkTransaction(t *draftTopic) {
	switch {
	case t.info.Kind == KindTransaction && t.info.Transaction == Transaction{}:
		t.info.Transaction = DefaultTransaction
	case t.info.Kind != KindTransaction && t.info.Kind != 0 && t.transactionAt.line > 0:
		d.add(t.transactionAt, fmt.Sprintf("topic %s says how transactions are checked, and its kind is %s", t.info.Name, t.info.Kind),
			"write kind: transaction, or remove the key")
	}
}

// transactionText is for tables of changes; empty when the topic has none.
func transactionText(t *TopicInfo) string {
	if t.Kind != KindTransaction {
		return ""
	}
	return t.Transaction.String()
}
