package node

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/broker"
)

// segments returns the files of a member's log, oldest first.
func (r *running) segments(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(r.cfg.DataDir, "log", "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

// content is what a segment holds behind its header.
func content(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.TrimRight(b[64:], "\x00")
}

// A segment that has rotten on a replica's disk, and one on the master's, are found and
// made anew from another node while the group goes on; nobody is elected for that.
func TestARottenSegmentIsMadeAnewFromAnotherNode(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	limits := broker.Limits{SegmentBytes: 4 << 10, ScrubFirst: 20 * time.Millisecond, ScrubEvery: 20 * time.Millisecond, TrimEvery: time.Hour}
	a, b, d := c.memberOn(t, "g-1", true, limits, nil), c.memberOn(t, "g-2", true, limits, nil), c.memberOn(t, "g-3", true, limits, nil)
	c.publishThrough(t, "g-1", "safe", 1) // all three are in sync
	master, others := masterOf(t, a, b, d)
	for n := 2; len(master.segments(t)) < 4; n++ {
		c.publishThrough(t, master.self.Name, "safe", n)
	}
	epoch := master.known().Epoch
	for i, sick := range []*running{others[0], master} {
		file := sick.segments(t)[i]
		whole := content(t, file)
		f, err := os.OpenFile(file, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{whole[40] ^ 1}, 64+40); err != nil {
			t.Fatal(err)
		}
		f.Close()
		until(t, "the segment is whole again", func() bool { return bytes.Equal(content(t, file), whole) })
		until(t, "it is told no more", func() bool {
			return !slices.ContainsFunc(sick.Status().Reasons, func(r string) bool { return strings.Contains(r, "damaged") })
		})
	}
	if l := master.life.Load(); l == nil || !l.reigns() || master.known().Epoch != epoch {
		t.Errorf("the group had to elect: %+v", master.known())
	}
	c.publishThrough(t, others[0].self.Name, "safe", 1000)
}
