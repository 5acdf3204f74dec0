package freeport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
)

// The ports that Take chooses from. Linux takes ports from 32768 on by itself; the ports
// of the documented deployments, and those of the same with an offset, are lower.
const (
	first = 25500
	last  = 31999
)

// taken counts what this process has looked at: what was given back rests for as long as
// it can.
var taken atomic.Int64

// Take returns n ports that nobody has, for TCP and UDP. They are the test's until it ends.
func Take(t testing.TB, n int) []int {
	t.Helper()
	const all = last - first + 1
	begin := int64(os.Getpid()) * 97 // processes begin apart
	var ports []int
	for range all {
		if len(ports) == n {
			break
		}
		if port := first + int((begin+taken.Add(1))%all); Claim(t, port) {
			ports = append(ports, port)
		}
	}
	if len(ports) < n {
		t.Fatalf("found %d free ports, need %d", len(ports), n)
	}
	return ports
}

// Claim makes ports the test's until it ends. It takes none and returns false when
// somebody has one of them.
func Claim(t testing.TB, ports ...int) bool {
	t.Helper()
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("mqrouter-ports-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var locks []*os.File
	release := func() {
		for _, f := range locks {
			if err := f.Close(); err != nil {
				t.Errorf("give a port back: %v", err)
			}
		}
	}
	for _, port := range ports {
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprint(port)), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			release()
			t.Fatal(err)
		}
		locks = append(locks, f)
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil || !free(t.Context(), port) {
			release()
			return false
		}
	}
	t.Cleanup(release)
	return true
}

// free reports whether nobody listens at a port, at the loopback addresses that tests use.
func free(ctx context.Context, port int) bool {
	var lc net.ListenConfig
	for _, host := range []string{"127.0.0.1", "127.0.0.2"} {
		addr := fmt.Sprintf("%s:%d", host, port)
		ln, err := lc.Listen(ctx, "tcp", addr)
		if err != nil {
			if errors.Is(err, syscall.EADDRNOTAVAIL) {
				continue // a host without a second address
			}
			return false
		}
		ln.Close()
		pc, err := lc.ListenPacket(ctx, "udp", addr)
		if err != nil {
			return false
		}
		_ = pc.Close()
	}
	return true
}
