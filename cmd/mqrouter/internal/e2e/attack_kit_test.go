package e2e

import (
	"context"
	cryptorand "crypto/rand"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
)

var seedFlag = flag.Uint64("seed", 0, "seed of faults and attacks; 0: always the same, in the long suite another one each time")

var coordinatorFlag = flag.String("coordinator", "raft", "coordinator of TestRoundsOfFaults: raft or consul")

var roundsFlag = flag.Int("rounds", 0, "rounds of TestRoundsOfFaults; 0: 20, in the long suite 200")

// attackSeed replays an attack: every one prints the seed that it used.
var attackSeed = sync.OnceValue(func() uint64 {
	switch {
	case *seedFlag != 0:
		return *seedFlag
	case long():
		return rand.Uint64()
	}
	return 20261129
})

func attackRand(t *testing.T) *rand.Rand {
	t.Logf("-seed=%d", attackSeed())
	return rand.New(rand.NewPCG(attackSeed(), 7))
}

// load publishes to users of one last digit from several publishers at once.
type load struct {
	publisher
	stop context.CancelFunc
	wg   sync.WaitGroup
}

func (c *cluster) load(broker string, publishers int, lastDigit string, body int, pace time.Duration) *load {
	ctx, stop := context.WithCancel(c.t.Context())
	l := &load{publisher: publisher{acked: map[string]bool{}, failed: map[string]bool{}}, stop: stop}
	for i := range publishers {
		l.wg.Go(func() { l.hammer(ctx, c.t, c.nodes[broker].client, fmt.Sprint(1000+i)+lastDigit, body, pace) })
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
func (l *load) hammer(ctx context.Context, t *testing.T, endpoint, user string, body int, pace time.Duration) {
	var producer *rocketmqclient.Producer
	defer func() {
		if producer != nil {
			producer.Close()
		}
	}()
	ids, err := rocketmqclient.NewIDs(cryptorand.Reader)
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
		} else if pace > 0 {
			hold(pace)
		}
	}
}

// settled ends the load, drains the zone and holds what was seen against what
// was acknowledged.
func (l *load) settled(c *cluster, at string, seen places) {
	c.t.Helper()
	l.end()
	seen.drainOnly(c.t, c.nodes[at].client, l.acked)
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

func newSource(seed uint64) *rand.ChaCha8 {
	return rand.NewChaCha8([32]byte([]byte(fmt.Sprintf("%032d", seed))))
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func newConsumer(t *testing.T, endpoint string) *rocketmqclient.SimpleConsumer {
	t.Helper()
	consumer, err := rocketmqclient.NewSimpleConsumer(t.Context(), rocketmqclient.Config{Endpoint: endpoint}, "credit", time.Second, rocketmqclient.Subscription{Topic: "transfer"})
	if err != nil {
		t.Fatal(err)
	}
	return consumer
}

func (c *cluster) data(name string) string { return filepath.Join(c.dir, "data", name) }

// published waits until a load has n acknowledged messages, and ends it.
func (l *load) published(t *testing.T, n int) map[string]bool {
	t.Helper()
	eventually(t, "enough is published", time.Minute, func() error {
		if acked, failed := l.counts(); acked < n {
			return fmt.Errorf("%d acknowledged, %d failed", acked, failed)
		}
		return nil
	})
	l.end()
	return l.acked
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// toll is what a node costs its machine.
type toll struct {
	rss        int // KiB
	goroutines int
	files      int
}

func (c *cluster) toll(name string) toll {
	c.t.Helper()
	n := c.nodes[name]
	var v toll
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.running.cmd.Process.Pid))
	if err != nil {
		c.t.Fatalf("%s: %v", name, err)
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); f[0] == "VmRSS:" {
			v.rss, _ = strconv.Atoi(f[1])
		}
	}
	if fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.running.cmd.Process.Pid)); err == nil {
		v.files = len(fds)
	}
	page, err := httpGet("http://" + n.admin + "/metrics")
	if err != nil {
		c.t.Fatalf("%s: %v", name, err)
	}
	for line := range strings.Lines(page) {
		if f := strings.Fields(line); f[0] == "go_goroutines" {
			v.goroutines, _ = strconv.Atoi(f[1])
		}
	}
	return v
}

func httpGet(url string) (string, error) {
	resp, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// recovered waits until goroutines and descriptors are back near where they were.
func (c *cluster) recovered(name string, before toll) {
	c.t.Helper()
	var now toll
	eventually(c.t, name+" gives back what the attack took", 90*time.Second, func() error {
		if now = c.toll(name); now.goroutines > before.goroutines+40 || now.files > before.files+20 {
			return fmt.Errorf("%+v, before %+v", now, before)
		}
		return nil
	})
	if now.rss > before.rss+512<<10 {
		c.t.Errorf("%s: %+v, before %+v", name, now, before)
	}
	c.t.Logf("%s: before %+v, after %+v", name, before, now)
}

// serves publishes and receives once.
func (c *cluster) serves(at string) {
	c.t.Helper()
	out, err := mqrouter(c.t, nil, "publish", "--endpoint", c.nodes[at].client, "--topic", "transfer", "--property", "userId=1003", "still here?")
	if err != nil {
		c.t.Errorf("after the attack: %v %s", err, out)
	}
}

// throw opens n connections, writes b to each and reads until the server ends
// them or the time has passed.
func throw(addr string, n int, b []byte, within time.Duration) {
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
			if err != nil {
				return
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(within))
			conn.Write(b)
			io.Copy(io.Discard, conn)
		})
	}
	wg.Wait()
}

// ask sends bytes and returns what comes back, at most 1 MiB.
func ask(addr, raw string) string {
	conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	conn.Write([]byte(raw))
	b, _ := io.ReadAll(io.LimitReader(conn, 1<<20))
	return string(b)
}

// drainOnly is drain for a system under load: it returns when the ids were
// seen, whatever else comes.
func (p places) drainOnly(t *testing.T, endpoint string, acked map[string]bool) {
	t.Helper()
	missing := map[string]bool{}
	for id := range acked {
		if p[id] == nil {
			missing[id] = true
		}
	}
	consumer := newConsumer(t, endpoint)
	defer consumer.Close()
	eventually(t, "what was acknowledged before the heal is received", time.Minute, func() error {
		for len(missing) > 0 {
			got, err := consumer.Receive(t.Context(), 32, 30*time.Second)
			if err != nil {
				return err
			}
			if len(got) == 0 {
				return fmt.Errorf("%d of %d are missing", len(missing), len(acked))
			}
			for _, m := range got {
				if p[m.MessageID] == nil {
					p[m.MessageID] = map[string]bool{}
				}
				p[m.MessageID][fmt.Sprintf("%s[%d]@%d", m.Broker, m.QueueID, m.Offset)] = true
				delete(missing, m.MessageID)
			}
			if err := consumer.Ack(t.Context(), got...); err != nil {
				return err
			}
		}
		return nil
	})
}

// terminate sends SIGTERM; a process that does not handle signals yet may end
// by it, any other has to end well.
func (p *process) terminate(t *testing.T) {
	t.Helper()
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		p.kill()
		t.Errorf("%s did not stop within 20 s of SIGTERM", p.name)
		return
	}
	if p.err != nil && p.output() != "" {
		t.Errorf("%s ended with %v after SIGTERM:\n%s", p.name, p.err, p.output())
	}
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

// doors are the addresses of a node in the topology.
func (c *cluster) doors(t *testing.T, name string) map[string]string {
	t.Helper()
	text := readFile(t, c.topology())
	doors := map[string]string{}
	for line := range strings.Lines(text) {
		if !strings.Contains(line, "{name: "+name+",") {
			continue
		}
		line = line[strings.LastIndex(line[:strings.Index(line, "{name: "+name+",")+1], "{"):]
		for _, m := range regexp.MustCompile(`(\w+): (127\.0\.0\.1:\d+)`).FindAllStringSubmatch(line, -1) {
			doors[m[1]] = m[2]
		}
	}
	return doors
}

// long reports whether `make soak` runs: more rounds of everything.
func long() bool { return os.Getenv("MQROUTER_LONG") != "" }

// rounds is n, or many in the long suite.
func rounds(n, many int) int {
	if long() {
		return many
	}
	return n
}

// relayPause is how often a relay looks whether a cut is over.
const relayPause = 20 * time.Millisecond

// hold keeps an attack up for a while: the time is the attack's, nothing is
// expected of it.
func hold(d time.Duration) { <-time.After(d) }
