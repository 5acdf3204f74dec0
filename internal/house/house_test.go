package house

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/mqrouter/mqrouter/"

// floors gives each room its floor. A room imports rooms of lower floors only;
// inside a room, packages are free.
var floors = map[string]int{
	"zone":        0,
	"policy":      1,
	"replication": 1,
	"broker":      2,
	"router":      2,
	"broadcast":   2,
	"cmd":         3,
}

// internalMay lists which rooms an internal package may import besides other
// internal ones, with the reason.
var internalMay = map[string]map[string]string{
	"internal/admin":          {},
	"internal/disk":           {},
	"internal/freeport":       {},
	"internal/house":          {},
	"internal/loglimit":       {},
	"internal/bounds":         {},
	"internal/rocketmqpb":     {},
	"internal/simnet":         {},
	"internal/wan":            {},
	"internal/tracing":        {},
	"internal/rocketmqclient": {"zone": "names of topics and groups"},
	"internal/gossip":         {"zone": "places and the epoch in a member's metadata"},
}

type pkg struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		switch err := d.Decode(&p); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func room(path string) string {
	rel := strings.TrimPrefix(path, module)
	first, rest, _ := strings.Cut(rel, "/")
	if first == "internal" {
		second, _, _ := strings.Cut(rest, "/")
		return "internal/" + second
	}
	return first
}

func TestImportsGoDownOnly(t *testing.T) {
	for _, p := range packages(t) {
		from := room(p.ImportPath)
		for _, imp := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if !strings.HasPrefix(imp, module) || room(imp) == from {
				continue
			}
			if why := forbidden(from, room(imp)); why != "" {
				t.Errorf("%s imports %s: %s", p.ImportPath, imp, why)
			}
		}
	}
}

func forbidden(from, to string) string {
	toInternal := strings.HasPrefix(to, "internal/")
	if may, ok := internalMay[from]; ok {
		if _, listed := may[to]; listed || toInternal {
			return ""
		}
		return "an internal package imports only the rooms listed in internalMay"
	}
	if strings.HasPrefix(from, "internal/") {
		return "list the internal package in internalMay with what it may import"
	}
	if toInternal {
		return ""
	}
	ff, ok := floors[from]
	tf, ok2 := floors[to]
	switch {
	case !ok || !ok2:
		return "a room that the house does not have"
	case tf > ff:
		return "imports go down only"
	case tf == ff:
		return "rooms of one floor meet in cmd or over the wire"
	}
	return ""
}

// goFiles calls fn for every Go file of the tree that is not generated.
func goFiles(t *testing.T, fn func(rel string, text []byte)) {
	t.Helper()
	base := root(t)
	err := filepath.WalkDir(base, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); n == ".git" || n == "node_modules" || n == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".pb.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(base, path)
		if err != nil {
			return err
		}
		fn(filepath.ToSlash(rel), text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestFilesStayShort(t *testing.T) {
	goFiles(t, func(rel string, text []byte) {
		limit := 600
		if strings.HasSuffix(rel, "_test.go") {
			limit = 800
		}
		if n := bytes.Count(text, []byte("\n")); n > limit {
			t.Errorf("%s has %d lines, over %d: is there a second noun in it?", rel, n, limit)
		}
	})
}

var unfinished = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX)\b`)

func TestNothingIsLeftUnfinished(t *testing.T) {
	goFiles(t, func(rel string, text []byte) {
		sc := bufio.NewScanner(bytes.NewReader(text))
		sc.Buffer(nil, 1<<20)
		for n := 1; sc.Scan(); n++ {
			if unfinished.Match(sc.Bytes()) {
				t.Errorf("%s:%d: unfinished mark: %s", rel, n, sc.Text())
			}
		}
	})
}

func TestEveryPackageHasItsDocFile(t *testing.T) {
	base := root(t)
	for _, p := range packages(t) {
		dir := filepath.Join(base, filepath.FromSlash(strings.TrimPrefix(p.ImportPath, module)))
		if strings.HasPrefix(p.ImportPath, module+"cmd/mqrouter") && !strings.Contains(p.ImportPath, "internal") {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, "doc.go"))
		if err != nil {
			t.Errorf("%s has no doc.go", p.ImportPath)
			continue
		}
		if !regexp.MustCompile(`(?m)^// Package .*(\n//.*)*\npackage `).Match(b) {
			t.Errorf("%s: the package comment is not tied to the package clause", p.ImportPath)
		}
	}
}
