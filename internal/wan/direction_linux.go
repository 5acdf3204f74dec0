package wan

import (
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxHeld bounds what is on its way in a direction, in bytes.
const maxHeld = 256 << 20

// quantum is the least time that the delivering thread sleeps: packets are that much
// late, and come in batches instead of one system call for a timer each.
const quantum = 100 * time.Microsecond

// smallPacket is the size of buffers for packets that are one segment.
const smallPacket = 2048

var (
	smallBuffers = sync.Pool{New: func() any { return &buffer{b: make([]byte, 0, smallPacket)} }}
	largeBuffers = sync.Pool{New: func() any { return &buffer{b: make([]byte, 0, maxPacket), large: true} }}
)

// buffer is a packet on its way.
type buffer struct {
	b     []byte
	large bool
	due   time.Time
}

func newBuffer(size int) *buffer {
	pool := &smallBuffers
	if size > smallPacket {
		pool = &largeBuffers
	}
	out := pool.Get().(*buffer)
	out.b = out.b[:0]
	return out
}

func (b *buffer) free() {
	if b.large {
		largeBuffers.Put(b)
	} else {
		smallBuffers.Put(b)
	}
}

// direction carries packets from one device to the other.
type direction struct {
	from, to int // descriptors of the devices
	stop     int // an eventfd; readable when the network is being closed
	clocks   [2]int32

	mu      sync.Mutex
	shaper  shaper    // guarded by mu, but for its counters
	held    int       // guarded by mu; bytes in queue
	queue   []*buffer // guarded by mu; by due
	head    int       // guarded by mu; index of the first in queue
	more    sync.Cond // on mu; queue is no longer empty, or closed
	waiting bool      // guarded by mu; the delivering thread waits for more
	closed  bool      // guarded by mu
}

// threadClock returns the clock of the processor time of this thread (clock_getcpuclockid(3)).
func threadClock() int32 { return ^int32(unix.Gettid())<<3 | 6 }

// read takes packets from a device until the network is closed.
func (d *direction) read(started func()) error {
	runtime.LockOSThread()
	d.clocks[0] = threadClock()
	started()
	b := make([]byte, maxPacket)
	fds := []unix.PollFd{{Fd: int32(d.from), Events: unix.POLLIN}, {Fd: int32(d.stop), Events: unix.POLLIN}}
	for {
		n, err := unix.Read(d.from, b)
		switch {
		case err == nil:
			d.accept(time.Now(), b[:n])
		case err == unix.EAGAIN:
			if _, err := unix.Poll(fds, -1); err != nil && err != unix.EINTR {
				return err
			}
			if fds[1].Revents != 0 {
				return nil
			}
		case err != unix.EINTR:
			return err
		}
	}
}

// accept judges the segments of a packet, and lets those go on that arrive.
func (d *direction) accept(now time.Time, b []byte) {
	p, ok := parse(b)
	if !ok {
		return // no traffic of the sites: router solicitations and the like
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shaper.handed.Add(1)
	first := 0
	var due time.Time
	for i := range p.segments {
		at, ok := d.shaper.admit(now, p.bytes(len(b), i))
		if ok && d.held > maxHeld {
			d.shaper.overflowed.Add(1)
			ok = false
		}
		if ok {
			due = at
			continue
		}
		d.send(b, &p, first, i, due)
		first = i + 1
	}
	d.send(b, &p, first, p.segments, due)
}

// send queues a run of segments, if there is any; mu is held.
func (d *direction) send(b []byte, p *packet, first, last int, due time.Time) {
	if first >= last {
		return
	}
	out := newBuffer(len(b))
	if last-first == p.segments {
		out.b = append(out.b, b...)
	} else {
		out.b = p.run(out.b, b, first, last)
	}
	out.due = due
	d.held += len(out.b)
	d.queue = append(d.queue, out)
	if d.waiting {
		d.waiting = false
		d.more.Signal()
	}
}

// deliver puts packets into the other device when they are due, until the network
// is closed.
func (d *direction) deliver(started func()) {
	runtime.LockOSThread()
	d.clocks[1] = threadClock()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1000, 0, 0, 0) // nanoseconds; the default is half of quantum
	started()
	var batch []*buffer
	for {
		var wait time.Duration
		var open bool
		if batch, wait, open = d.due(batch[:0]); !open {
			return
		}
		for _, p := range batch {
			_, _ = unix.Write(d.to, p.b) // a device that is full drops, as others do
			p.free()
		}
		if wait > 0 {
			ts := unix.NsecToTimespec(int64(max(wait, quantum)))
			_ = unix.Nanosleep(&ts, nil)
		}
	}
}

// due moves what is due to batch, and returns how long it takes until more is; it
// waits while nothing is on its way. It reports false when the network is closed.
func (d *direction) due(batch []*buffer) ([]*buffer, time.Duration, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.head == len(d.queue) && !d.closed {
		d.queue, d.head = d.queue[:0], 0
		d.waiting = true
		d.more.Wait()
	}
	if d.closed {
		return batch, 0, false
	}
	now := time.Now()
	for d.head < len(d.queue) && !d.queue[d.head].due.After(now) {
		p := d.queue[d.head]
		d.queue[d.head] = nil
		d.head++
		d.held -= len(p.b)
		batch = append(batch, p)
	}
	if d.head > 4096 && 2*d.head > len(d.queue) {
		n := copy(d.queue, d.queue[d.head:])
		clear(d.queue[n:])
		d.queue, d.head = d.queue[:n], 0
	}
	if d.head == len(d.queue) {
		return batch, 0, true
	}
	return batch, d.queue[d.head].due.Sub(now), true
}

func (d *direction) close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.more.Broadcast()
}

// used returns the processor time of both threads.
func (d *direction) used() time.Duration {
	var sum time.Duration
	for _, c := range d.clocks {
		var ts unix.Timespec
		if unix.ClockGettime(c, &ts) == nil {
			sum += time.Duration(ts.Nano())
		}
	}
	return sum
}
