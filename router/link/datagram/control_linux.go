package datagram

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// CE is "congestion experienced" in the ECN field (RFC 3168 section 5).
const CE = byte(3)

// ECN returns the ECN field that control messages tell; 0 where they have none.
func ECN(control []byte) (ecn byte) {
	eachECN(control, func(body []byte) { ecn = trafficClass(body) & 3 })
	return ecn
}

// SetECN changes the ECN field in place. It reports false when the messages have none.
func SetECN(control []byte, ecn byte) (found bool) {
	eachECN(control, func(body []byte) {
		found = true
		if len(body) < 4 {
			body[0] = body[0]&^3 | ecn
			return
		}
		v := binary.NativeEndian.Uint32(body)
		binary.NativeEndian.PutUint32(body, v&^3|uint32(ecn))
	})
	return found
}

// MarkCE marks a datagram that can carry a mark.
func MarkCE(control []byte) {
	if ECN(control) != 0 {
		SetECN(control, CE)
	}
}

// eachECN calls f with the body of each message that has an ECN field: a byte, or an
// integer of the machine's order.
func eachECN(control []byte, f func(body []byte)) {
	for len(control) > 0 {
		h, body, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			return
		}
		if h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TOS && len(body) >= 1 ||
			h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS && len(body) >= 4 {
			f(body)
		}
		control = rest
	}
}

// trafficClass reads the byte or the integer of an ECN message.
func trafficClass(body []byte) byte {
	if len(body) >= 4 {
		return byte(binary.NativeEndian.Uint32(body))
	}
	return body[0]
}

// CopyControl copies as many control messages as fit whole: one that is cut is an error
// to who parses it. It returns their length in bytes.
func CopyControl(dst, control []byte) int {
	n := len(control)
	if n > len(dst) {
		n = 0
		for rest := control; len(rest) > 0; {
			_, _, after, err := unix.ParseOneSocketControlMessage(rest)
			if err != nil || n+len(rest)-len(after) > len(dst) {
				break
			}
			n += len(rest) - len(after)
			rest = after
		}
	}
	return copy(dst, control[:n])
}
