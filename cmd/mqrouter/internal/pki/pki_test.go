package pki

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

// TestOperatorsTakeNoNodesName keeps an operator's certificate from replacing
// that of a node in the same folder.
func TestOperatorsTakeNoNodesName(t *testing.T) {
	top, err := zone.Parse(sample.YAML, "sample")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := Init(top.Deployment, dir, 0, time.Now()); err != nil {
		t.Fatal(err)
	}
	node := top.FindNode("rz01-a-1")
	if err := Issue(dir, dir, top, []*zone.NodeInfo{node}, peer.Request{Now: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if _, err := IssueAdmin(dir, dir, top, string(node.Name), peer.Request{Now: time.Now()}); err == nil {
		t.Error("an operator got the name of a node")
	}
	if _, err := IssueAdmin(dir, dir, top, "alice", peer.Request{Now: time.Now()}); err != nil {
		t.Error(err)
	}
	store, err := peer.OpenCertStore(peer.StoreOptions{Files: peer.FilesIn(dir, string(node.Name))})
	if err != nil || store.Identity() != peer.IdentityFor(top.Deployment, node) {
		t.Errorf("the node's certificate is of %v, %v", store, err)
	}
	for file, want := range map[string]os.FileMode{"ca-key.pem": 0o600, "gossip.key": 0o600, "rz01-a-1-key.pem": 0o600, "alice-key.pem": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, file)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want mode %o", file, info, err, want)
		}
	}
}
