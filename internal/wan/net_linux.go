package wan

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNotPermitted means that this process may not make namespaces or devices, or
// that the system has none.
var ErrNotPermitted = errors.New("wan: network namespaces and TUN devices need root and /dev/net/tun")

// mtu of the devices in bytes, that of most paths.
const mtu = 1500

// Net is a path between two sites. Its methods are safe for concurrent use.
type Net struct {
	seed  uint64
	sites [2]*Site
	dirs  [2]*direction // dirs[i] leads away from site i
	stop  int
	wg    sync.WaitGroup

	mu   sync.Mutex
	sets uint64 // guarded by mu; how often the path was set, which gives each its own losses
	err  error  // guarded by mu; of a device
	over bool   // guarded by mu
}

// Site is one end: a network namespace with an address on the path.
type Site struct {
	addr   netip.Addr
	space  int // descriptor of the namespace
	device int // descriptor of the device
}

// Addr returns the site's address.
func (s *Site) Addr() netip.Addr { return s.addr }

// Options tells what a Net is.
type Options struct {
	Seed uint64 // decides all losses
	// Single has the kernel hand over and take each packet on its own, as large as
	// the path lets it be: TCP and UDP are cut before they come to the device, and
	// both sites pay for every packet. False leaves cutting to the device.
	Single bool
}

// Open makes two sites, with a path that does nothing to packets yet. Close it.
func Open(o Options) (*Net, error) {
	n := &Net{seed: o.Seed}
	var err error
	if n.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return nil, err
	}
	for i := range n.sites {
		if n.sites[i], err = newSite(netip.AddrFrom4([4]byte{10, 77, byte(i + 1), 1}), o.Single); err != nil {
			n.closeFiles()
			return nil, err
		}
	}
	var started sync.WaitGroup
	for i := range n.dirs {
		d := &direction{from: n.sites[i].device, to: n.sites[1-i].device, stop: n.stop}
		d.more.L = &d.mu
		n.dirs[i] = d
		started.Add(2)
		n.wg.Go(func() {
			if err := d.read(started.Done); err != nil {
				n.mu.Lock()
				n.err = errors.Join(n.err, err)
				n.mu.Unlock()
			}
		})
		n.wg.Go(func() { d.deliver(started.Done) })
	}
	started.Wait()
	return n, nil
}

// Site returns one of the two sites, 0 or 1.
func (n *Net) Site(i int) *Site { return n.sites[i] }

// Set changes both directions.
func (n *Net) Set(p Path) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sets++
	for i, d := range n.dirs {
		d.mu.Lock()
		d.shaper.set(p, n.seed+n.sets*2+uint64(i))
		d.mu.Unlock()
	}
}

// Stats returns what site i has sent since the start.
func (n *Net) Stats(i int) Stats { return n.dirs[i].shaper.stats() }

// Queue returns how long what site i sends now waits in front of the bottleneck; 0
// on a path without.
func (n *Net) Queue(i int) time.Duration {
	d := n.dirs[i]
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.shaper.queue(time.Now())
}

// Used returns the processor time that the emulation has taken. What the kernel does
// for a packet when it is put into a device counts as well: most of TCP's receiving.
func (n *Net) Used() time.Duration { return n.dirs[0].used() + n.dirs[1].used() }

// Close ends the emulation and joins its threads. It returns what was wrong with a
// device meanwhile. Sockets of the sites are useless from then on.
func (n *Net) Close() error {
	n.mu.Lock()
	if n.over {
		n.mu.Unlock()
		return nil
	}
	n.over = true
	n.mu.Unlock()
	for _, d := range n.dirs {
		d.close()
	}
	_, err := unix.Write(n.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	n.wg.Wait()
	n.closeFiles()
	n.mu.Lock()
	defer n.mu.Unlock()
	return errors.Join(n.err, err)
}

func (n *Net) closeFiles() {
	for _, s := range n.sites {
		if s != nil {
			_ = unix.Close(s.device)
			_ = unix.Close(s.space)
		}
	}
	_ = unix.Close(n.stop)
}

// Do runs fn on a thread in the site's namespace and waits for it. Sockets that fn
// itself makes are the site's for ever; what other goroutines do for it is not.
func (s *Site) Do(fn func() error) error {
	return onThread(func() error {
		if err := unix.Setns(s.space, unix.CLONE_NEWNET); err != nil {
			return err
		}
		return fn()
	})
}

// onThread runs fn on a thread of its own, which ends then.
func onThread(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- fn()
	}()
	return <-done
}

// newSite makes a namespace and a device in it.
func newSite(addr netip.Addr, single bool) (*Site, error) {
	s := &Site{addr: addr, space: -1, device: -1}
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return permitted("make a network namespace", err)
		}
		var err error
		if s.space, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
		if s.device, err = newDevice("wan0", single); err != nil {
			return err
		}
		return configure("wan0", addr)
	})
	if err != nil {
		_ = unix.Close(s.device)
		_ = unix.Close(s.space)
		return nil, err
	}
	return s, nil
}

// permitted tells a lack of rights from other faults.
func permitted(what string, err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("%w: %s: %w", ErrNotPermitted, what, err)
	}
	return fmt.Errorf("wan: %s: %w", what, err)
}

// What a device leaves uncut (linux/if_tun.h).
const (
	leaveChecksums = 1    // TUN_F_CSUM
	leaveTCP4      = 2    // TUN_F_TSO4
	leaveECN       = 8    // TUN_F_TSO_ECN
	leaveUDP       = 0x60 // TUN_F_USO4 and TUN_F_USO6, which the kernel wants together
)

// newDevice makes a TUN device in this thread's namespace, which cuts packets unless
// they come single.
func newDevice(name string, single bool) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, permitted("open /dev/net/tun", err)
	}
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return -1, err
	}
	ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		_ = unix.Close(fd)
		return -1, permitted("make a device", err)
	}
	if err := offload(fd, single); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("wan: offload of the device: %w", err)
	}
	return fd, nil
}

// offload says what the kernel leaves to a device.
func offload(fd int, single bool) error {
	if single {
		return unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, leaveChecksums)
	}
	if unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, leaveChecksums|leaveTCP4|leaveECN|leaveUDP) == nil {
		return nil
	}
	// Before Linux 6.2 UDP cannot be left uncut.
	return unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, leaveChecksums|leaveTCP4|leaveECN)
}

// queueLength is how many packets wait for the reading thread: what a window of
// some megabytes puts there at once.
const queueLength = 4000

// configure gives a device of this thread's namespace its address, in a network that
// has the other site as well, and starts it and the loopback.
func configure(name string, addr netip.Addr) error {
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(sock) }()
	var first error
	set := func(device string, what uint, value func(*unix.Ifreq)) {
		ifr, err := unix.NewIfreq(device)
		if err == nil {
			value(ifr)
			err = unix.IoctlIfreq(sock, what, ifr)
		}
		if err != nil && first == nil {
			first = fmt.Errorf("wan: configure %s (%#x): %w", device, what, err)
		}
	}
	ip := addr.As4()
	up := func(r *unix.Ifreq) { r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING) }
	set(name, unix.SIOCSIFADDR, func(r *unix.Ifreq) { _ = r.SetInet4Addr(ip[:]) })
	set(name, unix.SIOCSIFNETMASK, func(r *unix.Ifreq) { _ = r.SetInet4Addr([]byte{255, 255, 0, 0}) })
	set(name, unix.SIOCSIFMTU, func(r *unix.Ifreq) { r.SetUint32(mtu) })
	set(name, unix.SIOCSIFTXQLEN, func(r *unix.Ifreq) { r.SetUint32(queueLength) })
	set(name, unix.SIOCSIFFLAGS, up)
	set("lo", unix.SIOCSIFFLAGS, up)
	return first
}
