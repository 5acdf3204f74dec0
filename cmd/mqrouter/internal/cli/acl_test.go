package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/zone/sample"
)

// TestACLCheckSaysWhoMayDoWhat with the sample that deployments start from.
func TestACLCheckSaysWhoMayDoWhat(t *testing.T) {
	dir := t.TempDir()
	path, topology := filepath.Join(dir, "acl.yaml"), filepath.Join(dir, "topology.yaml")
	text, err := os.ReadFile("../../../../deploy/config/acl.yaml")
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, data []byte) {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(path, text)
	write(topology, sample.YAML)
	code, out, errOut := call(t, "acl", "check", path)
	if code != ExitOK || !strings.Contains(out, "payments") || strings.Contains(out+errOut, "change-me") {
		t.Errorf("code %d:\n%s%s", code, out, errOut)
	}
	code, out, _ = call(t, "acl", "check", path, "--topic", "transfer", "--group", "transfer-credit")
	if code != ExitOK || !strings.Contains(out, "PUBLISH TO transfer") || !strings.Contains(out, "RECEIVE") {
		t.Errorf("code %d:\n%s", code, out)
	}
	code, out, _ = call(t, "acl", "check", path, "--topic", "transfer", "-o", "json")
	var rows []struct {
		User       string `json:"user"`
		MayPublish bool   `json:"may_publish"`
	}
	if err := json.Unmarshal([]byte(out), &rows); code != ExitOK || err != nil {
		t.Fatalf("code %d, %v:\n%s", code, err, out)
	}
	may := map[string]bool{}
	for _, r := range rows {
		may[r.User] = r.MayPublish
	}
	if !may["payments"] || may["reports"] {
		t.Errorf("who may publish: %v", may)
	}
	write(path, []byte("users: [{access_key: a, secret: 0123456789abcdef, publish: [transfer, nowhere], groups: [none]}]"))
	code, _, errOut = call(t, "acl", "check", path, "--topology", topology)
	if code != ExitFailed || !strings.Contains(errOut, "nowhere is no topic") || !strings.Contains(errOut, "none is no consumer group") || strings.Contains(errOut, "transfer is no") {
		t.Errorf("code %d:\n%s", code, errOut)
	}
	write(path, []byte("users: [{access_key: a, secret: short}]"))
	if code, _, errOut = call(t, "acl", "check", path); code != ExitFailed || !strings.Contains(errOut, "acl.yaml:1: a secret of user a has 5 bytes") {
		t.Errorf("code %d:\n%s", code, errOut)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, errOut = call(t, "acl", "check", path); code != ExitFailed || !strings.Contains(errOut, "chmod 0640") {
		t.Errorf("code %d:\n%s", code, errOut)
	}
}
