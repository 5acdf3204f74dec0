package cli

import (
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/admin"
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

// TestStatusTellsOneNodeFromAnother: an address that another node has now must not
// show that node as the one that was asked for.
func TestStatusTellsOneNodeFromAnother(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(`{"node": "rt-sh-1", "ready": true}`))
	}))
	defer other.Close()
	addr := other.Listener.Addr().String()
	text := string(sample.YAML)
	for _, old := range []string{"admin: 127.0.0.1:5101", "admin: 127.0.0.1:5102"} {
		text = strings.Replace(text, old, "admin: "+addr, 1)
		addr = strings.Replace(addr, "127.0.0.1", "localhost", 1)
	}
	topo, err := zone.Parse([]byte(text), "sample")
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{topology: topo, client: admin.NewClient(nil, time.Second)}
	all := f.statuses(t.Context())
	if all[0].Error != "" || all[1].Node != "rt-sh-2" || !strings.Contains(all[1].Error, "another node now, rt-sh-1") {
		t.Errorf("asked for rt-sh-1 and rt-sh-2: %+v and %+v", all[0], all[1])
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

// TestRatesThatAreNoneAreRefused: NaN compares with nothing, and the pauses of an
// absurdly low rate would not fit a time.Duration.
func TestRatesThatAreNoneAreRefused(t *testing.T) {
	for _, rate := range []float64{-1, 1e-300, math.NaN(), math.Inf(-1)} {
		r := replayRun{letterFlags: letterFlags{group: "g"}, rate: rate}
		if err := r.run(t.Context(), nil, nil); !errors.As(err, new(usageError)) {
			t.Errorf("rate %v: %v", rate, err)
		}
	}
}
