package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

var testTime = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func broker(name string) Identity {
	return Identity{Deployment: "bank", Role: zone.RoleBroker, City: "shanghai", Zone: "sh-a", Name: zone.Node(name)}
}

func router(name string) Identity {
	return Identity{Deployment: "bank", Role: zone.RoleRouter, City: "shanghai", Name: zone.Node(name)}
}

func authority(t *testing.T, deployment string, now time.Time) *Authority {
	t.Helper()
	a, err := NewAuthority(deployment, 0, now)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// install issues a pair and writes it, with the authority's certificate.
func install(t testing.TB, a *Authority, dir string, r Request) Files {
	t.Helper()
	p, err := a.Issue(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Save(dir, string(r.Identity.Name)); err != nil {
		t.Fatal(err)
	}
	f := FilesIn(dir, string(r.Identity.Name))
	if err := os.WriteFile(f.CA, a.CAPEM(), certMode); err != nil {
		t.Fatal(err)
	}
	return f
}

func store(t *testing.T, a *Authority, id Identity, now func() time.Time) *CertStore {
	t.Helper()
	f := install(t, a, t.TempDir(), Request{Identity: id, Now: now()})
	s, err := OpenCertStore(StoreOptions{Files: f, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func fixed() time.Time { return testTime }

func TestIdentityIsReadBackFromItsURI(t *testing.T) {
	for _, id := range []Identity{
		broker("sh-a-1-0"), router("sh_router.1"),
		{Deployment: "bank_eu-1", Role: zone.RoleCacheSync, City: "c", Zone: "z", Name: "sync"},
		{Deployment: "bank", Role: zone.RoleAdmin, Name: "alice"},
	} {
		u, err := id.URI()
		if err != nil {
			t.Fatal(err)
		}
		again, err := url.Parse(u.String())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ParseIdentity(again); err != nil || got != id {
			t.Errorf("%s became %+v, %v", u, got, err)
		}
	}
	if got := router("r1").String(); got != "mqrouter://bank/router/shanghai/-/r1" {
		t.Errorf("form changed: %s", got)
	}
}

func TestMalformedIdentitiesAreRefused(t *testing.T) {
	for _, s := range []string{
		"", "mqrouter://", "https://bank/broker/c/z/n", "mqrouter://bank/broker/c/z", "mqrouter://bank/broker/c/z/n/x",
		"mqrouter:///broker/c/z/n", "mqrouter://bank/king/c/z/n", "mqrouter://bank/broker/-/z/n", "mqrouter://bank/broker/c/z/-",
		"mqrouter://bank/broker/c//n", "mqrouter://bank/broker/c/z/n?x=1", "mqrouter://bank/broker/c/z/n#x", "mqrouter://u@bank/broker/c/z/n",
		"mqrouter://bank/broker/c%2Fz/z/n", "mqrouter://bank/broker/c/z/n%00", "mqrouter://bank/broker/c/z/" + strings.Repeat("n", 65),
		"mqrouter:opaque",
	} {
		u, err := url.Parse(s)
		if err != nil {
			continue
		}
		if id, err := ParseIdentity(u); err == nil {
			t.Errorf("%q accepted as %+v", s, id)
		}
	}
	for _, id := range []Identity{{}, {Deployment: "bank", Role: zone.RoleBroker, Name: "n"}, {Deployment: "a/b", Role: 99, City: "c", Name: "n n"}} {
		if id.Validate() == nil {
			t.Errorf("%+v is valid", id)
		}
		if id.String() == "" {
			t.Error("no text for an invalid identity")
		}
	}
}

func FuzzIdentity(f *testing.F) {
	f.Add("mqrouter://bank/broker/c/z/n")
	f.Fuzz(func(t *testing.T, s string) {
		u, err := url.Parse(s)
		if err != nil {
			return
		}
		id, err := ParseIdentity(u)
		if err != nil {
			return
		}
		if back, err := id.URI(); err != nil || back.String() != u.String() {
			t.Errorf("%q became %v, %v", s, back, err)
		}
	})
}

func TestAuthorityIssuesOnlyForItsDeployment(t *testing.T) {
	a := authority(t, "bank", testTime)
	other := broker("n")
	other.Deployment = "staging"
	if _, err := a.Issue(Request{Identity: other, Now: testTime}); !errors.Is(err, ErrDeployment) {
		t.Errorf("%v, want ErrDeployment", err)
	}
	// Nor does a chain of its key pass for another deployment: the authority's
	// certificate is constrained.
	forged := *a.cert
	forged.Subject.CommonName = "staging"
	p, err := (&Authority{cert: &forged, key: a.key}).Issue(Request{Identity: other, Now: testTime})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parseMaterial(p.CertPEM, p.KeyPEM, a.CAPEM(), testTime); err == nil {
		t.Error("a certificate outside the constraint passed")
	}
	for _, bad := range []string{"", "a/b", "-", strings.Repeat("x", 65)} {
		if _, err := NewAuthority(bad, 0, testTime); err == nil {
			t.Errorf("authority for %q", bad)
		}
	}
}

func TestAuthorityFilesAreKeptAndPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	a := authority(t, "bank", testTime)
	if err := a.Save(dir); err != nil {
		t.Fatal(err)
	}
	if err := a.Save(dir); !errors.Is(err, ErrExists) {
		t.Errorf("%v, want ErrExists", err)
	}
	loaded, err := LoadAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	if loaded.Deployment() != "bank" || !loaded.Certificate().Equal(a.Certificate()) {
		t.Error("another authority was loaded")
	}
	p, err := loaded.Issue(Request{
		Identity: broker("n"), Now: testTime, Validity: 100 * 365 * 24 * time.Hour,
		DNS: []string{"n.bank"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
	if err != nil {
		t.Fatal(err)
	}
	m, err := parseMaterial(p.CertPEM, p.KeyPEM, a.CAPEM(), testTime)
	if err != nil {
		t.Fatal(err)
	}
	leaf := m.cert.Leaf
	if leaf.NotAfter.After(a.cert.NotAfter) || len(leaf.DNSNames) != 1 || len(leaf.IPAddresses) != 1 {
		t.Errorf("leaf until %v, %v, %v", leaf.NotAfter, leaf.DNSNames, leaf.IPAddresses)
	}
	if err := p.Save(dir, "n"); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"ca-key.pem": 0o600, "n-key.pem": 0o600, "ca.pem": 0o644, "n.pem": 0o644} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 4 {
		t.Errorf("%d files, %v: a temporary file was left", len(entries), err)
	}
	for _, bad := range []string{"", "ca", "../x", "a/b"} {
		if err := p.Save(dir, bad); err == nil {
			t.Errorf("saved as %q", bad)
		}
	}
}

func TestA1_ReloadTakesOnlyWholeSets(t *testing.T) {
	now := testTime
	a := authority(t, "bank", now)
	dir := t.TempDir()
	f := install(t, a, dir, Request{Identity: broker("n"), Now: now})
	s, err := OpenCertStore(StoreOptions{Files: f, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	first := s.Certificate().Leaf.SerialNumber
	if changed, err := s.Check(); changed || err != nil {
		t.Fatalf("nothing changed: %v, %v", changed, err)
	}
	next, err := a.Issue(Request{Identity: broker("n"), Now: now})
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string, data []byte) {
		t.Helper()
		if err := writeFile(name, data, keyMode); err != nil {
			t.Fatal(err)
		}
	}
	kept := func(what string) {
		t.Helper()
		if changed, err := s.Check(); changed || err == nil {
			t.Errorf("%s: changed %v, error %v", what, changed, err)
		}
		if s.Certificate().Leaf.SerialNumber.Cmp(first) != 0 {
			t.Errorf("%s: the good certificate is gone", what)
		}
		if st := s.Status(); st.Err == nil || st.Failures == 0 {
			t.Errorf("%s: not told: %+v", what, st)
		}
	}
	put(f.Key, next.KeyPEM)
	kept("key first")
	put(f.Cert, next.CertPEM[:len(next.CertPEM)/2])
	kept("half a certificate")
	put(f.Cert, next.CertPEM)
	if changed, err := s.Check(); !changed || err != nil {
		t.Fatalf("whole set: %v, %v", changed, err)
	}
	first = s.Certificate().Leaf.SerialNumber
	if st := s.Status(); st.Err != nil {
		t.Errorf("fault still told: %v", st.Err)
	}

	stranger, err := a.Issue(Request{Identity: broker("other"), Now: now})
	if err != nil {
		t.Fatal(err)
	}
	put(f.Key, stranger.KeyPEM)
	put(f.Cert, stranger.CertPEM)
	kept("another identity")
	foreign := authority(t, "bank", now)
	put(f.CA, foreign.CAPEM())
	put(f.Key, next.KeyPEM)
	put(f.Cert, next.CertPEM)
	kept("another authority")
	put(f.CA, []byte("garbage"))
	kept("garbage for an authority")
	if err := os.Remove(f.CA); err != nil {
		t.Fatal(err)
	}
	kept("no authority")
	put(f.CA, append(foreign.CAPEM(), a.CAPEM()...)) // both, during a change
	if changed, err := s.Check(); !changed || err != nil {
		t.Errorf("two authorities: %v, %v", changed, err)
	}
	if d := s.DaysLeft(); d < 89 || d > 90 {
		t.Errorf("%v days left", d)
	}
	now = now.Add(100 * 24 * time.Hour)
	if d := s.DaysLeft(); d > 0 {
		t.Errorf("%v days left past the end", d)
	}
	if err := os.Chtimes(f.Cert, now, now); err != nil {
		t.Fatal(err)
	}
	kept("an expired certificate")
}

func TestOpenRefusesWhatIsNotWhole(t *testing.T) {
	if _, err := OpenCertStore(StoreOptions{Files: FilesIn(t.TempDir(), "n")}); err == nil {
		t.Error("no files accepted")
	}
	a := authority(t, "bank", testTime)
	f := install(t, a, t.TempDir(), Request{Identity: broker("n"), Now: testTime})
	if _, err := OpenCertStore(StoreOptions{Files: f, Now: func() time.Time { return testTime.Add(DefaultLeafValidity + time.Hour) }}); err == nil {
		t.Error("an expired certificate accepted")
	}
	if err := os.WriteFile(f.Key, make([]byte, maxPEM+1), keyMode); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenCertStore(StoreOptions{Files: f, Now: fixed}); err == nil {
		t.Error("an oversized key accepted")
	}
}

func TestA1_RunFollowsTheFiles(t *testing.T) {
	a := authority(t, "bank", testTime)
	f := install(t, a, t.TempDir(), Request{Identity: broker("n"), Now: testTime})
	s, err := OpenCertStore(StoreOptions{Files: f, Now: fixed, Poll: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	old := s.Certificate()
	install(t, a, filepath.Dir(f.Cert), Request{Identity: broker("n"), Now: testTime})
	limit := time.After(3 * time.Minute)
	for s.Certificate() == old {
		select {
		case <-limit:
			t.Fatal("new certificate not seen")
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// shake runs a handshake and one byte in each direction, and returns both
// sides' errors.
func shake(t *testing.T, server, client *tls.Config) (serverErr, clientErr error) {
	t.Helper()
	there, here := net.Pipe()
	run := func(c *tls.Conn) error {
		defer func() { _ = c.NetConn().Close() }() // a close alert would wait for a reader
		if err := c.SetDeadline(time.Now().Add(3 * time.Minute)); err != nil {
			return err
		}
		if err := c.Handshake(); err != nil {
			return err
		}
		sent := make(chan error, 1)
		go func() { _, err := c.Write([]byte{1}); sent <- err }()
		_, err := io.ReadFull(c, make([]byte, 1))
		return errors.Join(err, <-sent)
	}
	done := make(chan error)
	go func() { done <- run(tls.Server(there, server)) }()
	clientErr = run(tls.Client(here, client))
	return <-done, clientErr
}

func allow(Identity) error { return nil }

func TestA3_BothSidesVerifyIdentityAndChain(t *testing.T) {
	a, foreign, staging := authority(t, "bank", testTime), authority(t, "bank", testTime), authority(t, "staging", testTime)
	elsewhere := broker("b2")
	elsewhere.Deployment = "staging"
	here := store(t, a, broker("b1"), fixed)
	unknown := func(id Identity) error { return ErrUnknown }
	b2, b3 := broker("b2"), broker("b3")
	cases := []struct {
		name      string
		peer      *CertStore
		expect    *Identity
		authorize func(Identity) error
		want      error
	}{
		{"known", store(t, a, b2, fixed), &b2, allow, nil},
		{"any", store(t, a, b2, fixed), nil, allow, nil},
		{"another than dialled", store(t, a, b2, fixed), &b3, allow, ErrUnexpected},
		{"my own identity", store(t, a, broker("b1"), fixed), nil, allow, ErrSelf},
		{"another authority", store(t, foreign, b2, fixed), nil, allow, ErrCertificate},
		{"another deployment", store(t, staging, elsewhere, fixed), nil, allow, ErrDeployment},
		{"not in the topology", store(t, a, b2, fixed), nil, unknown, ErrUnknown},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			mine := &TLS{Store: here, Authorize: c.authorize, Now: fixed, NextProtos: []string{"x"}}
			theirs := &TLS{Store: c.peer, Authorize: allow, Now: fixed, NextProtos: []string{"x"}}
			_, err := shake(t, theirs.Server(), mine.Client("sh->bj", c.expect))
			check(t, "as client", err, c.want, "sh->bj", c.peer.Identity())
			if c.expect == nil {
				blind := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*c.peer.Certificate()}, NextProtos: []string{"x"}}
				err, _ = shake(t, mine.Server(), blind)
				check(t, "as server", err, c.want, "from pipe", c.peer.Identity())
			}
		})
	}
}

func check(t *testing.T, side string, err, want error, link string, offered Identity) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", side, err, want)
	}
	if want == nil {
		return
	}
	var ie *IdentityError
	if !errors.As(err, &ie) || ie.Link != link || ie.Offered != offered.String() {
		t.Errorf("%s: %v does not name link %s and identity %s", side, err, link, offered)
	}
}

func TestStrangersCertificatesAreRefused(t *testing.T) {
	a := authority(t, "bank", testTime)
	mine := &TLS{Store: store(t, a, broker("b1"), fixed), Authorize: allow, Now: fixed}
	if err, _ := shake(t, mine.Server(), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}); err == nil {
		t.Error("a client without a certificate passed")
	}
	ca := tls.Certificate{Certificate: [][]byte{a.cert.Raw}, PrivateKey: a.key}
	err, _ := shake(t, mine.Server(), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{ca}})
	var ie *IdentityError
	if !errors.As(err, &ie) || !errors.Is(err, ErrCertificate) {
		t.Errorf("a certificate without identity: %v", err)
	}
	if err, _ := shake(t, mine.Server(), &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}); err == nil {
		t.Error("TLS 1.2 passed")
	}
	if err := mine.verify("l", nil, tls.ConnectionState{}); !errors.Is(err, ErrCertificate) {
		t.Errorf("%v", err)
	}
	two := &x509.Certificate{URIs: []*url.URL{{Scheme: scheme}, {Scheme: scheme}}}
	if _, err := IdentityOf(two); err == nil {
		t.Error("two identities accepted")
	}
}

func TestA1_NewHandshakesUseTheNewCertificatePastTheOldsEnd(t *testing.T) {
	var now atomic.Int64
	now.Store(testTime.UnixNano())
	clock := func() time.Time { return time.Unix(0, now.Load()) }
	a := authority(t, "bank", testTime)
	server := &TLS{Store: store(t, a, broker("b1"), clock), Authorize: allow, Now: clock}
	client := &TLS{Store: store(t, a, broker("b2"), clock), Authorize: allow, Now: clock}
	serverConfig, clientConfig := server.Server(), client.Client("l", nil)
	if err, err2 := shake(t, serverConfig, clientConfig); err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	now.Store(testTime.Add(DefaultLeafValidity + time.Hour).UnixNano())
	if err, err2 := shake(t, serverConfig, clientConfig); err == nil && err2 == nil {
		t.Fatal("expired certificates passed")
	}
	for _, s := range []*CertStore{server.Store, client.Store} {
		install(t, a, filepath.Dir(s.opts.Files.Cert), Request{Identity: s.Identity(), Now: clock()})
		if changed, err := s.Check(); !changed || err != nil {
			t.Fatal(changed, err)
		}
	}
	if err, err2 := shake(t, serverConfig, clientConfig); err != nil || err2 != nil {
		t.Errorf("after the renewal, with the same configurations: %v, %v", err, err2)
	}
}

// topology parses the sample deployment.
func topology(t *testing.T) *zone.Topology {
	t.Helper()
	top, err := zone.Parse(sample.YAML, "sample.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return top
}

func TestTopologyDecidesWhoIsKnown(t *testing.T) {
	top := topology(t)
	authorize := AuthorizeBy(func() *zone.Topology { return top }, zone.RoleBroker, zone.RoleRouter, zone.RoleCacheSync)
	node := top.FindCity("shanghai").CZone.Groups[0].Nodes[0]
	good := IdentityFor(top.Deployment, node)
	change := func(f func(*Identity)) Identity { id := good; f(&id); return id }
	cases := []struct {
		name string
		id   Identity
		want error
	}{
		{"as declared", good, nil},
		{"router as declared", IdentityFor(top.Deployment, top.FindCity("shanghai").Routers[0]), nil},
		{"cachesync", Identity{Deployment: top.Deployment, Role: zone.RoleCacheSync, City: "shanghai", Name: "sync"}, nil},
		{"another city", change(func(id *Identity) { id.City = "beijing" }), ErrUnknown},
		{"another zone", change(func(id *Identity) { id.Zone = "x" }), ErrUnknown},
		{"another role", change(func(id *Identity) { id.Role = zone.RoleRouter }), ErrUnknown},
		{"another deployment", change(func(id *Identity) { id.Deployment = "staging" }), ErrDeployment},
		{"another name", change(func(id *Identity) { id.Name = "x" }), ErrUnknown},
		{"role not admitted", Identity{Deployment: top.Deployment, Role: zone.RoleAdmin, Name: "alice"}, ErrUnknown},
		{"cachesync under a broker's name", change(func(id *Identity) { id.Role = zone.RoleCacheSync }), ErrUnknown},
		{"cachesync of no city", Identity{Deployment: top.Deployment, Role: zone.RoleCacheSync, City: "x", Name: "sync"}, ErrUnknown},
	}
	for _, c := range cases {
		if err := authorize(c.id); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

// TestCertificatesNeverReplaceAKey covers names whose certificate would have the
// name of somebody's key: the authority's, or that of the node before the dash.
func TestCertificatesNeverReplaceAKey(t *testing.T) {
	a := authority(t, "bank", testTime)
	dir := t.TempDir()
	if err := a.Save(dir); err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(dir, caKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ca", "ca-key", "rz01-key", "../x", "", "a/b"} {
		if err := (Pair{CertPEM: []byte("c"), KeyPEM: []byte("k")}).Save(dir, name); err == nil {
			t.Errorf("a pair was saved as %q", name)
		}
	}
	if now, err := os.ReadFile(filepath.Join(dir, caKeyFile)); err != nil || string(now) != string(key) {
		t.Errorf("the authority's key was changed, %v", err)
	}
}
