package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestBrokenTopologiesWhileRunning writes one fault after another into the file
// that running nodes follow: each says why it stays with what it has, traffic
// goes on, and a good file with a higher epoch is taken at the end.
func TestBrokenTopologiesWhileRunning(t *testing.T) {
	c := newCluster(t)
	c.upAll()
	l := c.load("rz-a-1", 2, "7", 200, 10*time.Millisecond)
	good := readFile(t, c.topology())
	epoch := func(term, number int, text string) string {
		return strings.Replace(text, "{term: 1, number: 1}", fmt.Sprintf("{term: %d, number: %d}", term, number), 1)
	}
	cut := strings.Index(good, "  - name: city-b")
	end := strings.Index(good, "topics:")
	for _, f := range []struct {
		name, text, says string
	}{
		{"empty", "", "holds no topology"},
		{"noise", "\x00\xff{[", "control character"},
		{"cut short", epoch(1, 2, good[:len(good)/2]), "not YAML"},
		{"lower epoch", epoch(0, 9, good), "epoch's term"},
		{"same epoch, other content", strings.Replace(good, "name: credit", "name: debit", 1), "raise the epoch"},
		{"another deployment", epoch(1, 3, strings.Replace(good, "deployment: cluster", "deployment: other", 1)), "a node belongs to one deployment"},
		{"a city less", epoch(1, 4, strings.Replace(good[:cut]+good[end:], "rz-b: 5-9", "", 1)), "owned by no zone"},
		{"no topics", epoch(1, 5, good[:end]), "not applied by itself"},
		{"shards move", epoch(1, 6, strings.Replace(good, "{rz-a: 0-4, rz-b: 5-9}", "{rz-a: 0-7, rz-b: 8-9}", 1)), "moves are not supported"},
		{"another number of shards", epoch(1, 7, strings.Replace(strings.Replace(good, "count: 10", "count: 100", 1), "{rz-a: 0-4, rz-b: 5-9}", "{rz-a: 0-49, rz-b: 50-99}", 1)), "moves are not supported"},
		{"this node's zone renamed", epoch(1, 8, strings.ReplaceAll(good, "name: rz-a,", "name: rz-x,")), "there is no zone"},
	} {
		if err := os.WriteFile(c.topology(), []byte(f.text), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"rz-a-1", "rt-b1"} {
			eventually(t, f.name+": "+name+" says what is wrong", 30*time.Second, func() error {
				page, err := httpGet("http://" + c.nodes[name].admin + "/v1/status")
				if err == nil && !strings.Contains(page, f.says) {
					err = fmt.Errorf("%.600s", page)
				}
				return err
			})
		}
	}
	os.Remove(c.topology())
	if err := os.WriteFile(c.topology(), []byte(epoch(2, 1, good)), 0o644); err != nil {
		t.Fatal(err)
	}
	for name := range c.nodes {
		eventually(t, name+" takes the good one", 30*time.Second, func() error {
			page, err := httpGet("http://" + c.nodes[name].admin + "/v1/status")
			if err == nil && (!strings.Contains(page, `"2.1"`) || strings.Contains(page, `"problem"`)) {
				i := strings.Index(page, `"topology":`)
				err = fmt.Errorf("%s", page[i:min(len(page), i+300)])
			}
			return err
		})
	}
	l.settled(c, "rz-b-1", places{})
}

// TestStartsThatCannotBe starts nodes with what is missing or wrong: each ends
// at once and says what, where and what to do.
func TestStartsThatCannotBe(t *testing.T) {
	c := newCluster(t)
	const b = "rz-a-1"
	run := func(what, says string, args ...string) {
		t.Helper()
		p := start(t, what, nil, binary, append([]string{"broker", "--name", b, "--topology", c.topology(), "--pki", c.pki(), "--data-dir", c.data(b)}, args...)...)
		select {
		case <-p.done:
			if p.err == nil || !strings.Contains(p.output(), says) {
				t.Errorf("%s: %v, %s", what, p.err, p.output())
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s: it runs\n%s", what, p.output())
		}
		p.kill()
	}
	run("no pki folder", "/nonexistent/rz-a-1.pem", "--pki", "/nonexistent")
	run("unknown node", "add it there", "--name", "nobody")
	run("a router as a broker", "start it with mqrouter router", "--name", "rt-a1")
	run("data folder is a file", "not a directory", "--data-dir", c.topology())
	run("gossip key missing", "/nonexistent", "--gossip-key-file", "/nonexistent")
	bad := filepath.Join(c.dir, "bad.key")
	if err := os.WriteFile(bad, []byte("c2hvcnQ=\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run("gossip key short", "bad.key:1: not a base64 key", "--gossip-key-file", bad)
	pki := filepath.Join(c.dir, "bad-pki")
	for _, f := range []struct {
		what, says string
		do         func()
	}{
		{"key of another node", "does not match", func() { copyFile(t, pki+"/rt-a1-key.pem", pki+"/rz-a-1-key.pem") }},
		{"certificate of another node", "issue a new one", func() {
			copyFile(t, pki+"/rt-a1-key.pem", pki+"/rz-a-1-key.pem")
			copyFile(t, pki+"/rt-a1.pem", pki+"/rz-a-1.pem")
		}},
		{"empty certificate", "rz-a-1.pem", func() { copyFile(t, os.DevNull, pki+"/rz-a-1.pem") }},
		{"CA missing", "ca.pem", func() { os.Remove(pki + "/ca.pem") }},
	} {
		copyTree(t, c.pki(), pki)
		f.do()
		run(f.what, f.says, "--pki", pki)
	}
	c.only(b)
	run("second process, other folder", "address already in use", "--data-dir", c.data("x"))
	run("second process, same folder", "locked by another process")
	c.nodes[b].running.stop(t, 20*time.Second)
	run("the folder of another broker", "belongs to another broker group", "--name", "cz-a-1")
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	if err := os.WriteFile(to, []byte(readFile(t, from)), 0o600); err != nil {
		t.Fatal(err)
	}
}
