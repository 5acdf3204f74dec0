package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestScenariosAreListed holds the keys that tests carry against
// deploy/scenarios.md: each is explained there, and each that is not said to wait
// has a test.
func TestScenariosAreListed(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "deploy", "scenarios.md"))
	if err != nil {
		t.Fatal(err)
	}
	tested, _, _ := strings.Cut(string(text), "Waiting for")
	tests := map[string]bool{}
	carries := regexp.MustCompile(`(?m)^func Test([A-Z]\d+)_`)
	goFiles(t, func(rel string, source []byte) {
		if !strings.HasSuffix(rel, "_test.go") {
			return
		}
		for _, m := range carries.FindAllSubmatch(source, -1) {
			tests[string(m[1])] = true
		}
	})
	for key := range tests {
		if !regexp.MustCompile(`\| (\w+, )*` + key + `[ ,]`).Match(text) {
			t.Errorf("a test is named after %s, which deploy/scenarios.md does not explain", key)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^\| ([A-Z]\d+) \|`).FindAllStringSubmatch(tested, -1) {
		if !tests[m[1]] {
			t.Errorf("deploy/scenarios.md has %s, and no test is named after it", m[1])
		}
	}
}
