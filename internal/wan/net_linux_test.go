package wan

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"
)

// open makes a network or skips the test, saying why.
func open(t *testing.T, single bool) *Net {
	t.Helper()
	n, err := Open(Options{Seed: 1, Single: single})
	// A machine of the CI may have anything; a person's that permits it should work.
	if errors.Is(err, ErrNotPermitted) || err != nil && os.Getenv("CI") == "true" {
		t.Skipf("skipped: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestPathCarriesUDPAndTCPWithItsDelayAndLoss sends both over a path: datagrams
// arrive after the delay but for those that are lost, and a TCP stream comes whole.
func TestPathCarriesUDPAndTCPWithItsDelayAndLoss(t *testing.T) {
	for _, single := range []bool{false, true} {
		carries(t, single)
	}
}

func carries(t *testing.T, single bool) {
	n := open(t, single)
	defer func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}()
	n.Set(Path{Delay: 10 * time.Millisecond, Loss: Random(0.1)})
	udp(t, n)
	n.Set(Path{Delay: time.Millisecond, Loss: Random(0.02), Rate: 50_000_000})
	before := n.Stats(0)
	stream(t, n)
	if st := n.Stats(0).Sub(before); single != (st.Handed == st.Packets) {
		t.Errorf("%+v of a stream, want packets handed over one by one: %v", st, single)
	}
	if n.Used() == 0 {
		t.Error("the emulation took no time")
	}
}

func udp(t *testing.T, n *Net) {
	const packets = 2000
	from, to := socket(t, n.Site(0)), socket(t, n.Site(1))
	defer from.Close()
	defer to.Close()
	before := n.Stats(0)
	start := time.Now()
	for range packets {
		if _, err := from.WriteToUDPAddrPort(make([]byte, 100), to.LocalAddr().(*net.UDPAddr).AddrPort()); err != nil {
			t.Fatal(err)
		}
	}
	got, b := 0, make([]byte, 200)
	for {
		_ = to.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		if _, _, err := to.ReadFromUDPAddrPort(b); err != nil {
			break
		}
		if got++; got == 1 && time.Since(start) < 10*time.Millisecond {
			t.Error("the first packet came before its time")
		}
	}
	st := n.Stats(0).Sub(before)
	if st.Packets != packets || st.Bytes != packets*128 || st.Lost < packets/20 || st.Lost > packets/5 {
		t.Errorf("%+v, want %d packets of 128 bytes, a tenth of them lost", st, packets)
	}
	if got == 0 || got > packets-int(st.Lost) {
		t.Errorf("%d packets came of %d that were not lost", got, packets-int(st.Lost))
	}
}

func stream(t *testing.T, n *Net) {
	const size = 2 << 20
	var ln net.Listener
	var c net.Conn
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(n.Site(1).Do(func() (err error) {
		ln, err = net.ListenTCP("tcp4", &net.TCPAddr{IP: n.Site(1).Addr().AsSlice()})
		return err
	}))
	defer ln.Close()
	must(n.Site(0).Do(func() (err error) {
		c, err = net.DialTCP("tcp4", nil, ln.Addr().(*net.TCPAddr))
		return err
	}))
	defer c.Close()
	in, err := ln.Accept()
	must(err)
	defer in.Close()
	go func() {
		_, _ = c.Write(make([]byte, size))
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	_ = in.SetReadDeadline(time.Now().Add(time.Minute))
	got, err := io.Copy(io.Discard, in)
	must(err)
	if got != size {
		t.Errorf("%d bytes came of %d", got, size)
	}
}

func socket(t *testing.T, s *Site) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	err := s.Do(func() (err error) {
		c, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.Addr(), 0)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
