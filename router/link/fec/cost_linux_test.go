package fec

import (
	"errors"
	"io"
	mrand "math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// lossyUDP is a real socket that loses a share of what comes.
type lossyUDP struct {
	*net.UDPConn
	batch *ipv4.PacketConn
	rng   *mrand.Rand
	share float64
}

func (l *lossyUDP) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	for {
		n, err := l.batch.ReadBatch(ms, flags)
		if err != nil {
			return 0, err
		}
		kept := 0
		for i := range n {
			if l.rng.Float64() >= l.share {
				ms[kept], ms[i] = ms[i], ms[kept]
				kept++
			}
		}
		if kept > 0 {
			return kept, nil
		}
	}
}

// BenchmarkCost measures the processor time of a transfer between two ends of this
// process over real sockets, both ends together: without this layer, with it on a
// clean path, and with 1 % of loss repaired. One operation is a megabyte.
//
//	go test ./router/link/fec -run '^$' -bench Cost -benchtime 1000x -count 5
func BenchmarkCost(b *testing.B) {
	for _, c := range []struct {
		name  string
		layer bool
		share float64
	}{{"off", false, 0}, {"clean", true, 0}, {"loss=1%", true, 0.01}} {
		b.Run(c.name, func(b *testing.B) { cost(b, c.layer, c.share) })
	}
}

func cost(b *testing.B, layer bool, share float64) {
	conns := [2]*net.UDPConn{listenUDP(b), listenUDP(b)}
	var ends [2]*quic.Transport
	var leases [2]*Lease
	for i, conn := range conns {
		in := &lossyUDP{UDPConn: conn, batch: ipv4.NewPacketConn(conn), rng: mrand.New(mrand.NewPCG(1, uint64(i))), share: share}
		ends[i] = &quic.Transport{Conn: in}
		if layer {
			l := New(in, Options{Queue: time.Minute})
			defer l.Close()
			ends[i].Conn, leases[i] = l.PacketConn(), l.Lease("peer")
		}
		defer conn.Close()
		defer ends[i].Close()
	}
	client, server := dial(b, ends[0], ends[1], conns[1].LocalAddr())
	if layer {
		leases[0].Enable(client.RemoteAddr(), leases[1].Tag())
		leases[1].Enable(server.RemoteAddr(), leases[0].Tag())
	}
	stream(b, client, server, 30)
	b.SetBytes(1 << 20)
	b.ReportAllocs()
	before := processorTime()
	b.ResetTimer()
	stream(b, client, server, b.N)
	b.StopTimer()
	b.ReportMetric((processorTime()-before).Seconds()/(float64(b.N<<20)/1e9), "cpu-s/GB")
	if layer {
		b.ReportMetric(float64(leases[1].Status().Recovered), "recovered")
		b.ReportMetric(float64(leases[0].Status().ParitySent), "parity")
	}
}

// stream sends so many megabytes, which the other end throws away.
func stream(b *testing.B, from, to *quic.Conn, megabytes int) {
	done := make(chan error, 1)
	go func() {
		s, err := from.OpenStream()
		for part := make([]byte, 64<<10); err == nil && megabytes > 0; megabytes-- {
			for range 16 {
				if _, err = s.Write(part); err != nil {
					break
				}
			}
		}
		if err == nil {
			err = s.Close()
		}
		done <- err
	}()
	s, err := to.AcceptStream(b.Context())
	for buf := make([]byte, 64<<10); err == nil; {
		_, err = s.Read(buf)
	}
	if sent := <-done; sent != nil || !errors.Is(err, io.EOF) {
		b.Fatal(sent, err)
	}
}

// processorTime returns what this process has used.
func processorTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
