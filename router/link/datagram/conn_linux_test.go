package datagram

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// scripted is a socket whose readings are given.
type scripted struct {
	*net.UDPConn
	reads []ipv4.Message
}

func (s *scripted) ReadBatch(ms []ipv4.Message, _ int) (int, error) {
	if len(s.reads) == 0 {
		return 0, net.ErrClosed
	}
	n := min(len(ms), len(s.reads))
	for i, r := range s.reads[:n] {
		m := &ms[i]
		m.N, m.NN, m.Addr = copy(m.Buffers[0], r.Buffers[0]), copy(m.OOB, r.OOB), r.Addr
	}
	s.reads = s.reads[n:]
	return n, nil
}

func listen(t testing.TB) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// control is a control message.
func control(level, kind int32, body ...byte) []byte {
	b := make([]byte, unix.CmsgSpace(len(body)))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = level, kind
	h.SetLen(unix.CmsgLen(len(body)))
	copy(b[unix.CmsgLen(0):], body)
	return b
}

func number(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func stamp(at time.Time) []byte {
	b := binary.NativeEndian.AppendUint64(nil, uint64(at.Unix()))
	return binary.NativeEndian.AppendUint64(b, uint64(at.Nanosecond()))
}

func message(data []byte, controls ...[]byte) ipv4.Message {
	return ipv4.Message{Buffers: [][]byte{data}, OOB: bytes.Join(controls, nil), Addr: watched}
}

// counting returns n bytes.
func counting(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i / 7)
	}
	return b
}

// all reads packets until the socket has no more, and returns them with their ECN field.
func all(t testing.TB, c *Conn, buffer int) (packets [][]byte, ecn []byte) {
	t.Helper()
	ms := make([]ipv4.Message, 8)
	for i := range ms {
		ms[i] = ipv4.Message{Buffers: [][]byte{make([]byte, buffer)}, OOB: make([]byte, 128)}
	}
	for {
		n, err := c.ReadBatch(ms, 0)
		if err != nil {
			return packets, ecn
		}
		if n == 0 {
			t.Fatal("a reading without a packet")
		}
		for _, m := range ms[:n] {
			packets = append(packets, bytes.Clone(m.Buffers[0][:m.N]))
			ecn = append(ecn, ECN(m.OOB[:m.NN]))
			if m.Addr != watched {
				t.Fatalf("a packet of %v", m.Addr)
			}
		}
	}
}

func sizes(packets [][]byte) (out []int) {
	for _, p := range packets {
		out = append(out, len(p))
	}
	return out
}

func TestMessagesAreCutAsTheyWereJoined(t *testing.T) {
	ect0 := control(unix.IPPROTO_IP, unix.IP_TOS, 2)
	gro := func(n uint32) []byte { return control(unix.IPPROTO_UDP, unix.UDP_GRO, number(n)...) }
	for _, c := range []struct {
		name     string
		data     int
		controls [][]byte
		want     []int
		ecn      byte
	}{
		{"one", 100, nil, []int{100}, 0},
		{"one with its field", 100, [][]byte{ect0}, []int{100}, 2},
		{"joined, the last one shorter", 2500, [][]byte{gro(1000), ect0}, []int{1000, 1000, 500}, 2},
		{"joined, all alike", 3000, [][]byte{gro(1000)}, []int{1000, 1000, 1000}, 0},
		{"of one", 700, [][]byte{gro(1000)}, []int{700}, 0},
		{"a size of 0", 700, [][]byte{gro(0)}, []int{700}, 0},
		{"a negative size", 700, [][]byte{gro(1 << 31)}, []int{700}, 0},
		{"a short message", 700, [][]byte{control(unix.IPPROTO_UDP, unix.UDP_GRO, 1)}, []int{700}, 0},
		{"nothing", 0, [][]byte{gro(1000), ect0}, []int{0}, 2},
		{"half a control message", 700, [][]byte{gro(100)[:10]}, []int{700}, 0},
		{"longer than a buffer", 1500, nil, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			data := counting(c.data)
			s := &scripted{UDPConn: listen(t), reads: []ipv4.Message{message(data, c.controls...), message([]byte{42})}}
			packets, ecn := all(t, Wrap(s), 1452)
			if n := len(packets) - 1; n < 0 || !bytes.Equal(packets[n], []byte{42}) {
				t.Fatal("the message after it is gone")
			}
			packets = packets[:len(packets)-1]
			if got := sizes(packets); !equal(got, c.want) {
				t.Fatalf("packets of %v bytes, want %v", got, c.want)
			}
			if c.want != nil && !bytes.Equal(bytes.Join(packets, nil), data) {
				t.Error("other bytes")
			}
			for i := range packets {
				if ecn[i] != c.ecn {
					t.Errorf("packet %d has ECN %d, want %d", i, ecn[i], c.ecn)
				}
			}
		})
	}
}

func equal(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// TestTheKernelJoins sends a batch that the kernel may join over a real socket.
func TestTheKernelJoins(t *testing.T) {
	from, to := listen(t), listen(t)
	c := Wrap(to)
	data := counting(10*1000 + 300)
	cut := control(unix.IPPROTO_UDP, unix.UDP_SEGMENT, binary.NativeEndian.AppendUint16(nil, 1000)...)
	if _, _, err := from.WriteMsgUDP(data, cut, to.LocalAddr().(*net.UDPAddr)); err != nil {
		t.Skipf("skipped: this kernel cuts nothing: %v", err)
	}
	_ = to.SetReadDeadline(time.Now().Add(time.Minute))
	var got []byte
	for packets := 0; len(got) < len(data); packets++ {
		p, err := c.Next()
		if err != nil {
			t.Fatal(err)
		}
		if want := min(1000, len(data)-len(got)); len(p.Data) != want {
			t.Fatalf("packet %d has %d bytes, want %d", packets, len(p.Data), want)
		}
		got = append(got, p.Data...)
	}
	if !bytes.Equal(got, data) {
		t.Error("other bytes")
	}
	if len(c.in) == joinedBatch && c.joined <= 1 {
		t.Error("the kernel was to join, and has not")
	}
}

// TestASocketSaysWhenADatagramCame: a reader that is late must not be taken for a
// queue on the way. A machine that stands still for a second meanwhile gets another try.
func TestASocketSaysWhenADatagramCame(t *testing.T) {
	from, to := listen(t), listen(t)
	c := Wrap(to)
	_ = to.SetReadDeadline(time.Now().Add(time.Minute))
	for range 10 {
		before := time.Now()
		if _, err := from.WriteTo([]byte{1}, to.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		p, err := c.Next()
		if err != nil {
			t.Fatal(err)
		}
		took := time.Since(before)
		if p.Lag > took {
			t.Fatalf("it waited %v, of %v since it was sent", p.Lag, took)
		}
		if p.Lag > 0 {
			return
		}
	}
	t.Error("it is never told")
}

// bare returns a reader of given messages without a socket.
func bare(reads ...ipv4.Message) *Conn {
	c := &Conn{batch: &scripted{reads: reads}, joined: 1, in: make([]ipv4.Message, joinedBatch)}
	for i := range c.in {
		c.in[i] = ipv4.Message{Buffers: [][]byte{make([]byte, joinedBuffer)}, OOB: make([]byte, controlSize)}
	}
	return c
}

func TestATimeThatCannotBeIsNotBelieved(t *testing.T) {
	for ago, want := range map[time.Duration]time.Duration{50 * time.Millisecond: 50 * time.Millisecond, -time.Minute: 0, time.Hour: longestLag} {
		synctest.Test(t, func(t *testing.T) {
			p, err := bare(message([]byte{1}, control(unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, stamp(time.Now().Add(-ago))...))).Next()
			if err != nil {
				t.Fatal(err)
			}
			if p.Lag != want {
				t.Errorf("a datagram of %v ago waited %v, want %v", ago, p.Lag, want)
			}
		})
	}
}

// TestAClockThatIsSetTellsNoLag: for as long as datagrams of before may be read. One that
// seems to have come long ago would make all others late.
func TestAClockThatIsSetTellsNoLag(t *testing.T) {
	const lag = 7 * time.Millisecond
	for ahead, want := range map[time.Duration]time.Duration{0: lag, clockJump: lag, clockJump + 1: 0, -time.Hour: 0} {
		synctest.Test(t, func(t *testing.T) {
			c := bare()
			next := func() time.Duration {
				at := stamp(time.Now().Add(-lag))
				c.batch = &scripted{reads: []ipv4.Message{message([]byte{1}, control(unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, at...))}}
				p, err := c.Next()
				if err != nil {
					t.Fatal(err)
				}
				return p.Lag
			}
			next()
			c.clock.passed(time.Now(), time.Minute+ahead, time.Minute)
			if got := next(); got != want {
				t.Errorf("set ahead by %v: it waited %v, want %v", ahead, got, want)
			}
			time.Sleep(longestLag)
			if got := next(); got != lag {
				t.Errorf("%v later: it waited %v, want %v", longestLag, got, lag)
			}
		})
	}
}

// TestDroppedCountsWhatIsJoined: the kernel counts joined datagrams as one.
func TestDroppedCountsWhatIsJoined(t *testing.T) {
	overflow := func(n uint32) []byte { return control(unix.SOL_SOCKET, unix.SO_RXQ_OVFL, number(n)...) }
	var reads []ipv4.Message
	read := func(messages int, data []byte, controls ...[]byte) {
		for range messages {
			reads = append(reads, message(data, controls...))
		}
	}
	read(1000, counting(1), overflow(3))
	read(1000, counting(4), overflow(3), control(unix.IPPROTO_UDP, unix.UDP_GRO, number(1)...))
	read(1, counting(1), overflow(8))
	read(1000, counting(1))
	read(1, counting(1), overflow(9))

	c := bare(reads...)
	at := map[int]uint32{1: 3, 1000: 3, 5000: 3, 5001: 3 + 5*4, 6001: 3 + 5*4, 6002: 3 + 5*4 + 1}
	for i := 1; i <= 6002; i++ {
		if _, err := c.Next(); err != nil {
			t.Fatal(err)
		}
		if want, ok := at[i]; ok && c.Dropped() != want {
			t.Errorf("after packet %d: %d dropped, want %d", i, c.Dropped(), want)
		}
	}
}

// TestControlMessagesAreNotCut: half a message would be an error to QUIC, which ends
// all its connections for one.
func TestControlMessagesAreNotCut(t *testing.T) {
	tos, info := control(unix.IPPROTO_IP, unix.IP_TOS, 2), control(unix.IPPROTO_IP, unix.IP_PKTINFO, make([]byte, 12)...)
	both := append(bytes.Clone(tos), info...)
	for room, want := range map[int]int{len(both): len(both), len(both) - 1: len(tos), len(tos): len(tos), len(tos) - 1: 0, 0: 0} {
		dst := make([]byte, room)
		if n := CopyControl(dst, both); n != want || !bytes.Equal(dst[:n], both[:n]) {
			t.Errorf("%d of %d bytes in room for %d, want %d", n, len(both), room, want)
		}
	}
}

// TestEveryOtherPacketIsMarked: where a queue stands in the socket, and only what can
// carry a mark.
func TestEveryOtherPacketIsMarked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads []ipv4.Message
		for i := range 200 {
			tos := []byte{2, 0}[i/100]
			reads = append(reads, message([]byte{byte(i)}, control(unix.IPPROTO_IP, unix.IP_TOS, tos)))
		}
		c := bare(reads...)
		c.standing = standing{at: time.Now().Add(-standingFor), least: time.Second, count: standingLeast}
		_, ecn := all(t, c, 1452)
		if n := bytes.Count(ecn[:100], []byte{CE}); n != 50 || bytes.Contains(ecn, []byte{CE, CE}) {
			t.Errorf("%d of 100 packets marked, want every other one", n)
		}
		if bytes.Contains(ecn[100:], []byte{CE}) {
			t.Error("a packet is marked that says it carries no marks")
		}
	})
}

func TestECNOfBothFamilies(t *testing.T) {
	v6 := control(unix.IPPROTO_IPV6, unix.IPV6_TCLASS, number(0xb8|1)...)
	v4 := control(unix.IPPROTO_IP, unix.IP_TOS, 0xb8|2)
	for _, oob := range [][]byte{v4, v6, append(control(unix.IPPROTO_IP, unix.IP_PKTINFO, make([]byte, 12)...), v4...)} {
		was := ECN(oob)
		if was == 0 || !SetECN(oob, CE) || ECN(oob) != CE {
			t.Errorf("%x: from %d to %d", oob, was, ECN(oob))
		}
	}
	if v4[unix.CmsgLen(0)] != 0xb8|3 {
		t.Errorf("the other bits of the field are %#x", v4[unix.CmsgLen(0)])
	}
	if SetECN(nil, CE) || ECN(nil) != 0 {
		t.Error("a field where there is none")
	}
}

func TestOthersAreNotWrapped(t *testing.T) {
	var c net.PacketConn = struct{ net.PacketConn }{listen(t)}
	if Wrap(c) != nil {
		t.Error("a connection without control messages is wrapped")
	}
}

func TestNothingIsAllocatedForAPacket(t *testing.T) {
	data, controls := counting(20*1000), [][]byte{control(unix.IPPROTO_UDP, unix.UDP_GRO, number(1000)...), control(unix.IPPROTO_IP, unix.IP_TOS, 2)}
	one := message(data, controls...)
	s := &scripted{UDPConn: listen(t)}
	c := Wrap(s)
	stop := c.Watch(watched, func() uint64 { return 0 })
	defer stop()
	ms := []ipv4.Message{{Buffers: [][]byte{make([]byte, 1452)}, OOB: make([]byte, 128)}}
	reads := []ipv4.Message{one}
	got := testing.AllocsPerRun(2000, func() {
		if !c.Ready() {
			s.reads = reads
		}
		if n, err := c.ReadBatch(ms, 0); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	})
	if got != 0 {
		t.Errorf("%v allocations for a packet", got)
	}
}

// FuzzMessages: whatever the kernel says of a message, its bytes are handed on once, in
// order.
func FuzzMessages(f *testing.F) {
	f.Add(counting(3000), bytes.Join([][]byte{control(unix.SOL_SOCKET, unix.SO_RXQ_OVFL, number(1)...), control(unix.IPPROTO_UDP, unix.UDP_GRO, number(1000)...)}, nil))
	f.Add([]byte{}, []byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, data, oob []byte) {
		if len(data) > joinedBuffer || len(oob) > controlSize {
			t.Skip("the kernel does not say more")
		}
		c := bare(message(data, oob))
		var got []byte
		for {
			p, err := c.Next()
			if err != nil {
				break
			}
			c.HandOn(&ipv4.Message{N: len(p.Data), OOB: bytes.Clone(p.Control), NN: len(p.Control)}, true)
			got = append(got, p.Data...)
		}
		if !bytes.Equal(got, data) {
			t.Errorf("%d bytes of %d", len(got), len(data))
		}
	})
}
