package e2e

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
)

// damage changes one file; size is what of it is in use.
type damage struct {
	name string
	do   func(r *rand.Rand, path string) error
}

var damages = []damage{
	{"bit", func(r *rand.Rand, path string) error {
		return edit(path, func(b []byte) []byte {
			used := len(b)
			for used > 1 && b[used-1] == 0 {
				used--
			}
			b[r.IntN(used)] ^= 1 << r.IntN(8)
			return b
		})
	}},
	{"cut", func(r *rand.Rand, path string) error {
		return edit(path, func(b []byte) []byte {
			used := len(b)
			for used > 1 && b[used-1] == 0 {
				used--
			}
			return b[:r.IntN(used)]
		})
	}},
	{"gone", func(_ *rand.Rand, path string) error { return os.Remove(path) }},
	{"empty", func(_ *rand.Rand, path string) error { return os.Truncate(path, 0) }},
	{"noise", func(r *rand.Rand, path string) error {
		return edit(path, func(b []byte) []byte {
			at := r.IntN(len(b))
			for i := at; i < min(len(b), at+512); i++ {
				b[i] = byte(r.Uint32())
			}
			return b
		})
	}},
}

func edit(path string, f func([]byte) []byte) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, f(b), 0o644)
}

// TestRottenFilesAreToldOrHealed damages each kind of file of a broker.
func TestRottenFilesAreToldOrHealed(t *testing.T) {
	rnd := attackRand(t)
	c := newCluster(t)
	const b = "rz-a-1"
	template := filepath.Join(c.dir, "template")
	c.only(b)
	l := c.load(b, 4, "3", 400<<10)
	eventually(t, "published", time.Minute, func() error {
		if n, _ := l.counts(); n < 200 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	l.end()
	acked := map[string]bool{}
	for id := range l.acked {
		acked[id] = true
	}
	// a second life
	if os.Getenv("KILL9") != "" {
		c.nodes[b].running.kill()
	} else {
		c.nodes[b].running.stop(t, time.Minute)
	}
	c.only(b)
	l = c.load(b, 4, "3", 1000)
	eventually(t, "published", time.Minute, func() error {
		if n, _ := l.counts(); n < 50 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	l.end()
	for id := range l.acked {
		acked[id] = true
	}
	if os.Getenv("KILL9") != "" {
		c.nodes[b].running.kill()
	} else {
		c.nodes[b].running.stop(t, time.Minute)
	}
	if err := os.Rename(c.data(b), template); err != nil {
		t.Fatal(err)
	}
	var files []string
	filepath.WalkDir(template, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			rel, _ := filepath.Rel(template, path)
			info, _ := d.Info()
			t.Logf("file %s %d", rel, info.Size())
			if info.Size() > 0 {
				files = append(files, rel)
			}
		}
		return nil
	})
	for _, f := range files {
		for _, d := range damages {
			rounds := 1
			if d.name == "bit" {
				rounds = 3
			}
			for i := range rounds {
				if flt := os.Getenv("ROT"); flt != "" && !strings.Contains(f+"/"+d.name, flt) {
					continue
				}
				os.RemoveAll(c.data(b))
				if out, err := exec.Command("cp", "-a", template, c.data(b)).CombinedOutput(); err != nil {
					t.Fatal(string(out))
				}
				if err := d.do(rnd, filepath.Join(c.data(b), f)); err != nil {
					t.Fatal(err)
				}
				t.Logf("=== %s %s %d: %s", f, d.name, i, tryRotten(t, c, b, acked))
			}
		}
	}
}

func tryRotten(t *testing.T, c *cluster, b string, acked map[string]bool) string {
	c.up(b)
	p := c.nodes[b].running
	defer p.kill()
	ready := make(chan struct{})
	go func() { defer close(ready); p.awaitSoft("node serves", 20*time.Second) }()
	<-ready
	select {
	case <-p.done:
		return "REFUSED " + grepLog(p.output())
	default:
	}
	consumer, err := rocketmqclient.NewSimpleConsumer(t.Context(), rocketmqclient.Config{Endpoint: c.nodes[b].client}, "credit", time.Second, rocketmqclient.Subscription{Topic: "transfer"})
	if err != nil {
		return "no consumer: " + err.Error()
	}
	defer consumer.Close()
	got, quiet, lastErr := map[string]int{}, 0, ""
	for quiet < 2 {
		ms, err := consumer.Receive(t.Context(), 32, 60*time.Second)
		if err != nil {
			lastErr = err.Error()
			quiet++
			continue
		}
		if len(ms) == 0 {
			quiet++
		}
		for _, m := range ms {
			got[m.MessageID]++
		}
	}
	missing := 0
	for id := range acked {
		if got[id] == 0 {
			missing++
		}
	}
	verdict := "OK healed"
	if missing > 0 {
		verdict = fmt.Sprintf("MISSING %d of %d", missing, len(acked))
	}
	return verdict + " err=" + lastErr + " | " + grepLog(p.output())
}

func grepLog(s string) string {
	var out []string
	for line := range strings.Lines(s) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") || strings.HasPrefix(line, "mqrouter:") || strings.Contains(line, "panic") {
			if !strings.Contains(line, "gossip") {
				out = append(out, strings.TrimSpace(line))
			}
		}
	}
	if len(out) > 4 {
		out = append(out[:4], fmt.Sprintf("... %d more", len(out)-4))
	}
	return strings.Join(out, "\n        ")
}

func (p *process) awaitSoft(text string, within time.Duration) {
	end := time.After(within)
	for !strings.Contains(p.output(), text) {
		select {
		case <-p.done:
			return
		case <-end:
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}
