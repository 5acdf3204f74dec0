package router

import (
	"context"
	"fmt"
	"testing"

	"github.com/mqrouter/mqrouter/replication/wire"
)

// BenchmarkRelay measures the whole way through two routers over a loopback
// link: in-memory stream, router, QUIC, router, in-memory stream. Allocations
// include those of quic-go, of the in-memory streams (a copy of each frame on
// both sides) and of the reader.
func BenchmarkRelay(b *testing.B) {
	for _, size := range []int{1 << 10, 16 << 10, 512 << 10} {
		b.Run(fmt.Sprintf("frame=%dKiB", size>>10), func(b *testing.B) {
			c := newCluster(b, "rt-sh-1", "rt-hz-1")
			arrived := make(chan int, 1)
			c.broker("rz03-a", func(s wire.Stream) {
				if _, err := s.Recv(context.Background()); err != nil {
					return
				}
				n := 0
				for ; n < b.N; n++ {
					if _, err := s.Recv(context.Background()); err != nil {
						break
					}
				}
				arrived <- n
			})
			c.linked()
			s := c.open(c.routers["rt-sh-1"], 1, nil)
			f := batch(1, 0, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				if err := s.Send(context.Background(), f); err != nil {
					b.Fatal(err)
				}
			}
			if n := <-arrived; n != b.N {
				b.Fatalf("%d of %d frames arrived", n, b.N)
			}
			b.StopTimer()
			_ = s.Close(wire.CodeOK)
		})
	}
}
