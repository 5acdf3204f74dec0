package datagram

import (
	"bytes"
	"math"
	"os"
	"strconv"
	"time"
)

// countEvery is the least time between two readings of the kernel's counters: one takes
// some 50 µs, and while a socket overflows each datagram may tell of another drop.
const countEvery = 20 * time.Millisecond

// counters is what the kernel counts of datagrams that came for sockets and that those did
// not get, of all sockets of the network namespace together.
type counters struct {
	errors uint64 // for whatever reason
	room   uint64 // of them, for want of room
}

// overflow counts what a socket has dropped for want of room. What the kernel tells for
// a socket (SO_RXQ_OVFL) holds datagrams with a wrong checksum as well, which anybody can
// send at any time: those must not look like a reader that is too slow. The kernel counts
// the reasons apart only for all sockets together.
type overflow struct {
	told   uint32                  // what the kernel has told for the socket
	open   float64                 // datagrams dropped since the counters were read
	count  func() (counters, bool) // false = not known now; nil = all that is dropped counts
	last   counters
	lastAt time.Time
}

// add takes what the kernel tells for the socket, in readings of joined datagrams each,
// and returns how many more were dropped for want of room.
func (o *overflow) add(now time.Time, total uint32, joined float64) uint32 {
	if total != o.told {
		o.open += float64(total-o.told) * joined
		o.told = total
	}
	if o.open == 0 || o.count != nil && now.Sub(o.lastAt) < countEvery {
		return 0
	}
	n := uint32(math.Round(o.open))
	o.open = 0
	if o.count == nil {
		return n
	}
	o.lastAt = now
	is, ok := o.count()
	if !ok {
		return n
	}
	was := o.last
	o.last = is
	// Where nothing was counted the counters are those of another namespace.
	if is.errors != was.errors && is.room == was.room {
		return 0
	}
	return n
}

// start reads the counters for the first time. Without them, all that is dropped counts.
func (o *overflow) start() {
	if is, ok := kernelCounters(); ok {
		o.last, o.count = is, kernelCounters
	}
}

// kernelCounters reads them, of both families: see proc_net(5), RFC 4113.
func kernelCounters() (counters, bool) {
	v4, err := os.ReadFile("/proc/thread-self/net/snmp")
	if err != nil {
		return counters{}, false
	}
	v6, _ := os.ReadFile("/proc/thread-self/net/snmp6") // not there without IPv6
	return parseCounters(v4, v6)
}

// parseCounters reads a table with a line of names and one of numbers for each protocol,
// and one with a name and a number in each line.
func parseCounters(v4, v6 []byte) (c counters, ok bool) {
	var names [][]byte
	for line := range bytes.Lines(v4) {
		fields := bytes.Fields(line)
		switch {
		case len(fields) == 0 || string(fields[0]) != "Udp:":
		case names == nil:
			names = fields
		default:
			for i, f := range fields[:min(len(fields), len(names))] {
				ok = c.add(string(names[i]), f) || ok
			}
		}
	}
	for line := range bytes.Lines(v6) {
		if name, found := bytes.CutPrefix(line, []byte("Udp6")); found {
			if f := bytes.Fields(name); len(f) == 2 {
				c.add(string(f[0]), f[1])
			}
		}
	}
	return c, ok
}

// add adds the number with a name, and reports whether it is one of errors.
func (c *counters) add(name string, number []byte) bool {
	var to *uint64
	switch name {
	case "InErrors":
		to = &c.errors
	case "RcvbufErrors", "MemErrors":
		to = &c.room
	default:
		return false
	}
	n, err := strconv.ParseUint(string(number), 10, 64)
	*to += n
	return err == nil
}
