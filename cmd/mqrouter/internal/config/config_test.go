package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func load(t *testing.T, role string, args ...string) (Node, error) {
	t.Helper()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	Flags(fs, role)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return Load(fs)
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFlagsWinOverEnvironmentOverFileOverDefaults(t *testing.T) {
	path := file(t, "name: from-file\ndata-dir: from-file\nlog-level: warn\ngrace: 3s\n")
	t.Setenv("MQROUTER_DATA_DIR", "from-env")
	t.Setenv("MQROUTER_NAME", "from-env")
	n, err := load(t, "broker", "--config", path, "--name", "from-flag")
	if err != nil {
		t.Fatal(err)
	}
	if n.Name != "from-flag" || n.DataDir != "from-env" || n.LogLevel != "warn" || n.Grace != 3*time.Second || n.LogFormat != "text" {
		t.Errorf("got %+v", n)
	}
	if !n.Plaintext {
		t.Error("the default of plaintext got lost")
	}
}

func TestUnknownKeysAreErrors(t *testing.T) {
	path := file(t, "name: a\ndatadir: /d\nredis: x\n")
	_, err := load(t, "broker", "--config", path)
	if err == nil || !strings.Contains(err.Error(), `"datadir"`) || !strings.Contains(err.Error(), `"redis"`) {
		t.Errorf("got %v; want both unknown keys named", err)
	}
}

func TestValidateReportsEveryFault(t *testing.T) {
	n := Node{LogLevel: "loud", LogFormat: "xml", Admin: "nowhere"}
	err := n.Validate("broker")
	if err == nil {
		t.Fatal("an empty configuration passed")
	}
	for _, want := range []string{"--name", "MQROUTER_TOPOLOGY", "--pki", "MQROUTER_DATA_DIR", "loud", "xml", "nowhere"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not reported in:\n%v", want, err)
		}
	}
}

func TestListenReplacesTheHostOnly(t *testing.T) {
	if got := (Node{Bind: "0.0.0.0"}).Listen("10.1.2.3:9001"); got != "0.0.0.0:9001" {
		t.Errorf("got %q", got)
	}
	if got := (Node{}).Listen("10.1.2.3:9001"); got != "10.1.2.3:9001" {
		t.Errorf("got %q", got)
	}
}
