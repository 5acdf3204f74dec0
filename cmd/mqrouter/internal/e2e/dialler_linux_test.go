package e2e

import (
	endian "encoding/binary"
	"errors"
	"net"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// socketBetween asks the kernel for the socket of a TCP connection of the loopback by its
// two ends, and returns its inode. The table in /proc would have to be read as a whole for
// each connection, with every socket of the machine in it: on a busy one that takes longer
// than nodes wait for a handshake, they dial again, and the table grows.
func socketBetween(local, remote [4]byte, localPort, remotePort int) (inode uint32, err error) {
	const (
		sockDiag         = 4  // NETLINK_SOCK_DIAG
		sockDiagByFamily = 20 // SOCK_DIAG_BY_FAMILY
		headLen, reqLen  = 16, 56
		inodeAt          = headLen + 68 // in the answer, struct inet_diag_msg
	)
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, sockDiag)
	if err != nil {
		return 0, err
	}
	defer syscall.Close(fd)
	if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &syscall.Timeval{Sec: 1}); err != nil {
		return 0, err
	}
	b := make([]byte, headLen+reqLen)
	ne := endian.NativeEndian
	ne.PutUint32(b, uint32(len(b)))
	ne.PutUint16(b[4:], sockDiagByFamily)
	ne.PutUint16(b[6:], syscall.NLM_F_REQUEST)
	req := b[headLen:] // struct inet_diag_req_v2
	req[0], req[1] = syscall.AF_INET, syscall.IPPROTO_TCP
	ne.PutUint32(req[4:], ^uint32(0)) // in every state
	endian.BigEndian.PutUint16(req[8:], uint16(localPort))
	endian.BigEndian.PutUint16(req[10:], uint16(remotePort))
	copy(req[12:], local[:])
	copy(req[28:], remote[:])
	ne.PutUint64(req[48:], ^uint64(0)) // no cookie
	if err := syscall.Sendto(fd, b, 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}); err != nil {
		return 0, err
	}
	answer := make([]byte, 4096)
	n, _, err := syscall.Recvfrom(fd, answer, 0)
	if err != nil {
		return 0, err
	}
	if n < headLen+4 {
		return 0, errors.New("a short answer of the kernel")
	}
	if ne.Uint16(answer[4:]) == syscall.NLMSG_ERROR {
		return 0, syscall.Errno(-int32(ne.Uint32(answer[headLen:])))
	}
	if n < inodeAt+4 {
		return 0, errors.New("a short answer of the kernel")
	}
	return ne.Uint32(answer[inodeAt:]), nil
}

// TestTheKernelNamesADialler looks a connection of this very process up.
func TestTheKernelNamesADialler(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var d net.Dialer
	d.Timeout = time.Minute
	c, err := d.DialContext(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	from, to := c.LocalAddr().(*net.TCPAddr), ln.Addr().(*net.TCPAddr)
	if name := whoDialled(map[string]int{"other": 1 << 30, "this": os.Getpid()}, from.Port, to.Port); name != "this" {
		t.Errorf("the connection is said to be of %q", name)
	}
	if _, err := socketBetween([4]byte{127, 0, 0, 1}, [4]byte{127, 0, 0, 2}, to.Port, from.Port); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a connection that is not there: %v", err)
	}
}

// whoDialled names the process that has connected from a port of 127.0.0.1 to one of
// 127.0.0.2, "" when none of them has.
func whoDialled(pids map[string]int, port, at int) string {
	inode, err := socketBetween([4]byte{127, 0, 0, 1}, [4]byte{127, 0, 0, 2}, port, at)
	if err != nil || inode == 0 {
		return "" // closed meanwhile
	}
	want := "socket:[" + strconv.Itoa(int(inode)) + "]"
	for name, pid := range pids {
		dir := "/proc/" + strconv.Itoa(pid) + "/fd"
		fds, err := os.ReadDir(dir)
		if err != nil {
			continue // it has ended
		}
		for _, fd := range fds {
			if to, err := os.Readlink(dir + "/" + fd.Name()); err == nil && to == want {
				return name
			}
		}
	}
	return ""
}
