package datagram

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mqrouter/mqrouter/internal/wan"
)

func TestWhatIsDroppedForWantOfRoom(t *testing.T) {
	var at time.Time
	step := func(d time.Duration) time.Time { at = at.Add(d); return at }
	is, known := counters{errors: 7, room: 7}, true
	o := overflow{count: func() (counters, bool) { return is, known }, last: is}
	for _, c := range []struct {
		name         string
		after        time.Duration
		total        uint32
		joined       float64
		errors, room uint64 // more than before
		known        bool
		want         uint32
	}{
		{"nothing", time.Hour, 0, 1, 0, 0, true, 0},
		{"wrong checksums", time.Hour, 3, 1, 3, 0, true, 0},
		{"no room, joined", time.Hour, 5, 10, 2, 2, true, 20},
		{"more of it at once", time.Millisecond, 6, 10, 1, 1, true, 0},
		{"and more", countEvery, 8, 10, 2, 2, true, 30},
		{"of another namespace", time.Hour, 9, 1, 0, 0, true, 1},
		{"not known", time.Hour, 10, 1, 9, 0, false, 1},
		{"both", time.Hour, 12, 1, 2, 1, true, 2},
	} {
		is.errors, is.room, known = is.errors+c.errors, is.room+c.room, c.known
		if got := o.add(step(c.after), c.total, c.joined); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestParseCounters(t *testing.T) {
	const v4 = "Ip: Forwarding InErrors\nIp: 1 99\n" +
		"Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors\n" +
		"Udp: 7553029 43716 28119 6607482 28100 5 6 0 3\nUdpLite: InErrors\nUdpLite: 99\n"
	const v6 = "Ip6InErrors  \t99\nUdp6InErrors  \t100\nUdp6RcvbufErrors\t10\nUdp6MemErrors\t1\nUdpLite6InErrors 99\n"
	for _, c := range []struct {
		v4, v6 string
		want   counters
		ok     bool
	}{
		{v4, v6, counters{errors: 28219, room: 28114}, true},
		{v4, "", counters{errors: 28119, room: 28103}, true},
		{"", v6, counters{errors: 100, room: 11}, false},
		{"Udp: InErrors\nUdp: x\n", "", counters{}, false},
		{"Udp: InErrors\nUdp: 1 2 3\n", "Udp6InErrors", counters{errors: 1}, true},
	} {
		if got, ok := parseCounters([]byte(c.v4), []byte(c.v6)); got != c.want || ok != c.ok {
			t.Errorf("%q: %+v, %v, want %+v, %v", c.v4, got, ok, c.want, c.ok)
		}
	}
}

// TestAWrongChecksumIsNoOverflow: in a namespace of its own, whose counters nobody else
// moves.
func TestAWrongChecksumIsNoOverflow(t *testing.T) {
	n, err := wan.Open(wan.Options{})
	if errors.Is(err, wan.ErrNotPermitted) || err != nil && os.Getenv("CI") == "true" {
		t.Skipf("skipped: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}()
	err = n.Site(0).Do(func() error { return checksums(t, n.Site(0).Addr().AsSlice()) })
	if err != nil {
		t.Fatal(err)
	}
}

func checksums(t *testing.T, ip net.IP) error {
	to, err := net.ListenUDP("udp4", &net.UDPAddr{IP: ip})
	if err != nil {
		return err
	}
	defer to.Close()
	_ = to.SetDeadline(time.Now().Add(time.Minute))
	raw, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return err
	}
	defer unix.Close(raw)
	c, port := Wrap(to), to.LocalAddr().(*net.UDPAddr).Port
	good := func(times int) error {
		for range times {
			if _, err := to.WriteTo(counting(1000), to.LocalAddr()); err != nil {
				return err
			}
		}
		return nil
	}
	for range 5 { // the kernel tells with what comes after it has found out
		bad := binary.BigEndian.AppendUint16([]byte{1, 1}, uint16(port))
		bad = append(binary.BigEndian.AppendUint16(bad, 208), 1, 1)
		addr := unix.SockaddrInet4{Addr: [4]byte(ip.To4())}
		if err := errors.Join(unix.Sendto(raw, append(bad, counting(200)...), 0, &addr), good(1)); err != nil {
			return err
		}
		if p, err := c.Next(); err != nil || len(p.Data) != 1000 {
			return errors.Join(err, errors.New("the wrong one came"))
		}
	}
	if c.overflow.told == 0 {
		t.Error("the kernel does not count them: that shows nothing")
	}
	if n := c.Dropped(); n != 0 {
		t.Errorf("%d datagrams dropped for want of room, want none", n)
	}
	if err := errors.Join(to.SetReadBuffer(10_000), good(100)); err != nil {
		return err
	}
	for c.Dropped() == 0 {
		if err := good(1); err != nil {
			return err
		}
		if _, err := c.Next(); err != nil {
			return errors.Join(err, errors.New("an overflow is not told"))
		}
	}
	return nil
}
