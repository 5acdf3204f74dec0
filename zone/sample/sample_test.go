package sample

import (
	"bytes"
	"testing"

	"github.com/mqrouter/mqrouter/zone"
)

func TestSamplesAreValid(t *testing.T) {
	all := map[string][]byte{"the sample": YAML}
	for _, n := range []int{3, 5} {
		text, err := Replicated(n)
		if err != nil {
			t.Fatal(err)
		}
		all[string(rune('0'+n))+" replicas"] = text
	}
	for name, text := range all {
		if _, err := zone.Parse(text, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if text, err := Replicated(4); err == nil {
		t.Errorf("of four nodes: %s", bytes.SplitN(text, []byte("\n"), 2)[0])
	}
}
