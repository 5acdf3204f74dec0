package pki

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"time"

	"github.com/mqrouter/mqrouter/internal/gossip"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/zone"
)

// Init makes the authority and the gossip key of a deployment in dir. It fails
// rather than replace an authority (peer.ErrExists) or a key.
func Init(deployment, dir string, validity time.Duration, now time.Time) error {
	a, err := peer.NewAuthority(deployment, validity, now)
	if err != nil {
		return err
	}
	if err := a.Save(dir); err != nil {
		return err
	}
	return gossip.SaveNewKey(filepath.Join(dir, gossip.KeyFile))
}

// Issue makes a certificate for each node and writes it to out: for the hosts
// of the node's addresses and for what base names besides. dir holds the
// authority, whose deployment must be the topology's.
func Issue(dir, out string, t *zone.Topology, nodes []*zone.NodeInfo, base peer.Request) error {
	a, err := authority(dir, t)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		r := base
		r.Identity = peer.IdentityFor(t.Deployment, n)
		r.IPs, r.DNS = hosts(n, base)
		if err := save(a, r, out); err != nil {
			return err
		}
	}
	return nil
}

// IssueAdmin makes an operator's certificate. The name must not be a node's,
// whose files it would replace.
func IssueAdmin(dir, out string, t *zone.Topology, name string, base peer.Request) (peer.Identity, error) {
	a, err := authority(dir, t)
	if err != nil {
		return peer.Identity{}, err
	}
	if n := t.FindNode(zone.Node(name)); n != nil {
		return peer.Identity{}, fmt.Errorf("pki: %q is the %s of that name in the topology: take another name for the operator", name, n.Role)
	}
	base.Identity = peer.Identity{Deployment: t.Deployment, Role: zone.RoleAdmin, Name: zone.Node(name)}
	return base.Identity, save(a, base, out)
}

func authority(dir string, t *zone.Topology) (*peer.Authority, error) {
	a, err := peer.LoadAuthority(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w; mqrouter pki init makes an authority", err)
	}
	if err != nil {
		return nil, err
	}
	if a.Deployment() != t.Deployment {
		return nil, fmt.Errorf("pki: the authority in %s is of deployment %q, the topology of %q", dir, a.Deployment(), t.Deployment)
	}
	return a, nil
}

func save(a *peer.Authority, r peer.Request, out string) error {
	pair, err := a.Issue(r)
	if err != nil {
		return err
	}
	return pair.Save(out, string(r.Identity.Name))
}

// hosts returns the hosts of a node's addresses, each once, and base's own.
func hosts(n *zone.NodeInfo, base peer.Request) (ips []net.IP, names []string) {
	ips = append(ips, base.IPs...)
	names = append(names, base.DNS...)
	seen := map[string]bool{}
	for _, addr := range []string{n.Client, n.Peer, n.QUIC, n.Admin} {
		host, _, err := net.SplitHostPort(addr)
		if err != nil || seen[host] {
			continue // no such address
		}
		seen[host] = true
		if ip := net.ParseIP(host); ip != nil {
			ips = append(ips, ip)
		} else {
			names = append(names, host)
		}
	}
	return ips, names
}

// Nodes returns every node of a topology, in its order.
func Nodes(t *zone.Topology) []*zone.NodeInfo {
	var all []*zone.NodeInfo
	for _, c := range t.Cities {
		all = append(all, c.Routers...)
		all = append(all, c.Caches...)
		all = append(all, c.CoordinatorNodes()...)
		for _, z := range c.Zones {
			for _, g := range z.Groups {
				all = append(all, g.Nodes...)
			}
		}
	}
	return all
}
