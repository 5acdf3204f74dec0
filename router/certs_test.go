package router

import (
	"context"
	"crypto/x509"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/router/link"
	"github.com/mqrouter/mqrouter/zone"
)

// TestA1_LinksTakeNewCertificatesUnderLoad replaces the certificate of a router
// while a session runs over its links: first the key alone, then a half-written
// certificate, then the whole pair. Sessions go on through all of it, what is not
// whole changes nothing, and the next handshake uses the new pair without a
// restart.
func TestA1_LinksTakeNewCertificatesUnderLoad(t *testing.T) {
	c := newCluster(t, "rt-sh-1")
	c.broker("rz03-a", echo)
	var mu sync.Mutex
	seen := map[string]bool{} // serial numbers that rt-hz-1 was shown
	identify := func(cert *x509.Certificate) (peer.Identity, error) {
		mu.Lock()
		defer mu.Unlock()
		seen[cert.SerialNumber.String()] = true
		return peer.IdentityOf(cert)
	}
	shown := func(serial string) bool {
		mu.Lock()
		defer mu.Unlock()
		return seen[serial]
	}
	c.start("rt-hz-1", func(o *Options) { o.Identify = identify })
	c.linked()
	store := c.stores["rt-sh-1"]
	serial := func() string { return store.Certificate().Leaf.SerialNumber.String() }
	old := serial()

	s := c.open(c.routers["rt-sh-1"], 1, nil)
	var load sync.WaitGroup
	var passed atomic.Uint64
	load.Go(func() {
		for n := uint64(0); ; n++ {
			if s.Send(context.Background(), batch(1, n, 5000)) != nil {
				return
			}
			if _, err := s.Recv(context.Background()); err != nil {
				return
			}
			passed.Add(1)
		}
	})
	defer func() {
		_ = s.Close(wire.CodeOK)
		load.Wait()
	}()
	goesOn := func(what string) {
		t.Helper()
		at := passed.Load()
		until(t, what, func() bool { return passed.Load() > at+20 })
	}
	goesOn("traffic")

	files := peer.FilesIn(c.dir, "rt-sh-1")
	pair, err := c.ca.Issue(peer.Request{Identity: store.Identity(), Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	write := func(path string, data []byte) {
		t.Helper()
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(files.Key, pair.KeyPEM)
	if _, err := store.Check(); err == nil || serial() != old {
		t.Fatalf("a new key with the old certificate was taken: %v", err)
	}
	goesOn("traffic with the key alone")
	write(files.Cert, pair.CertPEM[:len(pair.CertPEM)/2])
	if _, err := store.Check(); err == nil || serial() != old {
		t.Fatalf("half a certificate was taken: %v", err)
	}
	if st := store.Status(); st.Err == nil {
		t.Error("a pair that is not whole is not told")
	}
	// A handshake now still has the last good pair.
	c.start("rt-hz-2", func(o *Options) { o.Identify = identify })
	c.linked()
	if !shown(old) {
		t.Error("a handshake meanwhile did not show the old certificate")
	}
	write(files.Cert, pair.CertPEM)
	if changed, err := store.Check(); err != nil || !changed || serial() == old {
		t.Fatalf("the whole pair: changed %v, %v", changed, err)
	}
	goesOn("traffic with the new pair")
	c.routers["rt-hz-2"].stop()
	c.start("rt-hz-2", func(o *Options) { o.Identify = identify })
	until(t, "a handshake with the new certificate", func() bool { return shown(serial()) })
	c.linked()
	goesOn("traffic after the new handshake")
}

// TestA3_WrongCredentialsOfOneRouterAreNamedAndHarmNoOther gives one router a
// certificate of another authority, and one of another node: their links say who
// was offered and why it is refused, and the links between the others carry on.
func TestA3_WrongCredentialsOfOneRouterAreNamedAndHarmNoOther(t *testing.T) {
	c := newCluster(t, "rt-sh-1", "rt-hz-1")
	c.broker("rz03-a", echo)
	stranger, err := peer.NewAuthority(c.top.Deployment, time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := stranger.Save(dir); err != nil {
		t.Fatal(err)
	}
	wrong := &cluster{t: t, top: c.top, ca: stranger, dir: dir, stores: map[zone.Node]*peer.CertStore{}}
	c.start("rt-hz-2", func(o *Options) { o.TLS = LinkTLS(wrong.tls("rt-hz-2")) })
	c.start("rt-sz-1", func(o *Options) { o.TLS = LinkTLS(c.tls("rt-sz-2")) })
	fault := func(node zone.Node) string {
		for _, l := range c.routers["rt-sh-1"].Status().Links {
			if l.Node == node && l.Class == zone.ClassBulk && l.State != link.StateUp {
				return l.LastError
			}
		}
		return ""
	}
	for node, words := range map[zone.Node][]string{
		"rt-hz-2": {"rt-hz-2", "certificate"},      // the link, and what is wrong
		"rt-sz-1": {"link to rt-sz-1", "/rt-sz-2"}, // the link, and who answered
	} {
		until(t, "a reason for "+string(node), func() bool {
			for _, w := range words {
				if !strings.Contains(fault(node), w) {
					return false
				}
			}
			return true
		})
	}
	until(t, "the good link", func() bool {
		_, ok := c.routers["rt-sh-1"].links.Up("rt-hz-1", zone.ClassBulk)
		return ok
	})
	s := c.open(c.routers["rt-sh-1"], 1, nil)
	defer s.Close(wire.CodeOK)
	recv(t, s)
	for n := range uint64(50) {
		if err := s.Send(t.Context(), batch(1, n, 1000)); err != nil {
			t.Fatal(err)
		}
		recv(t, s)
	}
	for _, l := range c.routers["rt-sh-1"].Status().Links {
		if l.Node == "rt-hz-1" && l.Reconnects != 0 {
			t.Errorf("a good link was disturbed: %+v", l)
		}
	}
}
