package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

// TestNamesThatLeadNowhereAreSaidToDoSo: an empty answer to a mistyped name would
// pass for good news.
func TestNamesThatLeadNowhereAreSaidToDoSo(t *testing.T) {
	topo, err := zone.Parse(sample.YAML, "sample")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		p     letterFlags
		known bool
		says  string // "" is no error
	}{
		{letterFlags{zone: "rz99"}, true, "it has rz01"},
		{letterFlags{group: "nope"}, false, "mqrouter group list"},
		{letterFlags{group: "nope"}, true, ""}, // left the topology, its letters stay
		{letterFlags{group: "transfer-credit", zone: "rz04"}, false, ""},
	} {
		if err := c.p.check(topo, c.known); (err == nil) != (c.says == "") || (err != nil && !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%+v, known %v: %v; want %q", c.p, c.known, err, c.says)
		}
	}
	f := &fleet{topology: topo}
	e := &env{}
	if err := e.withdraw(t.Context(), f, "rz04-a", true); err == nil || !strings.Contains(err.Error(), "take it out of the topology first") {
		t.Errorf("withdraw of a group that is there: %v", err)
	}
	for id, odd := range map[string]bool{"01321AE6E88FF202680B1E2E6D00000000": false, "01321ae6e88ff202680b1e2e6d00000000": false, "xx": true, "01321AE6E88FF202680B1E2E6D0000000g": true} {
		if got := idHint(id) != ""; got != odd {
			t.Errorf("a hint for id %q: %v", id, got)
		}
	}
}

// TestFilesThatAreMissingSayWhoMakesThem goes through the commands that want
// certificates.
func TestFilesThatAreMissingSayWhoMakesThem(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "t.yaml")
	if code, text, _ := call(t, "topology", "sample"); code != ExitOK {
		t.Fatal(text)
	} else {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	made := filepath.Join(dir, "made")
	if code, _, text := call(t, "pki", "init", "--deployment", "sample", "--dir", made); code != ExitOK {
		t.Fatal(text)
	}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"pki", "init", "--deployment", "sample", "--dir", made}, "another --dir"},
		{[]string{"pki", "issue", "--dir", filepath.Join(dir, "none"), "--topology", file, "--all"}, "mqrouter pki init"},
		{[]string{"router", "--name", "rt-sh-1", "--topology", file, "--pki", made}, "mqrouter pki issue --name rt-sh-1"},
		{[]string{"status", "--topology", file, "--pki", made, "--as", "alice"}, "mqrouter pki issue --admin alice"},
	} {
		if code, _, text := call(t, c.args...); code != ExitFailed || !strings.Contains(text, c.says) {
			t.Errorf("%v: exit code %d, %q; want %q", c.args, code, text, c.says)
		}
	}
}
