package wan

import "encoding/binary"

// A packet of a device begins with a virtio_net_hdr (VIRTIO 1.2, section 5.1.6):
//
//	flags (1)  type of segmentation (1)  header length (2)  segment size (2)
//	checksum start (2)  checksum offset (2)
//
// in the byte order of the machine, then the IP packet.
const (
	deviceHeader = 10

	cutNone = 0
	cutTCP4 = 1
	cutUDP  = 5 // USO
	cutECN  = 0x80
)

// maxPacket is the largest packet of a device, header included.
const maxPacket = deviceHeader + 64<<10

// packet tells how a packet of a device is cut into segments.
type packet struct {
	header   int // bytes of IP and TCP or UDP headers
	ip       int // of these: of IP
	size     int // payload bytes of a segment but the last; 0 = it is one already
	payload  int
	segments int
	tcp      bool
}

// parse reads the headers of a packet of a device; false for what is no IPv4 packet
// or makes no sense.
func parse(b []byte) (packet, bool) {
	if len(b) < deviceHeader+20 || b[deviceHeader]>>4 != 4 {
		return packet{}, false
	}
	ip := b[deviceHeader:]
	p := packet{ip: int(ip[0]&15) * 4, segments: 1}
	kind, size := b[1]&^cutECN, int(binary.NativeEndian.Uint16(b[4:]))
	if kind == cutNone || size == 0 {
		return p, p.ip >= 20
	}
	switch {
	case kind == cutTCP4 && len(ip) >= p.ip+20:
		p.tcp = true
		p.header = p.ip + int(ip[p.ip+12]>>4)*4
	case kind == cutUDP && len(ip) >= p.ip+8:
		p.header = p.ip + 8
	default:
		return p, false
	}
	p.size, p.payload = size, len(ip)-p.header
	if p.ip < 20 || p.payload <= 0 {
		return p, false
	}
	p.segments = (p.payload + size - 1) / size
	return p, true
}

// bytes returns the size of a segment as a packet of its own, from its IP header on.
func (p *packet) bytes(whole, segment int) int {
	if p.size == 0 {
		return whole - deviceHeader
	}
	return p.header + min(p.size, p.payload-segment*p.size)
}

// run appends a packet with the segments from first to last-1 of b, which has more.
func (p *packet) run(dst, b []byte, first, last int) []byte {
	at := len(dst)
	from := deviceHeader + p.header
	dst = append(dst, b[:from]...)
	dst = append(dst, b[from+first*p.size:from+min(last*p.size, p.payload)]...)
	out := dst[at:]
	if last-first == 1 {
		out[1] = cutNone
		binary.NativeEndian.PutUint16(out[4:], 0)
	}
	ip := out[deviceHeader:]
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	binary.BigEndian.PutUint16(ip[4:], binary.BigEndian.Uint16(ip[4:])+uint16(first))
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^fold(sum(0, ip[:p.ip])))
	above := ip[p.ip:]
	// The device adds up the payload; the field holds the sum of the pseudo header
	// (RFC 9293 section 3.1, RFC 768).
	pseudo := fold(sum(uint32(ip[9])+uint32(len(above)), ip[12:20]))
	if !p.tcp {
		binary.BigEndian.PutUint16(above[4:], uint16(len(above)))
		binary.BigEndian.PutUint16(above[6:], pseudo)
		return dst
	}
	binary.BigEndian.PutUint32(above[4:], binary.BigEndian.Uint32(above[4:])+uint32(first*p.size))
	const fin, psh, cwr = 1, 8, 128
	if last < p.segments {
		above[13] &^= fin | psh
	}
	if first > 0 {
		above[13] &^= cwr
	}
	binary.BigEndian.PutUint16(above[16:], pseudo)
	return dst
}

// sum adds 16-bit words to a sum (RFC 1071); b has an even length.
func sum(s uint32, b []byte) uint32 {
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	return s
}

func fold(s uint32) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
