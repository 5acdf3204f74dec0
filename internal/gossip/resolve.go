package gossip

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"
)

// hostOf returns the host of host:port and checks the port.
func hostOf(hostport string) (string, error) {
	host, text, err := net.SplitHostPort(hostport)
	if err != nil {
		return "", err
	}
	_, err = strconv.ParseUint(text, 10, 16)
	return host, err
}

// lookupTimeout bounds the resolving of this node's own addresses at Open.
const lookupTimeout = 5 * time.Second

// resolveOwn turns one of this node's own host:port into an address. An empty
// host is the unspecified address, of both families where the system has both.
func resolveOwn(hostport string) (netip.AddrPort, error) {
	if host, text, err := net.SplitHostPort(hostport); err == nil && host == "" {
		hostport = net.JoinHostPort("::", text)
	}
	addrs, err := resolve(context.Background(), hostport, lookupTimeout)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return addrs[0], nil // a lookup without an error has found some
}

// resolve turns host:port into addresses. Numeric hosts touch no network.
func resolve(ctx context.Context, hostport string, timeout time.Duration) ([]netip.AddrPort, error) {
	if ap, err := netip.ParseAddrPort(hostport); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())}, nil
	}
	host, text, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, fmt.Errorf("gossip: resolve %q: %w", hostport, err)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("gossip: resolve %q: %w", hostport, err)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("gossip: resolve %q: %w", hostport, err)
	}
	addrs := make([]netip.AddrPort, 0, len(ips))
	for _, ip := range ips {
		addrs = append(addrs, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
	}
	return addrs, nil
}
