package dev

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/zone/sample"
)

// TestAFaultyTopologyLeavesNothingBehind: once put right, the same command goes on
// with it, and a folder that has a topology says that it keeps it.
func TestAFaultyTopologyLeavesNothingBehind(t *testing.T) {
	f := folder{filepath.Join(t.TempDir(), "d")}
	good := Beginning{Name: "my.yaml", Text: sample.YAML, Asked: true}
	bad := good
	bad.Text = bytes.Replace(sample.YAML, []byte("kind: RZone"), []byte("kind: XZone"), 1)
	if _, err := f.prepare(bad, time.Now()); err == nil || !strings.Contains(err.Error(), "my.yaml:") {
		t.Fatalf("the faults are of which file? %v", err)
	}
	if _, err := os.Stat(f.dir); !os.IsNotExist(err) {
		t.Fatalf("the folder is there: %v", err)
	}
	if _, err := f.prepare(good, time.Now()); err != nil {
		t.Fatal(err)
	}
	moved, taken := good, good
	moved.PortOffset, taken.PortOffset, taken.Asked = 100, 100, false
	for what, c := range map[string]struct {
		begin Beginning
		says  bool
	}{"the same": {good, false}, "another": {moved, true}, "by default": {taken, false}} {
		if got := f.kept(c.begin); (got != "") != c.says {
			t.Errorf("%s: %q", what, got)
		}
	}
}
