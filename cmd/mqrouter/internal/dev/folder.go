package dev

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/pki"
	"github.com/mqrouter/mqrouter/internal/gossip"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/zone"
)

// renewBefore is how long before its end a certificate is made anew.
const renewBefore = 7 * 24 * time.Hour

// folder is the place of a development deployment on the disk.
type folder struct{ dir string }

func (f folder) topology() string           { return filepath.Join(f.dir, "topology.yaml") }
func (f folder) pki() string                { return filepath.Join(f.dir, "pki") }
func (f folder) log() string                { return filepath.Join(f.dir, "mqrouter.log") }
func (f folder) data(n zone.Node) string    { return filepath.Join(f.dir, "nodes", string(n)) }
func (f folder) nodeLog(n zone.Node) string { return filepath.Join(f.dir, "logs", string(n)+".log") }
func (f folder) pid(n zone.Node) string     { return filepath.Join(f.dir, "pids", string(n)) }
func (f folder) master(g zone.Group) string { return filepath.Join(f.dir, "masters", string(g)) }
func (f folder) lock(n zone.Node) string    { return filepath.Join(f.dir, "locks", string(n)) }
func (f folder) authority() string          { return filepath.Join(f.pki(), "ca.pem") }
func (f folder) gossipKey() string          { return filepath.Join(f.pki(), gossip.KeyFile) }
func (f folder) exists(path string) bool    { _, err := os.Stat(path); return err == nil }

// loopbackPort matches the addresses that an offset shifts.
var loopbackPort = regexp.MustCompile(`\b127\.0\.0\.1:(\d+)`)

// shift adds the offset to every loopback port of a topology file.
func shift(text []byte, offset int) ([]byte, error) {
	if offset == 0 {
		return text, nil
	}
	var bad error
	out := loopbackPort.ReplaceAllFunc(text, func(m []byte) []byte {
		port, err := strconv.Atoi(string(m[len("127.0.0.1:"):]))
		if port += offset; err != nil || port < 1 || port > 65535 {
			bad = fmt.Errorf("port offset %d: %s would become port %d", offset, m, port)
			return m
		}
		return []byte("127.0.0.1:" + strconv.Itoa(port))
	})
	return out, bad
}

// prepare makes what is missing in the folder and returns the topology: the
// folder's, or the one to begin with, of which a faulty one leaves nothing behind.
func (f folder) prepare(begin Beginning, now time.Time) (*zone.Topology, error) {
	text, err := os.ReadFile(f.topology())
	name, fresh := f.topology(), errors.Is(err, fs.ErrNotExist)
	if fresh {
		name = begin.Name
		text, err = shift(begin.Text, begin.PortOffset)
	}
	if err != nil {
		return nil, fmt.Errorf("dev: %w", err)
	}
	t, err := zone.Parse(text, name)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return nil, fmt.Errorf("dev: %w", err)
	}
	if fresh {
		if err := os.WriteFile(f.topology(), text, 0o644); err != nil {
			return nil, fmt.Errorf("dev: %w", err)
		}
	}
	return t, f.certify(t, now)
}

// kept says that the folder has a topology already, when it is not the one to
// begin with that was asked for; else "".
func (f folder) kept(begin Beginning) string {
	text, err := os.ReadFile(f.topology())
	if err != nil || !begin.Asked {
		return ""
	}
	if want, err := shift(begin.Text, begin.PortOffset); err == nil && bytes.Equal(want, text) {
		return ""
	}
	return fmt.Sprintf("%s is there and stays in force; --topology and --port-offset are for a new folder: change that file and raise its epoch, or give another --dir", f.topology())
}

// certify makes the authority, and certificates that are missing or end soon.
func (f folder) certify(t *zone.Topology, now time.Time) error {
	if !f.exists(f.authority()) {
		if err := pki.Init(t.Deployment, f.pki(), 0, now); err != nil {
			return err
		}
	}
	if !f.exists(f.gossipKey()) {
		if err := gossip.SaveNewKey(f.gossipKey()); err != nil {
			return err
		}
	}
	var want []*zone.NodeInfo
	for _, n := range pki.Nodes(t) {
		store, err := peer.OpenCertStore(peer.StoreOptions{Files: peer.FilesIn(f.pki(), string(n.Name))})
		if err != nil || time.Duration(store.DaysLeft()*float64(24*time.Hour)) < renewBefore || store.Identity() != peer.IdentityFor(t.Deployment, n) {
			want = append(want, n)
		}
	}
	return pki.Issue(f.pki(), f.pki(), t, want, peer.Request{Now: now})
}
