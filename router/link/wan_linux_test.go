package link

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/zone"
)

// wanVariable names two network namespaces and their addresses, between which
// BenchmarkAcross measures: cityA=10.77.1.1,cityB=10.77.2.1.
const wanVariable = "MQROUTER_WAN"

// BenchmarkAcross measures the goodput of a bulk link between two network
// namespaces, whose path the caller has made as it wants it, over seconds 8 to 25
// of a run, for each limit of connections. One operation is one such run:
//
//	MQROUTER_WAN=cityA=10.77.1.1,cityB=10.77.2.1 go test ./router/link -run '^$' -bench Across -benchtime 1x -count 5
func BenchmarkAcross(b *testing.B) {
	places := strings.Split(os.Getenv(wanVariable), ",")
	if len(places) != 2 {
		b.Skip("set " + wanVariable + " to two network namespaces and their addresses")
	}
	for _, parallel := range []int{1, 4, 8} {
		b.Run("connections="+strconv.Itoa(parallel), func(b *testing.B) {
			for range b.N {
				across(b, places, parallel)
			}
		})
	}
}

const (
	acrossFlows = 16
	acrossFrame = 64 << 10 // bytes
	acrossWarm  = 8 * time.Second
	acrossTime  = 17 * time.Second
)

func across(b *testing.B, places []string, parallel int) {
	ca := newAuthority(b)
	x := new(senders)
	var nodes [2]*node
	for i, place := range places {
		space, addr, _ := strings.Cut(place, "=")
		sock := socketIn(b, space, net.JoinHostPort(addr, "0"))
		name, city := zone.Node(space), zone.City(space)
		conf := ca.issue(b, peer.Identity{Deployment: testDeployment, City: city, Role: zone.RoleRouter, Name: name})
		m, err := New(Options{
			Deployment: testDeployment, City: city, Node: name, Incarnation: 1, PacketConn: sock,
			TLS: func(*Peer) *tls.Config { return conf }, Identify: identify, Handle: x.handle,
			Classes: []zone.Class{zone.ClassBulk}, Limits: Limits{Parallel: parallel}, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		n := &node{Manager: m, done: make(chan error, 1), peer: Peer{Node: name, City: city, Addr: sock.LocalAddr().String()}}
		go func() { n.done <- m.Run(ctx) }()
		defer func() {
			cancel()
			<-n.done
			_ = sock.Close()
		}()
		nodes[i] = n
	}
	from, to := nodes[0], nodes[1].peer.Node
	from.SetPeers([]Peer{nodes[1].peer})
	nodes[1].SetPeers([]Peer{from.peer})
	x.from, x.to = from, to
	for start := time.Now(); !bulkUp(from, to); {
		if time.Since(start) > 10*time.Second {
			b.Fatalf("no link: %+v", from.Status())
		}
		<-time.After(10 * time.Millisecond)
	}
	x.start(acrossFlows, acrossFrame)
	<-time.After(acrossWarm)
	before, used, start := x.total(), ownTime(), time.Now()
	<-time.After(acrossTime)
	bytes, took := float64(x.total()-before), time.Since(start)
	cpu := (ownTime() - used).Seconds()
	s := statusOf(from, to)
	x.end()
	b.ReportMetric(bytes/took.Seconds()/1e6, "MB/s")
	b.ReportMetric(float64(s.Connections), "connections")
	b.ReportMetric(100*s.Rates.Loss, "%loss")
	b.ReportMetric(cpu/(bytes/1e9), "cpu-s/GB")
	b.ReportMetric(0, "ns/op")
}

// socketIn opens a UDP socket in a network namespace.
func socketIn(b *testing.B, space, addr string) *net.UDPConn {
	type made struct {
		c   net.PacketConn
		err error
	}
	out := make(chan made, 1)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		f, err := os.Open("/var/run/netns/" + space)
		if err != nil {
			out <- made{err: err}
			return
		}
		defer f.Close()
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			out <- made{err: err}
			return
		}
		c, err := net.ListenPacket("udp4", addr)
		out <- made{c, err}
	}()
	m := <-out
	if m.err != nil {
		b.Fatal(m.err)
	}
	return m.c.(*net.UDPConn)
}

// ownTime returns the processor time that this process has used.
func ownTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
