package cli

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/pki"
	"github.com/mqrouter/mqrouter/internal/gossip"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/source"
)

func newPKI(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "pki",
		Short: "Make certificates for those without an issuer of their own",
		Long: `Make a certificate authority for a deployment and certificates for its nodes.
Any other issuer will do that puts the node's identity into the certificate as a
URI: mqrouter://DEPLOYMENT/ROLE/CITY/ZONE or -/NAME.`,
	}
	c.AddCommand(newPKIInit(e), newPKIIssue(e))
	return c
}

func newPKIInit(e *env) *cobra.Command {
	var deployment, dir string
	var validity time.Duration
	c := &cobra.Command{
		Use:     "init --deployment NAME --dir DIR",
		Short:   "Make the authority (ca.pem, ca-key.pem) and a gossip key (gossip.key)",
		Example: `  mqrouter pki init --deployment sample --dir pki`,
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			if deployment == "" {
				return usageError{fmt.Errorf("--deployment is missing: the deployment's name in the topology")}
			}
			err := pki.Init(deployment, dir, validity, time.Now())
			if errors.Is(err, peer.ErrExists) {
				return fmt.Errorf("%w; mqrouter pki issue makes certificates with it, another --dir gets one of its own", err)
			}
			if err != nil {
				return err
			}
			return e.line(map[string]string{"dir": dir}, fmt.Sprintf("made %s, %s and %s; keep ca-key.pem off the nodes",
				filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca-key.pem"), filepath.Join(dir, gossip.KeyFile)))
		},
	}
	c.Flags().StringVar(&deployment, "deployment", "", "name of the deployment (required)")
	c.Flags().StringVar(&dir, "dir", "pki", "folder to write to")
	c.Flags().DurationVar(&validity, "validity", peer.DefaultCAValidity, "validity of the authority")
	return c
}

type issueFlags struct {
	dir, out, topology string
	all                bool
	name, admin        string
	ips, dns           []string
	validity           time.Duration
}

func newPKIIssue(e *env) *cobra.Command {
	var p issueFlags
	c := &cobra.Command{
		Use:   "issue --dir DIR --topology FILE (--all | --name NODE | --admin OPERATOR)",
		Short: "Issue certificates for the nodes of a topology, or for an operator",
		Example: `  mqrouter pki issue --dir pki --topology topology.yaml --all
  mqrouter pki issue --dir pki --topology topology.yaml --name rz01-a-1`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error { return p.run(e) },
	}
	c.Flags().StringVar(&p.dir, "dir", "pki", "folder with ca.pem and ca-key.pem")
	c.Flags().StringVar(&p.out, "out", "", "folder to write to; default: --dir")
	c.Flags().StringVar(&p.topology, "topology", "", "topology file (required)")
	c.Flags().BoolVar(&p.all, "all", false, "one for every node of the topology")
	c.Flags().StringVar(&p.name, "name", "", "name of one node of the topology")
	c.Flags().StringVar(&p.admin, "admin", "", "name of an operator, for admin addresses with mutual TLS")
	c.Flags().StringSliceVar(&p.ips, "ip", nil, "further IP addresses in the certificate")
	c.Flags().StringSliceVar(&p.dns, "dns", nil, "further host names in the certificate, for clients that check them")
	c.Flags().DurationVar(&p.validity, "validity", peer.DefaultLeafValidity, "validity of the certificates")
	return c
}

func (p *issueFlags) run(e *env) error {
	given := 0
	for _, set := range []bool{p.all, p.name != "", p.admin != ""} {
		if set {
			given++
		}
	}
	if p.topology == "" || given != 1 {
		return usageError{fmt.Errorf("give --topology and one of --all, --name and --admin")}
	}
	data, err := source.ReadFile(p.topology)
	if err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	t, err := zone.Parse(data, p.topology)
	if err != nil {
		return err
	}
	nodes := pki.Nodes(t)
	if p.name != "" {
		n := t.FindNode(zone.Node(p.name))
		if n == nil {
			return fmt.Errorf("node %q is not in %s", p.name, p.topology)
		}
		nodes = []*zone.NodeInfo{n}
	}
	if p.out == "" {
		p.out = p.dir
	}
	extra := peer.Request{DNS: p.dns, Validity: p.validity, Now: time.Now()}
	for _, text := range p.ips {
		ip := net.ParseIP(text)
		if ip == nil {
			return usageError{fmt.Errorf("--ip %q is not an IP address", text)}
		}
		extra.IPs = append(extra.IPs, ip)
	}
	if p.admin != "" {
		id, err := pki.IssueAdmin(p.dir, p.out, t, p.admin, extra)
		if err != nil {
			return err
		}
		return e.issued(p.out, id)
	}
	if err := pki.Issue(p.dir, p.out, t, nodes, extra); err != nil {
		return err
	}
	for _, n := range nodes {
		if err := e.issued(p.out, peer.IdentityFor(t.Deployment, n)); err != nil {
			return err
		}
	}
	return nil
}

func (e *env) issued(dir string, id peer.Identity) error {
	path := filepath.Join(dir, string(id.Name)+".pem")
	return e.line(map[string]string{"file": path, "identity": id.String()}, fmt.Sprintf("%s  %s", path, id))
}
