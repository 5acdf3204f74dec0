package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestTwoProcessesOnOneDataFolder: the second says who is in its way, and the
// first does not notice.
func TestTwoProcessesOnOneDataFolder(t *testing.T) {
	c := newCluster(t)
	const b = "rz-a-1"
	c.only(b)
	l := c.load(b, 2, "3", 160, 0)
	second := start(t, "second", nil, binary, "broker", "--name", b, "--topology", c.topology(), "--pki", c.pki(), "--data-dir", c.data(b))
	<-second.done
	if second.err == nil || !strings.Contains(second.output(), "lock") {
		t.Errorf("the second process ended with %v:\n%s", second.err, second.output())
	}
	l.settled(c, b, places{})
}

// small mounts a small file system at a broker's data folder.
func (c *cluster) small(name string) (remount func(flags uintptr)) {
	c.t.Helper()
	if os.Getuid() != 0 {
		missing(c.t, "root, for a small file system")
	}
	if err := os.MkdirAll(c.data(name), 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", c.data(name), "tmpfs", 0, "size=400m"); err != nil {
		missing(c.t, "a tmpfs mount: "+err.Error())
	}
	c.t.Cleanup(func() {
		c.nodes[name].running.kill()
		syscall.Unmount(c.data(name), syscall.MNT_DETACH)
	})
	return func(flags uintptr) {
		c.t.Helper()
		if err := syscall.Mount("tmpfs", c.data(name), "tmpfs", syscall.MS_REMOUNT|flags, "size=400m"); err != nil {
			c.t.Fatal(err)
		}
	}
}

// fill appends to a file until the disk has no byte left.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 64<<10))
	}
}

// TestFullDiskRefusesPublishesOnly fills the disk of an origin: publishes are
// refused and say why, reads and forwarding go on, a kill and a start on the
// full disk change nothing, and with space it recovers by itself.
func TestFullDiskRefusesPublishesOnly(t *testing.T) {
	c := newCluster(t)
	const a, b = "rz-a-1", "rz-b-1"
	c.small(a)
	c.upAll()
	l := c.load(a, 4, "7", 64<<10, 0)
	filler := filepath.Join(c.data(a), "filler")
	eventually(t, "publishes are refused", time.Minute, func() error {
		fill(t, filler)
		if _, failed := l.counts(); failed < 10 {
			return fmt.Errorf("%d failed", failed)
		}
		return nil
	})
	_, err := mqrouter(t, nil, "publish", "--endpoint", c.nodes[a].client, "--topic", "transfer", "--property", "userId=1003", "x")
	if err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("publish on a full disk: %v", err)
	}
	ready, publish := httpCode(t, c.nodes[a].admin, "/readyz"), httpCode(t, c.nodes[a].admin, "/readyz/publish")
	if ready != http.StatusOK || publish != http.StatusServiceUnavailable {
		t.Errorf("on a full disk /readyz is %d and /readyz/publish %d: consumers stay, producers may go elsewhere", ready, publish)
	}
	l.mu.Lock()
	acked := maps.Clone(l.acked)
	l.mu.Unlock()
	seen := places{}
	seen.drainOnly(t, c.nodes[b].client, acked)
	c.kill9(a)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	at, _ := l.counts()
	eventually(t, "publishes go on", time.Minute, func() error {
		if n, f := l.counts(); n < at+50 {
			return fmt.Errorf("%d acknowledged, %d failed", n-at, f)
		}
		return nil
	})
	l.settled(c, b, seen)
}

func httpCode(t *testing.T, addr, path string) int {
	t.Helper()
	resp, err := http.Get("http://" + addr + path)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// TestOlderCopiesOfStores puts older copies in place of stores, whole and in
// part: flows go on, what is acknowledged from then on arrives, nothing is
// doubled, and where the parts do not belong together the broker refuses, or
// derives one from the other.
func TestOlderCopiesOfStores(t *testing.T) {
	for _, what := range []string{"origin", "destination", "log", "log/META", "index"} {
		t.Run(what, func(t *testing.T) { olderCopy(t, what) })
	}
}

func olderCopy(t *testing.T, what string) {
	c := newCluster(t)
	const a, b = "rz-a-1", "rz-b-1"
	node, home, digit := a, a, "3"
	switch what {
	case "origin":
		home, digit = b, "7"
	case "destination":
		node, home, digit = b, b, "7"
	}
	if home == a {
		c.only(a)
	} else {
		c.upAll()
	}
	seen := places{}
	seen.drainOnly(t, c.nodes[home].client, c.load(a, 4, digit, 300, 0).published(t, 200))
	c.nodes[node].running.stop(t, 20*time.Second)
	old := c.data("old")
	copyTree(t, c.data(node), old)
	c.only(node)
	seen.drainOnly(t, c.nodes[home].client, c.load(a, 4, digit, 300, 0).published(t, 200))
	c.nodes[node].running.kill()
	if what == "origin" || what == "destination" {
		copyTree(t, old, c.data(node))
	} else {
		copyTree(t, filepath.Join(old, what), filepath.Join(c.data(node), what))
	}
	c.up(node)
	p := c.nodes[node].running
	p.awaitSoft("node serves", time.Minute)
	if what == "log/META" {
		if !strings.Contains(p.output(), "META is damaged or older than the log") {
			t.Errorf("a META older than the log is not told:\n%s", p.output())
		}
		return
	}
	c.ready(node)
	seen.drainOnly(t, c.nodes[home].client, c.load(a, 4, digit, 300, 0).published(t, 200))
	for id, at := range seen {
		if len(at) > 1 {
			t.Errorf("message %s is at %d places: %v", id, len(at), at)
		}
	}
	if what == "origin" && !strings.Contains(p.output(), "destination keeps numbers that this origin lost") {
		t.Error("what the origin lost is not told")
	}
}

// TestReadOnlyDisk: a broker on a disk that takes no writes says so and ends;
// with a writable one it has everything.
func TestReadOnlyDisk(t *testing.T) {
	c := newCluster(t)
	const b = "rz-a-1"
	remount := c.small(b)
	c.only(b)
	acked := c.load(b, 4, "3", 300, 0).published(t, 200)
	c.nodes[b].running.kill()
	remount(syscall.MS_RDONLY)
	c.up(b)
	p := c.nodes[b].running
	p.awaitSoft("node serves", 20*time.Second)
	p.kill()
	if !strings.Contains(p.output(), "read-only file system") {
		t.Errorf("on a read-only disk:\n%s", p.output())
	}
	remount(0)
	c.only(b)
	places{}.drainOnly(t, c.nodes[b].client, acked)
}
