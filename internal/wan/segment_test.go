package wan

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// super returns a packet of a device with so much payload, to be cut.
func super(tcp bool, size, payload int) []byte {
	b := make([]byte, deviceHeader)
	b[0], b[1] = 1, cutUDP
	binary.NativeEndian.PutUint16(b[4:], uint16(size))
	ip := make([]byte, 20)
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	copy(ip[12:], []byte{10, 77, 1, 1, 10, 77, 2, 1})
	binary.BigEndian.PutUint16(ip[4:], 100)
	above := make([]byte, 8)
	if tcp {
		b[1], ip[9] = cutTCP4, 6
		above = make([]byte, 32) // with options
		above[12] = 8 << 4
		binary.BigEndian.PutUint32(above[4:], 5000)
		above[13] = 1 | 8 | 16 | 128 // FIN, PSH, ACK, CWR
	}
	binary.BigEndian.PutUint16(ip[2:], uint16(20+len(above)+payload))
	b = append(append(b, ip...), above...)
	for i := range payload {
		b = append(b, byte(i*7))
	}
	return b
}

// TestRunsAreWhatTheDeviceWouldHaveCut cuts packets into every run and looks at the
// headers, which must be those of the whole for a run of all of it.
func TestRunsAreWhatTheDeviceWouldHaveCut(t *testing.T) {
	for _, tcp := range []bool{true, false} {
		b := super(tcp, 1000, 4300)
		p, ok := parse(b)
		if !ok || p.segments != 5 || p.tcp != tcp {
			t.Fatalf("parsed as %+v, %v", p, ok)
		}
		if n := p.bytes(len(b), 4); n != p.header+300 {
			t.Errorf("the last segment has %d bytes", n)
		}
		for first := range 5 {
			for last := first + 1; last <= 5; last++ {
				out := p.run(nil, b, first, last)
				check(t, b, out, &p, first, last)
			}
		}
	}
}

func check(t *testing.T, b, out []byte, p *packet, first, last int) {
	t.Helper()
	ip, whole := out[deviceHeader:], b[deviceHeader:]
	payload := whole[p.header:][first*1000 : min(last*1000, 4300)]
	if !bytes.Equal(ip[p.header:], payload) || int(binary.BigEndian.Uint16(ip[2:])) != len(ip) {
		t.Fatalf("segments %d to %d: %d bytes of payload, want %d", first, last, len(ip)-p.header, len(payload))
	}
	if fold(sum(0, ip[:20])) != 0xffff || binary.BigEndian.Uint16(ip[4:]) != 100+uint16(first) {
		t.Errorf("segments %d to %d: IP header %x", first, last, ip[:20])
	}
	if single := last-first == 1; single != (out[1] == cutNone) || single != (binary.NativeEndian.Uint16(out[4:]) == 0) || out[0] != 1 {
		t.Errorf("segments %d to %d: device header %x", first, last, out[:deviceHeader])
	}
	above := ip[20:]
	pseudo := fold(sum(uint32(ip[9])+uint32(len(above)), ip[12:20]))
	if !p.tcp {
		if int(binary.BigEndian.Uint16(above[4:])) != len(above) || binary.BigEndian.Uint16(above[6:]) != pseudo {
			t.Errorf("segments %d to %d: UDP header %x", first, last, above[:8])
		}
		return
	}
	flags := byte(16)
	if first == 0 {
		flags |= 128
	}
	if last == 5 {
		flags |= 1 | 8
	}
	if above[13] != flags || binary.BigEndian.Uint32(above[4:]) != 5000+uint32(first)*1000 || binary.BigEndian.Uint16(above[16:]) != pseudo {
		t.Errorf("segments %d to %d: TCP header %x", first, last, above[:20])
	}
}

// TestParseTakesNothingThatMakesNoSense tries every truncation and kind.
func TestParseTakesNothingThatMakesNoSense(t *testing.T) {
	for _, tcp := range []bool{true, false} {
		b := super(tcp, 1000, 50)
		for n := range len(b) {
			if p, ok := parse(b[:n]); ok && (p.payload <= 0 || p.header+p.payload != n-deviceHeader) {
				t.Fatalf("%d bytes of %d parsed as %+v", n, len(b), p)
			}
		}
		for kind := range 256 {
			b[1] = byte(kind)
			if p, ok := parse(b); ok && p.segments < 1 {
				t.Fatalf("kind %d: %+v", kind, p)
			}
		}
		b[deviceHeader] = 0x65
		if _, ok := parse(b); ok {
			t.Error("an IPv6 packet was taken")
		}
	}
}
