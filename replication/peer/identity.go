package peer

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/mqrouter/mqrouter/zone"
)

// scheme is that of the URI in a certificate's subject alternative names.
const scheme = "mqrouter"

// maxIdentityPart bounds each part of an identity, in bytes. The topology
// allows shorter names still.
const maxIdentityPart = 64

// none stands for an empty zone or city in the URI.
const none = "-"

// Identity is who a node is, as its certificate and the topology state it:
//
//	mqrouter://<deployment>/<role>/<city>/<zone or ->/<name>
type Identity struct {
	Deployment string
	City       zone.City // empty only for RoleAdmin
	Zone       zone.Zone // empty for nodes that belong to no zone, such as routers
	Role       zone.Role
	Name       zone.Node
}

// Errors about an identity; an *IdentityError wraps one of them.
var (
	// ErrCertificate says that the chain is not one of this deployment's
	// authority, is not valid now, or carries no identity.
	ErrCertificate = errors.New("certificate not acceptable")
	// ErrDeployment says that the peer belongs to another deployment.
	ErrDeployment = errors.New("peer belongs to another deployment")
	// ErrSelf says that the peer presents this very node's identity: two nodes
	// were started from one configuration, or a link leads back to itself.
	ErrSelf = errors.New("peer has my own identity")
	// ErrUnexpected says that another node answered than the one dialled.
	ErrUnexpected = errors.New("another node answered than the one dialled")
	// ErrUnknown says that the topology does not know the identity, or knows it
	// otherwise.
	ErrUnknown = errors.New("identity does not agree with the topology")
)

// IdentityError says why a peer was refused. Err wraps one of this package's
// errors about an identity.
type IdentityError struct {
	Link    string // who was dialled, or the remote address
	Offered string // the identity offered, or what stands for it
	Err     error
}

// Error implements error.
func (e *IdentityError) Error() string {
	return fmt.Sprintf("peer: link %s: identity offered %s: %v", e.Link, e.Offered, e.Err)
}

// Unwrap returns the reason.
func (e *IdentityError) Unwrap() error { return e.Err }

// Validate reports what is wrong with the identity.
func (id Identity) Validate() error {
	_, err := id.URI()
	return err
}

// URI returns the identity's form in a certificate.
func (id Identity) URI() (*url.URL, error) {
	var errs []error
	check := func(what, s string) {
		switch {
		case s == "" || s == none:
			errs = append(errs, fmt.Errorf("peer: identity without %s", what))
		case len(s) > maxIdentityPart || strings.ContainsFunc(s, notInPart):
			errs = append(errs, fmt.Errorf("peer: identity with %s %.80q: want at most %d letters, digits, '-', '_', '.'", what, s, maxIdentityPart))
		}
	}
	check("deployment", id.Deployment)
	check("name", string(id.Name))
	city, zoneName := string(id.City), string(id.Zone)
	if city == "" && id.Role == zone.RoleAdmin {
		city = none
	} else {
		check("city", city)
	}
	if zoneName == "" {
		zoneName = none
	} else {
		check("zone", zoneName)
	}
	if _, err := parseRole(id.Role.String()); err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	path := "/" + strings.Join([]string{id.Role.String(), city, zoneName, string(id.Name)}, "/")
	return &url.URL{Scheme: scheme, Host: id.Deployment, Path: path}, nil
}

func notInPart(c rune) bool {
	return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.'
}

// String returns the URI, or what there is of it when the identity is not
// valid.
func (id Identity) String() string {
	if u, err := id.URI(); err == nil {
		return u.String()
	}
	return fmt.Sprintf("%s://%q/%s/%q/%q/%q", scheme, id.Deployment, id.Role, id.City, id.Zone, id.Name)
}

func parseRole(word string) (zone.Role, error) {
	for _, r := range []zone.Role{zone.RoleBroker, zone.RoleRouter, zone.RoleCacheSync, zone.RoleAdmin, zone.RoleCoordinator} {
		if r.String() == word {
			return r, nil
		}
	}
	return 0, fmt.Errorf("peer: identity with unknown role %.80q", word)
}

// ParseIdentity parses what URI returns, and nothing else.
func ParseIdentity(u *url.URL) (Identity, error) {
	parts := strings.Split(u.Path, "/")
	if u.Scheme != scheme || len(parts) != 5 || parts[0] != "" {
		return Identity{}, fmt.Errorf("peer: %.200q is no identity: want %s://deployment/role/city/zone/name", u, scheme)
	}
	role, err := parseRole(parts[1])
	if err != nil {
		return Identity{}, err
	}
	id := Identity{Deployment: u.Host, Role: role, City: zone.City(parts[2]), Zone: zone.Zone(parts[3]), Name: zone.Node(parts[4])}
	if id.Zone == none {
		id.Zone = ""
	}
	if id.City == none {
		id.City = ""
	}
	again, err := id.URI()
	if err != nil {
		return Identity{}, err
	}
	if again.String() != u.String() { // user, query, fragment, escapes
		return Identity{}, fmt.Errorf("peer: %.200q is no identity", u)
	}
	return id, nil
}

// IdentityOf returns the identity that a certificate carries. It does not
// verify the certificate.
func IdentityOf(cert *x509.Certificate) (Identity, error) {
	var found *url.URL
	for _, u := range cert.URIs {
		if u.Scheme != scheme {
			continue
		}
		if found != nil {
			return Identity{}, errors.New("peer: certificate with two identities")
		}
		found = u
	}
	if found == nil {
		return Identity{}, errors.New("peer: certificate without an identity")
	}
	return ParseIdentity(found)
}

// AuthorizeBy returns a function that checks identities against the topology in
// force: the role must be one of roles, and a broker, router or coordinator must stand
// there with the same role, city and zone. A cachesync may, and then must match too.
// Nodes that are not declared in a topology name a city that is, and do not
// have the name of a declared node.
func AuthorizeBy(topology func() *zone.Topology, roles ...zone.Role) func(Identity) error {
	return func(id Identity) error {
		t := topology()
		allowed := false
		for _, r := range roles {
			allowed = allowed || r == id.Role
		}
		node := t.FindNode(id.Name)
		declared := id.Role == zone.RoleBroker || id.Role == zone.RoleRouter || id.Role == zone.RoleCoordinator ||
			id.Role == zone.RoleCacheSync && node != nil
		switch {
		case !allowed:
			return fmt.Errorf("%w: role %s has no business here", ErrUnknown, id.Role)
		case id.Deployment != t.Deployment:
			return fmt.Errorf("%w: %s, this is %s", ErrDeployment, id.Deployment, t.Deployment)
		case declared && node == nil:
			return fmt.Errorf("%w: no node %s", ErrUnknown, id.Name)
		case declared:
			return matchNode(id, node)
		case node != nil:
			return fmt.Errorf("%w: %s is a %s", ErrUnknown, id.Name, node.Role)
		case id.City != "" && t.FindCity(id.City) == nil:
			return fmt.Errorf("%w: no city %s", ErrUnknown, id.City)
		}
		return nil
	}
}

// IdentityFor returns the identity that the topology gives a node.
func IdentityFor(deployment string, n *zone.NodeInfo) Identity {
	id := Identity{Deployment: deployment, City: n.City.Name, Role: n.Role, Name: n.Name}
	if n.Zone != nil {
		id.Zone = n.Zone.Name
	}
	return id
}

func matchNode(id Identity, n *zone.NodeInfo) error {
	if want := IdentityFor(id.Deployment, n); id != want {
		return fmt.Errorf("%w: it has %s", ErrUnknown, want)
	}
	return nil
}
