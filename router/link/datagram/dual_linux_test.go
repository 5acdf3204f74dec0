package datagram

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// options sets socket options to 1.
func options(t testing.TB, c *net.UDPConn, all ...[2]int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		for _, o := range all {
			if err := unix.SetsockoptInt(int(fd), o[0], o[1], 1); err != nil {
				failed = err
			}
		}
	}); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
}

// listenBoth binds a socket of both families to all addresses, as a router does, with
// the control messages that quic-go asks for.
func listenBoth(t testing.TB) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if c.LocalAddr().(*net.UDPAddr).IP.To4() != nil {
		t.Skip("skipped: this machine has no IPv6")
	}
	options(t, c, [2]int{unix.IPPROTO_IP, unix.IP_RECVTOS}, [2]int{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS},
		[2]int{unix.IPPROTO_IP, unix.IP_PKTINFO}, [2]int{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO})
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	return c
}

// families are the senders of a test: a socket of each family, what carries its ECN
// field, and where it comes from.
var families = []struct {
	network string
	ip      net.IP
	ecn     func(byte) []byte
}{
	{"udp4", net.IPv4(127, 0, 0, 1), func(b byte) []byte { return control(unix.IPPROTO_IP, unix.IP_TOS, b) }},
	{"udp6", net.IPv6loopback, func(b byte) []byte { return control(unix.IPPROTO_IPV6, unix.IPV6_TCLASS, number(uint32(b))...) }},
}

// TestASocketOfBothFamilies reads what comes over IPv4 and IPv6 from one socket, joined
// and single, with every ECN field, as quic-go does: also where the socket has been asked
// for more control messages than quic-go has room for.
func TestASocketOfBothFamilies(t *testing.T) {
	more := [][2]int{
		{unix.IPPROTO_IP, unix.IP_RECVTTL}, {unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT},
		{unix.IPPROTO_IP, unix.IP_RECVORIGDSTADDR}, {unix.IPPROTO_IPV6, unix.IPV6_RECVORIGDSTADDR},
	}
	for _, f := range families {
		for name, asked := range map[string][][2]int{"as quic-go asks": nil, "with more control messages": more} {
			t.Run(f.network+" "+name, func(t *testing.T) {
				to := listenBoth(t)
				options(t, to, asked...)
				from, err := net.ListenUDP(f.network, &net.UDPAddr{IP: f.ip})
				if err != nil {
					t.Skipf("skipped: this machine has no address of %s: %v", f.network, err)
				}
				defer from.Close()
				c := Wrap(to)
				defer c.Watch(from.LocalAddr(), func() uint64 { return 0 })()
				at := &net.UDPAddr{IP: f.ip, Port: to.LocalAddr().(*net.UDPAddr).Port}
				cut := control(unix.IPPROTO_UDP, unix.UDP_SEGMENT, binary.NativeEndian.AppendUint16(nil, 500)...)
				for ecn := range byte(4) {
					for _, x := range []struct{ data, oob []byte }{
						{counting(1000), f.ecn(ecn)}, {counting(1700), append(f.ecn(ecn), cut...)},
					} {
						if _, _, err := from.WriteMsgUDP(x.data, x.oob, at); err != nil {
							t.Skipf("skipped: this kernel cuts nothing: %v", err)
						}
						if got := readAll(t, c, from.LocalAddr(), len(x.data), ecn); !bytes.Equal(got, x.data) {
							t.Errorf("%d of %d bytes, or others", len(got), len(x.data))
						}
					}
				}
			})
		}
	}
}

// readAll reads n bytes of packets, and checks who has sent them and their ECN field.
func readAll(t *testing.T, c *Conn, from net.Addr, n int, ecn byte) (got []byte) {
	t.Helper()
	ms := []ipv4.Message{{Buffers: [][]byte{make([]byte, 1452)}, OOB: make([]byte, 128)}}
	want, _ := AddrPort(from)
	for len(got) < n {
		if k, err := c.ReadBatch(ms, 0); k != 1 || err != nil {
			t.Fatal(k, err)
		}
		m := &ms[0]
		got = append(got, m.Buffers[0][:m.N]...)
		if src, ok := AddrPort(m.Addr); !ok || src != want || c.backlog == nil {
			t.Errorf("a packet of %v, want %v; its sender is watched: %v", m.Addr, want, c.backlog != nil)
		}
		control := m.OOB[:m.NN]
		if e := ECN(control); e != ecn {
			t.Errorf("ECN %d, want %d", e, ecn)
		}
		for len(control) > 0 {
			_, _, rest, err := unix.ParseOneSocketControlMessage(control)
			if err != nil {
				t.Fatalf("half a control message: %x", control)
			}
			control = rest
		}
	}
	return got
}
