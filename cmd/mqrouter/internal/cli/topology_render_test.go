package cli

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/zone/sample"
)

func TestTopologyRenderWritesPictures(t *testing.T) {
	dir := t.TempDir()
	file, out := filepath.Join(dir, "t.yaml"), filepath.Join(dir, "t.svg")
	newer := filepath.Join(dir, "new.yaml")
	changed := strings.Replace(string(sample.YAML), "number: 1}", "number: 2}", 1)
	changed = strings.Replace(changed, "name: rt-sz-2", "name: rt-sz-9", 1)
	for path, text := range map[string]string{file: string(sample.YAML), newer: changed} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if code, text, errOut := call(t, "topology", "render", file, "--topic", "transfer", "-o", out); code != ExitOK || text != "" {
		t.Fatalf("exit code %d, %q, %q", code, text, errOut)
	}
	picture, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	isXML(t, string(picture))
	for _, c := range []struct {
		args []string
		has  string
	}{
		{[]string{"topology", "render", file, "--format", "dot"}, "digraph topology {"},
		{[]string{"topology", "render", file, "--format", "mermaid", "--topic", "transfer", "--from", "rz01"}, "flowchart LR"},
		{[]string{"topology", "diff", file, newer, "--format", "dot"}, "+ rt-sz-9"},
	} {
		if code, text, errOut := call(t, c.args...); code != ExitOK || !strings.Contains(text, c.has) {
			t.Errorf("%v: exit code %d, %q; no %q in\n%s", c.args, code, errOut, c.has, text)
		}
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"topology", "render", file, "--format", "png"}, ExitUsage, "svg, dot or mermaid"},
		{[]string{"topology", "render", file, "--theme", "pink"}, ExitUsage, "auto, light or dark"},
		{[]string{"topology", "render", file, "--from", "rz01"}, ExitUsage, "--topic"},
		{[]string{"topology", "render", file, "--topic", "nope"}, ExitFailed, "nope"},
		{[]string{"topology", "render", file, "--topic", "transfer", "--from", "nope"}, ExitFailed, "nope"},
		{[]string{"topology", "render", file, "-o", filepath.Join(dir, "no", "t.svg")}, ExitFailed, "t.svg"},
	} {
		if code, _, errOut := call(t, c.args...); code != c.code || !strings.Contains(errOut, c.says) {
			t.Errorf("%v: exit code %d, %q; want %d and %q", c.args, code, errOut, c.code, c.says)
		}
	}
}

func isXML(t *testing.T, text string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
