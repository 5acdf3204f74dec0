package house

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var fuzzTarget = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)

// TestEveryFuzzTargetHasACorpus: seeds in the code are lost with it, and what
// fuzzing has found belongs beside the package.
func TestEveryFuzzTargetHasACorpus(t *testing.T) {
	targets := 0
	goFiles(t, func(rel string, text []byte) {
		for _, m := range fuzzTarget.FindAllSubmatch(text, -1) {
			targets++
			dir := filepath.Join(filepath.Dir(rel), "testdata", "fuzz", string(m[1]))
			if files, err := os.ReadDir(filepath.Join(root(t), dir)); err != nil || len(files) == 0 {
				t.Errorf("%s: %s has no corpus in %s", rel, m[1], dir)
			}
		}
	})
	if targets == 0 {
		t.Error("no fuzz target was found")
	}
}
