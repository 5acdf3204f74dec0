package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/router/link"
)

func pair(t *testing.T, dir, name string) *tls.Certificate {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return &cert
}

// TestStrangersAndGarbageBetweenNodes attacks the doors between nodes (in-city
// TCP, QUIC, gossip) while traffic crosses the cities: it goes on, strangers
// are refused, and nothing stays behind.
func TestStrangersAndGarbageBetweenNodes(t *testing.T) {
	rnd := attackRand(t)
	c := newCluster(t)
	c.upAll()
	other := filepath.Join(c.dir, "other-pki")
	must(t, nil, "pki", "init", "--deployment", "cluster", "--dir", other)
	must(t, nil, "pki", "issue", "--dir", other, "--topology", c.topology(), "--all")
	l := c.load("rz-a-1", 2, "7", 200, 5*time.Millisecond)
	victims := []string{"rt-a1", "rt-b1", "rz-b-1"}
	before := map[string]toll{}
	for _, v := range victims {
		before[v] = c.toll(v)
	}
	certs := map[string]*tls.Certificate{
		"no certificate": nil, "another CA": pair(t, other, "rz-b-1"), "itself": pair(t, c.pki(), "rz-b-1"),
		"a broker of another city": pair(t, c.pki(), "rz-a-1"), "a router of another city": pair(t, c.pki(), "rt-a2"),
		"a router of this city": pair(t, c.pki(), "rt-b2"), "a broker of this city": pair(t, c.pki(), "cz-b-1"),
	}
	noise := make([]byte, 4<<20)
	src := newSource(attackSeed())
	src.Read(noise)
	absurd := append([]byte(nil), noise[:4096]...)
	for i := 0; i+4 < len(absurd); i += 16 {
		copy(absurd[i:], "\xff\xff\xff\xff")
	}
	loads := [][]byte{nil, noise, absurd, make([]byte, 1<<20)}
	var wg sync.WaitGroup
	deadline := time.Now().Add(time.Duration(rounds(4, 30)) * time.Second)
	for _, v := range victims {
		doors := c.doors(t, v)
		if doors["peer"] == "" || doors["gossip"] == "" {
			t.Fatalf("doors of %s: %v", v, doors)
		}
		for _, cert := range certs {
			for _, b := range loads {
				wg.Go(func() {
					cfg := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{peer.ALPN}}
					if cert != nil {
						cfg.Certificates = []tls.Certificate{*cert}
					}
					overTCP(doors["peer"], cfg, b, deadline)
					if doors["quic"] != "" {
						overQUIC(doors["quic"], cfg, b, deadline)
					}
				})
			}
		}
		for _, door := range []string{"peer", "gossip", "wan"} {
			if addr := doors[door]; addr != "" {
				seed := rnd.IntN(1 << 20)
				wg.Go(func() { throw(addr, 100, noise[seed:seed+1<<16], 3*time.Second) })
				wg.Go(func() { throw(addr, 100, nil, 5*time.Second) })
			}
		}
		for _, door := range []string{"quic", "gossip", "wan"} {
			if addr := doors[door]; addr != "" {
				wg.Go(func() { packets(addr, noise, deadline) })
			}
		}
	}
	wg.Wait()
	from, _ := l.counts()
	eventually(t, "publishes go on", time.Minute, func() error {
		if n, f := l.counts(); n < from+50 {
			return fmt.Errorf("%d acknowledged, %d failed", n-from, f)
		}
		return nil
	})
	l.settled(c, "rz-b-1", places{})
	for _, v := range victims {
		c.recovered(v, before[v])
		if strings.Contains(c.nodes[v].running.output(), "panic") {
			t.Errorf("%s panicked", v)
		}
		n := strings.Count(c.nodes[v].running.output(), "\n")
		t.Logf("%s logged %d lines", v, n)
		if n > 3000 {
			t.Errorf("%s logged %d lines", v, n)
		}
	}
}

func overTCP(addr string, cfg *tls.Config, b []byte, deadline time.Time) {
	conn, err := net.DialTimeout("tcp", addr, 2*time.Second)
	if err != nil {
		return
	}
	defer conn.Close()
	conn.SetDeadline(deadline)
	s := tls.Client(conn, cfg)
	if s.Handshake() != nil {
		return
	}
	s.Write(b)
	s.Read(make([]byte, 1)) // and never more
	hold(time.Until(deadline) / 4)
}

func overQUIC(addr string, cfg *tls.Config, b []byte, deadline time.Time) {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	for _, alpn := range []string{link.ALPN, "h3"} {
		cfg := cfg.Clone()
		cfg.NextProtos = []string{alpn}
		conn, err := quic.DialAddr(ctx, addr, cfg, &quic.Config{})
		if err != nil {
			continue
		}
		for range 20 {
			s, err := conn.OpenStream()
			if err != nil {
				break
			}
			s.SetDeadline(deadline)
			s.Write(b[:min(len(b), 1<<18)])
		}
		conn.SendDatagram([]byte("x"))
		select {
		case <-conn.Context().Done():
		case <-time.After(time.Second):
		}
		conn.CloseWithError(0x1234, "bye")
	}
}

// packets sends noise of many lengths as datagrams until the deadline.
func packets(addr string, noise []byte, deadline time.Time) {
	conn, err := net.Dial("udp", addr)
	if err != nil {
		return
	}
	defer conn.Close()
	for i := 0; time.Now().Before(deadline) && i < 20000; i++ {
		at := (i * 1471) % (len(noise) - 1500)
		conn.Write(noise[at : at+1+i%1400])
		if i%50 == 0 {
			hold(time.Millisecond)
		}
	}
}
