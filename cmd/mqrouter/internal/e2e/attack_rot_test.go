package e2e

import (
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// damage changes one file.
type damage struct {
	name string
	do   func(r *rand.Rand, path string) error
}

var damages = []damage{
	{"a flipped bit", func(r *rand.Rand, path string) error {
		return edit(path, func(b []byte) []byte {
			b[r.IntN(used(b))] ^= 1 << r.IntN(8)
			return b
		})
	}},
	{"a cut", func(r *rand.Rand, path string) error {
		return edit(path, func(b []byte) []byte { return b[:r.IntN(used(b))] })
	}},
	{"removal", func(_ *rand.Rand, path string) error { return os.Remove(path) }},
	{"noise", func(r *rand.Rand, path string) error {
		return edit(path, func(b []byte) []byte {
			at := r.IntN(used(b))
			for i := at; i < min(len(b), at+512); i++ {
				b[i] = byte(r.Uint32())
			}
			return b
		})
	}},
}

// used is the length without the zeros at the end, at least 1.
func used(b []byte) int { return max(1, len(strings.TrimRight(string(b), "\x00"))) }

func edit(path string, f func([]byte) []byte) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, f(b), 0o644)
}

// TestRottenFilesAreToldOrHealed damages files of a broker's data folder, one
// at a time: it heals from what is left, or refuses to start and names file and
// position, or serves the rest and names each message that it cannot read.
// Nothing acknowledged is missing in silence.
func TestRottenFilesAreToldOrHealed(t *testing.T) {
	rnd := attackRand(t)
	for _, kill := range []bool{false, true} {
		c := newCluster(t)
		const b = "rz-a-1"
		end := func() {
			if kill {
				c.nodes[b].running.kill()
			} else {
				c.nodes[b].running.stop(t, time.Minute)
			}
		}
		c.only(b)
		acked := c.load(b, 4, "3", 400<<10, 0).published(t, 180) // beyond one segment
		end()
		c.only(b)
		maps.Copy(acked, c.load(b, 4, "3", 1000, 0).published(t, 50))
		end()
		template := c.data("template")
		copyTree(t, c.data(b), template)
		tried := 0
		for tried < rounds(4, 200) {
			files := kinds(t, template)
			file, d := files[rnd.IntN(len(files))], damages[rnd.IntN(len(damages))]
			if always := []string{files[1], "log/0000000000000000.log", "log/META"}; tried < len(always) {
				file, d = always[tried], damages[0] // files[1] is an index, unless there is none
			}
			copyTree(t, template, c.data(b))
			if err := d.do(rnd, filepath.Join(c.data(b), file)); err != nil {
				t.Fatal(err)
			}
			verdict := rotten(t, c, b, acked)
			t.Logf("%s of %s, killed before: %v: %s", d.name, file, kill, verdict)
			tried++
		}
	}
}

// kinds returns the files that hold something.
func kinds(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if info, err := d.Info(); err != nil || info.Size() == 0 {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		files = append(files, rel)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

var unreadable = regexp.MustCompile(`message cannot be read.* queue=(\d+) seq=(\d+) .*err=.*corrupt at`)

// rotten starts a broker on damaged files and judges what it makes of them.
func rotten(t *testing.T, c *cluster, b string, acked map[string]bool) string {
	t.Helper()
	c.up(b)
	p := c.nodes[b].running
	defer p.kill()
	p.awaitSoft("node serves", time.Minute)
	select {
	case <-p.done:
		if !regexp.MustCompile(`corrupt at position \d+ in [0-9a-f]+\.log|META`).MatchString(p.output()) {
			t.Errorf("it ends without a word on file and position:\n%s", p.output())
		}
		return "refused"
	default:
	}
	consumer := newConsumer(t, c.nodes[b].client)
	defer consumer.Close()
	left := maps.Clone(acked)
	for quiet := 0; quiet < 3 && len(left) > 0; {
		got, err := consumer.Receive(t.Context(), 32, 60*time.Second)
		if err != nil || len(got) == 0 {
			quiet++
		}
		for _, m := range got {
			delete(left, m.MessageID)
		}
	}
	told := map[string]bool{}
	for _, m := range unreadable.FindAllStringSubmatch(p.output(), -1) {
		told[m[1]+"/"+m[2]] = true
	}
	if len(left) > len(told) && len(told) < 90 { // the lines are bounded in number
		t.Errorf("%d messages are missing, %d are told:\n%s", len(left), len(told), p.output())
	}
	if len(left) > 0 {
		return "told"
	}
	return "healed"
}
