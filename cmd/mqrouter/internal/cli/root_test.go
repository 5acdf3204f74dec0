package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/zone/sample"
)

// call runs a command line that needs no network.
func call(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	var o, e bytes.Buffer
	code = Run(t.Context(), args, strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}

func TestExitCodesTellWrongUseFromFailure(t *testing.T) {
	t.Setenv("MQROUTER_SECRET_KEY", "")
	for _, c := range []struct {
		args []string
		code int
		says string // in what goes to the error stream
	}{
		{[]string{"bogus"}, ExitUsage, "bogus"},
		{[]string{"topic", "bogus"}, ExitUsage, "mqrouter topic --help"},
		{[]string{"topic", "lst"}, ExitUsage, "did you mean list?"},
		{[]string{"statsu"}, ExitUsage, "did you mean status?"},
		{[]string{"broadcast", "bogus"}, ExitUsage, "bogus"},
		{[]string{"bench", "bogus"}, ExitUsage, "bogus"},
		{[]string{"topology", "show", "a", "b"}, ExitUsage, "at most 1"},
		{[]string{"topology", "resolve", "a", "b"}, ExitUsage, "at most 1"},
		{[]string{"topology", "validate"}, ExitUsage, "the topology file"},
		{[]string{"status", "extra"}, ExitUsage, "extra"},
		{[]string{"status", "--interval", "2s"}, ExitUsage, "--watch"},
		{[]string{"status", "--nope"}, ExitUsage, "nope"},
		{[]string{"status", "-o", "xml"}, ExitUsage, "text or json"},
		{[]string{"publish", "--topic", "t", "x"}, ExitUsage, "--zone"},
		{[]string{"consume", "--endpoint", "127.0.0.1:1", "--topic", "t", "--group", "g", "--count", "-1"}, ExitUsage, "--count"},
		{[]string{"publish", "--endpoint", "127.0.0.1:1", "--access-key", "k", "--topic", "t", "x"}, ExitUsage, "set MQROUTER_SECRET_KEY"},
		{[]string{"status", "--topology", "/no/such/file"}, ExitFailed, "--topology names its file"},
		{[]string{"dev", "--dir", filepath.Join(t.TempDir(), "dev"), "--acl", "/no/such/file"}, ExitFailed, "dev: --acl: access file: stat /no/such/file"},
		{[]string{"message", "find", ""}, ExitUsage, "empty"},
		{[]string{"broker"}, ExitUsage, "MQROUTER_NAME"},
		{[]string{"dev", "--log-level", "loud"}, ExitUsage, "loud"},
		{[]string{"pki", "issue"}, ExitUsage, "--topology"},
		{[]string{"topology", "validate", "/no/such/file"}, ExitFailed, "/no/such/file"},
		{[]string{"topology", "validate", "/"}, ExitFailed, "/ is a directory"},
		{[]string{"topology", "validate", "/dev/zero"}, ExitFailed, "/dev/zero is a device"},
		{[]string{"status", "--admin", "foo"}, ExitUsage, `--admin "foo": write HOST:PORT`},
		{[]string{"dlq", "list", "--admin", "foo:bar"}, ExitUsage, "write HOST:PORT"},
		{nil, ExitOK, ""},
		{[]string{"topic"}, ExitOK, ""},
		{[]string{"topic", "--help"}, ExitOK, ""},
		{[]string{"version"}, ExitOK, ""},
	} {
		code, _, text := call(t, c.args...)
		if code != c.code || !strings.Contains(text, c.says) {
			t.Errorf("mqrouter %s: exit code %d with %q; want %d and a text with %q", strings.Join(c.args, " "), code, text, c.code, c.says)
		}
	}
}

// TestJSONListsAreNeverNull keeps scripts from having to tell null from empty.
func TestJSONListsAreNeverNull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "topology.yaml")
	if err := os.WriteFile(path, sample.YAML, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"topology", "validate", path}, {"topology", "show", path}, {"topology", "diff", path, path},
		{"topology", "resolve", path, "--topic", "transfer", "--key", "1065"}, {"version"},
	} {
		code, out, text := call(t, append(args, "-o", "json")...)
		if code != ExitOK || !json.Valid([]byte(out)) || strings.Contains(out, "null") {
			t.Errorf("mqrouter %s -o json: exit code %d, %q, printed\n%s", strings.Join(args, " "), code, text, out)
		}
	}
}

// TestValidateTellsWhatNodesRefuse keeps a topology that no broker starts under
// from being called valid before it is rolled out.
func TestValidateTellsWhatNodesRefuse(t *testing.T) {
	const topic, node = "  - name: orders\n", "              - name: cz-sz-a-1\n"
	const second = `              - name: cz-sz-a-2
                client: 127.0.0.1:8191
                peer: 127.0.0.1:9117
                gossip: 127.0.0.1:6117
                admin: 127.0.0.1:5217
`
	for add, want := range map[string]struct {
		after     string
		code      int
		out, says string
	}{
		"":                                      {topic, ExitOK, "is valid", ""},
		"    kind: lite\n":                      {topic, ExitOK, "is valid", ""},
		"    at_budget: gap\n    colour: red\n": {topic, ExitFailed, "colour", "has 1 fault\n"},
		second + node:                           {"            nodes:\n", ExitFailed, "broker group cz-sz-a has 2 nodes, and city shenzhen has no coordinator", "has 1 fault\n"},
		"  - name: shenzhen\n    coordinator: {driver: raft, voters: [cz-sz-a-2]}\n": {second, ExitOK, "note: the coordinator of city shenzhen has one voter", ""},
		"  - name: shenzhen\n    coordinator: {driver: consul}\n":                    {second, ExitOK, "is valid", ""},
	} {
		path := filepath.Join(t.TempDir(), "topology.yaml")
		text := strings.Replace(string(sample.YAML), want.after, want.after+add, 1)
		switch want.after {
		case second:
			text = strings.Replace(strings.Replace(string(sample.YAML), "  - name: shenzhen\n", add, 1), node, second+node, 1)
		case topic:
		default:
			text = strings.Replace(string(sample.YAML), want.after+node, want.after+add, 1)
		}
		if add != "" && text == string(sample.YAML) {
			t.Fatal("the sample is not as this test expects")
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errOut := call(t, "topology", "validate", path)
		if code != want.code || !strings.Contains(out, want.out) || !strings.Contains(errOut, want.says) {
			t.Errorf("with %q: exit code %d, printed %q and %q; want %d, %q and %q", add, code, out, errOut, want.code, want.out, want.says)
		}
	}
}

func TestHelpNamesSwitchesPlainly(t *testing.T) {
	if _, out, _ := call(t, "pki", "issue", "--help"); strings.Contains(out, "[=true") || !strings.Contains(out, "--all  ") {
		t.Errorf("mqrouter pki issue --help prints\n%s", out)
	}
}

func TestTablesKeepOneLineARow(t *testing.T) {
	var out bytes.Buffer
	tab := newTable("A", "B")
	tab.row("first\nsecond", "x")
	tab.print(&out)
	if got := out.String(); got != "A              B\nfirst; second  x\n" {
		t.Errorf("printed %q", got)
	}
}

func TestDiffFailsWhereNodesRefuse(t *testing.T) {
	dir := t.TempDir()
	write := func(name, old, text string) string {
		path, out := filepath.Join(dir, name), strings.Replace(string(sample.YAML), old, text, 1)
		if out == string(sample.YAML) && old != text {
			t.Fatalf("the sample has no %q", old)
		}
		if err := os.WriteFile(path, []byte(out), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	running := write("running.yaml", "", "")
	same := write("same.yaml", "", "# a comment\n")
	later := write("later.yaml", "number: 1", "number: 2")
	noEpoch := write("no-epoch.yaml", "  - name: orders\n", "  - name: orders\n    queues: 5\n")
	for next, want := range map[string]struct {
		code int
		says string
	}{same: {ExitOK, ""}, later: {ExitOK, ""}, noEpoch: {ExitFailed, "raise the epoch"}} {
		if code, out, errOut := call(t, "topology", "diff", running, next); code != want.code || !strings.Contains(errOut, want.says) {
			t.Errorf("%s: exit code %d with %q and %q; want %d and a text with %q", next, code, out, errOut, want.code, want.says)
		}
	}
}
