package peer

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Validities when none is asked for.
const (
	DefaultCAValidity   = 10 * 365 * 24 * time.Hour
	DefaultLeafValidity = 90 * 24 * time.Hour
)

const (
	caCertFile   = "ca.pem"
	caKeyFile    = "ca-key.pem"
	certSuffix   = ".pem"
	keySuffix    = "-key.pem"
	organization = "mqrouter"
	clockSkew    = 5 * time.Minute // a certificate is valid this long before it is made
	certMode     = 0o644
	keyMode      = 0o600
)

// ErrExists says that a file would be overwritten that must not be.
var ErrExists = errors.New("peer: an authority exists already")

// Authority issues certificates for the nodes of one deployment. It is meant
// for those without an issuer of their own; any issuer will do that puts the
// identity's URI into the certificate. Methods are safe for concurrent use.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// NewAuthority makes an authority that is constrained to the deployment. A
// validity of 0 means DefaultCAValidity.
func NewAuthority(deployment string, validity time.Duration, now time.Time) (*Authority, error) {
	if validity == 0 {
		validity = DefaultCAValidity
	}
	probe := Identity{Deployment: deployment, Role: 1, City: "c", Name: "n"}
	if err := probe.Validate(); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("peer: make key: %w", err)
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{Organization: []string{organization}, CommonName: deployment},
		NotBefore:    now.Add(-clockSkew), NotAfter: now.Add(validity),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage:                    x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		PermittedURIDomains:         []string{deployment},
		PermittedDNSDomainsCritical: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("peer: make authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("peer: make authority: %w", err)
	}
	return &Authority{cert: cert, key: key}, nil
}

func serialNumber() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("peer: make serial number: %w", err)
	}
	return n.Add(n, big.NewInt(1)), nil
}

// Deployment is the deployment that the authority issues for.
func (a *Authority) Deployment() string { return a.cert.Subject.CommonName }

// Certificate returns the authority's certificate. It must not be changed.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }

// CAPEM returns the authority's certificate in PEM.
func (a *Authority) CAPEM() []byte { return certPEM(a.cert.Raw) }

// Request is what Issue puts into a certificate.
type Request struct {
	Identity Identity
	DNS      []string      // further names, for clients that check host names
	IPs      []net.IP      // further addresses, likewise
	Validity time.Duration // 0 means DefaultLeafValidity; cut at the authority's end
	Now      time.Time
}

// Pair is a certificate and its key in PEM.
type Pair struct{ CertPEM, KeyPEM []byte }

// Issue makes a key and a certificate, good for both ends of a connection.
func (a *Authority) Issue(r Request) (Pair, error) {
	uri, err := r.Identity.URI()
	if err != nil {
		return Pair{}, err
	}
	if r.Identity.Deployment != a.Deployment() {
		return Pair{}, fmt.Errorf("%w: %s, the authority's is %s", ErrDeployment, r.Identity.Deployment, a.Deployment())
	}
	if r.Validity == 0 {
		r.Validity = DefaultLeafValidity
	}
	end := r.Now.Add(r.Validity)
	if end.After(a.cert.NotAfter) {
		end = a.cert.NotAfter
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("peer: make key: %w", err)
	}
	serial, err := serialNumber()
	if err != nil {
		return Pair{}, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{Organization: []string{organization}, CommonName: string(r.Identity.Name)},
		NotBefore:    r.Now.Add(-clockSkew), NotAfter: end,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		URIs:        []*url.URL{uri}, DNSNames: r.DNS, IPAddresses: r.IPs,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("peer: issue: %w", err)
	}
	k, err := keyPEM(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{CertPEM: certPEM(der), KeyPEM: k}, nil
}

func certPEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func keyPEM(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("peer: encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// Save writes ca.pem and ca-key.pem into dir, which it makes. It fails with
// ErrExists when either is there: overwriting would orphan every certificate.
func (a *Authority) Save(dir string) error {
	for _, name := range []string{caCertFile, caKeyFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(fmt.Errorf("%w: %s", ErrExists, filepath.Join(dir, name)), err)
		}
	}
	k, err := keyPEM(a.key)
	if err != nil {
		return err
	}
	return Pair{CertPEM: a.CAPEM(), KeyPEM: k}.save(dir, caCertFile, caKeyFile)
}

// LoadAuthority reads what Save wrote.
func LoadAuthority(dir string) (*Authority, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, caCertFile), filepath.Join(dir, caKeyFile))
	if err != nil {
		return nil, fmt.Errorf("peer: load authority: %w", err)
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, fmt.Errorf("peer: load authority: %s is no authority", filepath.Join(dir, caCertFile))
	}
	return &Authority{cert: pair.Leaf, key: signer}, nil
}

// FilesIn returns where Save puts the pair of a name, and the authority's
// certificate, in dir.
func FilesIn(dir, name string) Files {
	return Files{
		Cert: filepath.Join(dir, name+certSuffix),
		Key:  filepath.Join(dir, name+keySuffix),
		CA:   filepath.Join(dir, caCertFile),
	}
}

// Save writes <name>-key.pem and <name>.pem into dir, which it makes, replacing
// older ones: the key first, each atomically and durably.
func (p Pair) Save(dir, name string) error {
	if name == "" || name == "ca" || filepath.Base(name) != name || strings.HasSuffix(name+certSuffix, keySuffix) {
		return fmt.Errorf("peer: %q is no name for a certificate: its files would be those of another, rename the node", name)
	}
	return p.save(dir, name+certSuffix, name+keySuffix)
}

func (p Pair) save(dir, cert, key string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // certificates are public; keys have their own mode
		return fmt.Errorf("peer: save certificate: %w", err)
	}
	if err := writeFile(filepath.Join(dir, key), p.KeyPEM, keyMode); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, cert), p.CertPEM, certMode)
}

// writeFile replaces a file so that a reader sees the old or the new content,
// also after a crash. The file has its mode before it has content.
func writeFile(path string, data []byte, mode fs.FileMode) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".mqrouter-*")
	if err != nil {
		return fmt.Errorf("peer: write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("peer: write %s: %w", path, err), os.Remove(f.Name()))
		}
	}()
	for _, step := range []func() error{
		func() error { return f.Chmod(mode) },
		func() error { _, err := f.Write(data); return err },
		f.Sync,
	} {
		if err := step(); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir) //nolint:gosec // the directory that the caller named
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
