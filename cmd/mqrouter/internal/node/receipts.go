package node

import (
	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/internal/admin"
)

// receiptsOf returns what a broker says of receipts; nil when it never had to do with any.
func receiptsOf(b *broker.Status) *admin.Receipts {
	r := admin.Receipts{Given: b.Counts.Receipts, None: b.Counts.NoReceipts}
	for _, t := range b.ReceiptTopics {
		topic := admin.ReceiptTopic{Topic: string(t.Topic), To: string(t.To), Open: t.Open, Slowest: string(t.Slowest)}
		for _, w := range b.Receipts {
			if w.Topic == t.Topic {
				topic.Waiting = append(topic.Waiting, admin.ReceiptsWaiting{Target: w.Target, Messages: w.Messages, Since: w.Since})
			}
		}
		r.Topics = append(r.Topics, topic)
	}
	if r.Given == 0 && r.None == 0 && r.Topics == nil {
		return nil
	}
	return &r
}
