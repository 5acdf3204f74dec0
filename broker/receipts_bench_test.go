package broker

import (
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// BenchmarkSettle publishes, receives and acknowledges messages of 1 KiB on a disk in
// memory, without and with receipts, until the last receipt is written.
func BenchmarkSettle(b *testing.B) {
	for name, topo := range map[string]func() *station{
		"plain":    func() *station { return open(b, disk.NewMem(), "rz02-a-1", sample(b), testLimits()) },
		"receipts": func() *station { return open(b, disk.NewMem(), "rz02-a-1", withReceipts(b, 1, false), testLimits()) },
	} {
		b.Run(name, func(b *testing.B) {
			s := topo()
			msgs := make([]Message, 100)
			for i := range msgs {
				msgs[i] = s.message("orders", "01321AE6E88FF202680B1E2E6D00000000")
				msgs[i].Body = make([]byte, 1024)
			}
			done := 0
			for b.Loop() {
				s.publish(msgs...)
				s.ack(billing, s.receive(billing, "orders", 100, time.Minute)...)
				done += 100
			}
			if name == "receipts" {
				s.wantReceipts(uint64(done))
			}
			b.ReportMetric(float64(done)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}
