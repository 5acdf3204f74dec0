package peer

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	defaultPoll = 5 * time.Second
	maxPEM      = 1 << 20 // bytes of a certificate, key or authority file
)

// Files names the files of a node's certificate, its key, and the authorities
// that it trusts. All are PEM.
type Files struct{ Cert, Key, CA string }

// StoreOptions tells a CertStore what to be.
type StoreOptions struct {
	Files Files
	// Poll is how often Run looks for changed files; 0 means 5 s.
	Poll time.Duration
	// Now is the clock for validity; nil means time.Now.
	Now func() time.Time
	// Logger receives reloads and failed reloads; nil discards.
	Logger *slog.Logger
}

// material is what was loaded together and is used together.
type material struct {
	cert     tls.Certificate
	identity Identity
	roots    *x509.CertPool
	caEnd    time.Time // when the first of the authorities ends
	loaded   time.Time
}

// CertStore holds a node's certificate and reads it again when its files
// change. A new set is taken only when it is whole: key and certificate match,
// an authority of the set has issued it, it is valid now, and it names the
// same identity. Until then the last good set serves, however the files come
// (key first, certificate first, half written), and the fault is told. It is
// safe for concurrent use.
type CertStore struct {
	opts    StoreOptions
	current atomic.Pointer[material]

	mu       sync.Mutex // serializes Check
	stamps   [3]os.FileInfo
	failures uint64
	lastErr  error
}

// OpenCertStore loads the files. It fails when they are not a whole set. Call
// Run to follow changes.
func OpenCertStore(opts StoreOptions) (*CertStore, error) {
	if opts.Poll == 0 {
		opts.Poll = defaultPoll
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	s := &CertStore{opts: opts}
	if _, err := s.Check(); err != nil {
		return nil, err
	}
	return s, nil
}

// Run looks for changed files until ctx is done, and returns nil.
func (s *CertStore) Run(ctx context.Context) error {
	tick := time.NewTicker(s.opts.Poll)
	defer tick.Stop()
	said := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		changed, err := s.Check()
		switch {
		case err != nil && err.Error() != said:
			said = err.Error()
			s.opts.Logger.Error("certificate files not usable, keeping the last good ones", "err", err)
		case err == nil && changed:
			said = ""
			st := s.Status()
			s.opts.Logger.Info("certificate reloaded", "peer", st.Identity.String(), "not_after", st.NotAfter)
		}
	}
}

// Check looks at the files once and takes them when they have changed and are
// a whole set. After a failure it tries again at every call.
func (s *CertStore) Check() (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// The stamps are taken before the content is read: a change in between is
	// seen by the next Check.
	stamps, err := stat(s.opts.Files)
	if err == nil && s.lastErr == nil && same(stamps, s.stamps) {
		return false, nil
	}
	var m *material
	if err == nil {
		m, err = s.load()
	}
	s.lastErr = err
	if err != nil {
		s.failures++
		return false, err
	}
	s.stamps = stamps
	s.current.Store(m)
	return true, nil
}

func stat(f Files) (stamps [3]os.FileInfo, err error) {
	for i, name := range []string{f.Cert, f.Key, f.CA} {
		if stamps[i], err = os.Stat(name); err != nil {
			return stamps, fmt.Errorf("peer: certificate files: %w", err)
		}
	}
	return stamps, nil
}

func same(a, b [3]os.FileInfo) bool {
	for i := range a {
		if b[i] == nil || !os.SameFile(a[i], b[i]) || a[i].Size() != b[i].Size() || !a[i].ModTime().Equal(b[i].ModTime()) {
			return false
		}
	}
	return true
}

// load reads a set and checks that it is whole.
func (s *CertStore) load() (*material, error) {
	var content [3][]byte
	for i, name := range []string{s.opts.Files.Cert, s.opts.Files.Key, s.opts.Files.CA} {
		info, err := os.Stat(name)
		if err == nil && info.Size() > maxPEM {
			err = fmt.Errorf("%s has %d bytes, at most %d", name, info.Size(), maxPEM)
		}
		if err == nil {
			content[i], err = os.ReadFile(name) //nolint:gosec // the file that the configuration names
		}
		if err != nil {
			return nil, fmt.Errorf("peer: certificate files: %w", err)
		}
	}
	now := s.opts.Now()
	m, err := parseMaterial(content[0], content[1], content[2], now)
	if err != nil {
		return nil, fmt.Errorf("peer: certificate %s: %w", s.opts.Files.Cert, err)
	}
	if old := s.current.Load(); old != nil && old.identity != m.identity {
		return nil, fmt.Errorf("peer: certificate %s: identity %s, this node is %s", s.opts.Files.Cert, m.identity, old.identity)
	}
	m.loaded = now
	return m, nil
}

func parseMaterial(certPEM, keyPEM, caPEM []byte, now time.Time) (*material, error) {
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	m := &material{cert: cert, roots: x509.NewCertPool()}
	if m.identity, err = IdentityOf(cert.Leaf); err != nil {
		return nil, err
	}
	if m.caEnd, err = addAuthorities(m.roots, caPEM); err != nil {
		return nil, err
	}
	if err := verifyChain(m.roots, cert.Leaf, parseRest(cert.Certificate), now); err != nil {
		return nil, err
	}
	return m, nil
}

func parseRest(chain [][]byte) []*x509.Certificate {
	var rest []*x509.Certificate
	for _, der := range chain[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			rest = append(rest, c)
		}
	}
	return rest
}

// addAuthorities adds every certificate of a PEM file to the pool and returns
// when the first of them ends. Several are legal: old and new, during a change.
func addAuthorities(pool *x509.CertPool, data []byte) (time.Time, error) {
	var end time.Time
	n := 0
	for len(bytes.TrimSpace(data)) > 0 {
		block, rest := pem.Decode(data)
		if block == nil {
			return end, errors.New("authority file is not PEM")
		}
		data = rest
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return end, fmt.Errorf("authority: %w", err)
		}
		pool.AddCert(c)
		if n++; n == 1 || c.NotAfter.Before(end) {
			end = c.NotAfter
		}
	}
	if n == 0 {
		return end, errors.New("authority file is empty")
	}
	return end, nil
}

// verifyChain checks that the leaf was issued by one of roots for both ends of
// a connection and is valid now.
func verifyChain(roots *x509.CertPool, leaf *x509.Certificate, rest []*x509.Certificate, now time.Time) error {
	between := x509.NewCertPool()
	for _, c := range rest {
		between.AddCert(c)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		_, err := leaf.Verify(x509.VerifyOptions{
			Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Identity is who the certificate says this node is. It never changes.
func (s *CertStore) Identity() Identity { return s.current.Load().identity }

// Certificate returns the certificate in use. It must not be changed.
func (s *CertStore) Certificate() *tls.Certificate { return &s.current.Load().cert }

// Roots returns the authorities in use. It must not be changed.
func (s *CertStore) Roots() *x509.CertPool { return s.current.Load().roots }

// StoreStatus is what a CertStore tells of itself.
type StoreStatus struct {
	Identity   Identity
	NotAfter   time.Time // end of the certificate in use
	CANotAfter time.Time // end of the authority that ends first
	Loaded     time.Time
	Failures   uint64 // failed loads since the start
	Err        error  // why the files are not in use; nil when they are
}

// Status returns the present state.
func (s *CertStore) Status() StoreStatus {
	m := s.current.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	return StoreStatus{
		Identity: m.identity, NotAfter: m.cert.Leaf.NotAfter, CANotAfter: m.caEnd,
		Loaded: m.loaded, Failures: s.failures, Err: s.lastErr,
	}
}

// DaysLeft is how many days the certificate in use is still valid; negative
// when it is not. It is meant for a metric.
func (s *CertStore) DaysLeft() float64 {
	return s.current.Load().cert.Leaf.NotAfter.Sub(s.opts.Now()).Hours() / 24
}
