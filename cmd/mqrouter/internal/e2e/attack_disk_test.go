package e2e

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
)

// attackSeed replays an attack: every one prints the seed that it used.
var attackSeed = flag.Uint64("attack-seed", 20261129, "seed of the attacks")

func attackRand(t *testing.T) *rand.Rand {
	t.Logf("-attack-seed=%d", *attackSeed)
	return rand.New(rand.NewPCG(*attackSeed, 7))
}

// load publishes to users of one last digit from several publishers at once.
type load struct {
	publisher
	stop context.CancelFunc
	wg   sync.WaitGroup
}

func (c *cluster) load(broker string, publishers int, lastDigit string, body int) *load {
	ctx, stop := context.WithCancel(c.t.Context())
	l := &load{publisher: publisher{acked: map[string]bool{}, failed: map[string]bool{}}, stop: stop}
	for i := range publishers {
		l.wg.Go(func() { l.hammer(ctx, c.t, c.nodes[broker].client, fmt.Sprint(1000+i)+lastDigit, body) })
	}
	c.t.Cleanup(l.end)
	return l
}

func (l *load) end() {
	l.stop()
	l.wg.Wait()
}

// hammer sends one message after another, each once, without a pause after
// success.
func (l *load) hammer(ctx context.Context, t *testing.T, endpoint, user string, body int) {
	var producer *rocketmqclient.Producer
	defer func() {
		if producer != nil {
			producer.Close()
		}
	}()
	src := rand.NewChaCha8([32]byte([]byte(fmt.Sprintf("%-32s", user+t.Name())[:32])))
	ids, err := rocketmqclient.NewIDs(src)
	if err != nil {
		t.Error(err)
		return
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		if producer == nil {
			producer, err = rocketmqclient.NewProducer(ctx, rocketmqclient.Config{Endpoint: endpoint, RequestTimeout: 3 * time.Second}, "transfer")
			if err != nil {
				producer = nil
				<-tick.C
				continue
			}
		}
		m := &rocketmqclient.Message{Topic: "transfer", ID: ids.Next(), Body: make([]byte, body), Properties: map[string]string{"userId": user}}
		_, err := producer.Send(context.WithoutCancel(ctx), m)
		l.mu.Lock()
		if err == nil {
			l.acked[m.ID] = true
		} else {
			l.failed[m.ID] = true
		}
		l.mu.Unlock()
		if err != nil {
			<-tick.C
		}
	}
}

// settled ends the load, drains the zone and holds what was seen against what
// was acknowledged.
func (l *load) settled(c *cluster, at string, seen places) {
	c.t.Helper()
	l.end()
	seen.drain(c.t, c.nodes[at].client, l.acked)
	for id, where := range seen {
		if len(where) != 1 {
			c.t.Errorf("message %s is at %d places: %v", id, len(where), where)
		}
		if !l.acked[id] && !l.failed[id] {
			c.t.Errorf("message %s was never published", id)
		}
	}
	c.t.Logf("%d acknowledged, %d without an acknowledgement, %d received", len(l.acked), len(l.failed), len(seen))
}

// only starts one node and waits for it.
func (c *cluster) only(name string) {
	c.t.Helper()
	c.up(name)
	c.ready(name)
}

func (c *cluster) data(name string) string { return filepath.Join(c.dir, "data", name) }

// TestRandomKill9OfOneBrokerUnderLoad kills a broker at random times, also
// while it starts, on one data folder again and again.
func TestRandomKill9OfOneBrokerUnderLoad(t *testing.T) {
	rnd := attackRand(t)
	c := newCluster(t)
	const b = "rz-a-1"
	c.only(b)
	l := c.load(b, 16, "3", 160)
	for range 20 {
		time.Sleep(time.Duration(rnd.IntN(700)) * time.Millisecond)
		c.nodes[b].running.kill()
		c.up(b)
	}
	c.ready(b)
	l.settled(c, b, places{})
}

// TestTwoProcessesOnOneDataFolder: the second says who is in its way, and the
// first does not notice.
func TestTwoProcessesOnOneDataFolder(t *testing.T) {
	c := newCluster(t)
	const b = "rz-a-1"
	c.only(b)
	l := c.load(b, 2, "3", 160)
	second := start(t, "second", nil, binary, "broker", "--name", b, "--topology", c.topology(), "--pki", c.pki(), "--data-dir", c.data(b))
	<-second.done
	if second.err == nil || !strings.Contains(second.output(), "lock") {
		t.Errorf("the second process ended with %v:\n%s", second.err, second.output())
	}
	t.Log(second.output())
	l.settled(c, b, places{})
}

// TestFullDisk fills the file system under a broker's data folder.
func TestFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		missing(t, "root, for a small file system")
	}
	c := newCluster(t)
	const b = "rz-a-1"
	if err := os.MkdirAll(c.data(b), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", c.data(b), "tmpfs", 0, "size=400m"); err != nil {
		missing(t, "a tmpfs mount: "+err.Error())
	}
	t.Cleanup(func() {
		c.nodes[b].running.kill()
		syscall.Unmount(c.data(b), syscall.MNT_DETACH)
	})
	c.upAll()
	l := c.load(b, 4, "7", 64<<10)
	filler := filepath.Join(c.data(b), "filler")
	fill := func() {
		f, err := os.OpenFile(filler, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for {
			if _, err := f.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	}
	eventually(t, "publishes are refused", time.Minute, func() error {
		fill()
		if _, failed := l.counts(); failed < 10 {
			return fmt.Errorf("%d failed", failed)
		}
		return nil
	})
	out, err := mqrouter(t, nil, "publish", "--endpoint", c.nodes[b].client, "--topic", "transfer", "--property", "userId=1003", strings.Repeat("x", 100<<10))
	if err == nil {
		t.Errorf("accepted: %s", out)
	} else {
		t.Log(strings.ReplaceAll(err.Error(), "xxx", ""))
	}
	l.mu.Lock()
	acked := maps.Clone(l.acked)
	l.mu.Unlock()
	seen := places{}
	seen.drain(t, c.nodes["rz-b-1"].client, acked) // reads and forwarding go on
	t.Log("drained while full")
	resp, err := http.Get("http://" + c.nodes[b].admin + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	page, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	t.Logf("%s %s", resp.Status, page)
	c.nodes[b].running.kill()
	c.up(b)
	c.ready(b)
	t.Log("restarted while full")
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	at, _ := l.counts()
	eventually(t, "publishes go on", time.Minute, func() error {
		if n, f := l.counts(); n < at+100 {
			return fmt.Errorf("%d acknowledged, %d failed", n-at, f)
		}
		return nil
	})
	l.settled(c, "rz-b-1", seen)
}
