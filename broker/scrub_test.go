package broker

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// sealed returns the files of the log's segments but for the last, oldest first.
func sealed(t *testing.T, fs disk.FS, dir string) []string {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasSuffix(n, ".log") && !strings.HasSuffix(n, ".seg") })
	slices.Sort(names)
	if len(names) < 3 {
		t.Fatalf("segments are %v", names)
	}
	return names[:len(names)-1]
}

// rot changes a byte in the middle of a file, or changes it back.
func rot(t *testing.T, fs disk.FS, name string, off int64) {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b[:], off); err != nil {
		t.Fatal(err)
	}
}

// A byte that rots in an old segment, which nobody reads, is found and told within a
// round, with what to do; what is whole again, or trimmed, is told no more. The check
// reads no faster than it may.
func TestRottenSegmentsAreFoundBeforeTheyAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits()
		limits.SegmentBytes, limits.TrimEvery, limits.TailBytes = 64<<10, 10_000*time.Hour, -1
		limits.ScrubRate, limits.ScrubFirst, limits.ScrubEvery = 64<<10, time.Minute, 10*time.Hour
		fs := disk.NewMem()
		s := open(t, fs, "rz02-a-1", sample(t), limits)
		for i := range 300 {
			m := s.message("orders", fmt.Sprint(i))
			m.Body = make([]byte, 1<<10)
			s.publish(m)
		}
		dir := path.Join(s.dir, "log")
		names := sealed(t, fs, dir)
		rot(t, fs, path.Join(dir, names[1]), 30<<10)
		time.Sleep(time.Minute + 500*time.Millisecond)
		if d := s.Damaged(); d != "" {
			t.Errorf("the second segment is judged at once, at a segment a second: %s", d)
		}
		time.Sleep(time.Minute)
		if d := s.Damaged(); !strings.Contains(d, "a segment of") || !strings.Contains(d, names[1]) || !strings.Contains(d, "no other copy") {
			t.Errorf("after a round: %q", d)
		}
		rot(t, fs, path.Join(dir, names[0]), 30<<10)
		time.Sleep(10 * time.Hour)
		if d := s.Damaged(); !strings.Contains(d, "2 segments") {
			t.Errorf("after two rounds: %q", d)
		}
		rot(t, fs, path.Join(dir, names[0]), 30<<10)
		rot(t, fs, path.Join(dir, names[1]), 30<<10)
		time.Sleep(10 * time.Hour)
		if d := s.Damaged(); d != "" {
			t.Errorf("whole again: %q", d)
		}
	})
}
