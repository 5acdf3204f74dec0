package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// TestCopies measures publishes to a group of one, two and three nodes, and what a
// replica that catches up costs them. It asserts nothing of the figures: they are
// printed as rows of a table, for the README. All nodes share one disk here, so that
// the copies' syncs wait for each other more than they would anywhere else.
func TestCopies(t *testing.T) {
	if before := readFile(t, "/proc/loadavg"); long() {
		t.Logf("load average before: %s", strings.TrimSpace(before))
	}
	for copies := rounds(3, 1); copies <= 3; copies++ {
		c := drawCopies(t, copies, "topics:\n  - {name: transfer, route: {shard: {property: userId}}}\n")
		c.upAll()
		b := &copiesBench{t: t, arena: &arena{cluster: c, ledger: newLedger(t), runs: map[string][]*process{}}, copies: copies}
		b.whole(copies)
		for _, publishers := range []int{1, 16, 64} {
			b.row(fmt.Sprintf("%d publishers", publishers), b.publish("--publishers", fmt.Sprint(publishers), "--batch", "1"))
		}
		b.row("1,000 messages/s", b.publish("--publishers", "16", "--batch", "1", "--rate", "1000"))
		if copies == 3 {
			b.catchUp()
		}
		for name := range c.nodes {
			c.nodes[name].running.kill()
		}
	}
}

// copiesBench is a cluster whose group rz-a-g has some copies.
type copiesBench struct {
	*arena
	t      *testing.T
	copies int
}

// benched is a row of `mqrouter bench publish -o json`, as far as it is used here.
type benched struct {
	Messages, Failed uint64
	PerSecond        float64       `json:"per_second"`
	Mean             time.Duration `json:"mean"`
	P50, P99, Max    time.Duration
	FirstFail        string `json:"first_failure"`
}

func (b *copiesBench) publish(args ...string) benched {
	b.t.Helper()
	rows, err := b.tryPublish(rounds(1, 10), args...)
	if err != nil {
		b.t.Fatal(err)
	}
	return rows
}

func (b *copiesBench) tryPublish(seconds int, args ...string) (benched, error) {
	master := b.master()
	env := []string{"MQROUTER_ADMIN=" + b.nodes["cz-a-1"].admin}
	out, err := mqrouter(b.t, env, append([]string{"bench", "publish", "--endpoint", b.nodes[master].client, "--topic", "transfer",
		"--property", "userId=1003", "--duration", fmt.Sprintf("%ds", seconds), "-o", "json"}, args...)...)
	if err != nil {
		return benched{}, err
	}
	var rows []benched
	if err := json.Unmarshal([]byte(out), &rows); err != nil || len(rows) != 1 {
		return benched{}, fmt.Errorf("%d rows, %w: %s", len(rows), err, out)
	}
	if r := rows[0]; r.Messages == 0 || r.Failed > 0 {
		return r, fmt.Errorf("%d messages, %d failed: %s", r.Messages, r.Failed, r.FirstFail)
	}
	return rows[0], nil
}

func (b *copiesBench) row(what string, r benched) {
	b.t.Helper()
	failed := ""
	if r.Failed > 0 {
		failed = fmt.Sprintf("; %d failed: %s", r.Failed, r.FirstFail)
	}
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	b.t.Logf("| %d copies, %s | %.0f messages/s, mean %.2f ms, p50 %.2f ms, p99 %.1f ms, max %.1f ms%s |", b.copies, what, r.PerSecond, ms(r.Mean), ms(r.P50), ms(r.P99), ms(r.Max), failed)
}

// whole waits until so many members are in sync.
func (b *copiesBench) whole(copies int) {
	b.t.Helper()
	if copies == 1 {
		return
	}
	eventually(b.t, "the group is whole", 10*time.Minute, func() error {
		m, err := b.member(b.master())
		if err != nil {
			return err
		}
		if m.Role != "master" || len(m.InSync) != copies {
			return fmt.Errorf("%s, in sync are %v of %d: %+v", m.Role, m.InSync, copies, m.Replicas)
		}
		return nil
	})
}

// catchUp takes a replica away, writes, gives it back without a store under load, and
// measures how fast it has everything and what publishers see meanwhile.
func (b *copiesBench) catchUp() {
	b.t.Helper()
	away := members[2]
	if b.master() == away {
		away = members[1]
	}
	b.kill(away)
	mib := rounds(32, 1024)
	eventually(b.t, fmt.Sprintf("%d MiB are written", mib), 10*time.Minute, func() error {
		if m, err := b.member(b.master()); err != nil || m.Committed>>20 >= uint64(mib) {
			return err
		}
		// Routes may name the lost replica for a moment, and its clients try again.
		_, err := b.tryPublish(600, "--publishers", "16", "--batch", "32", "--messages", fmt.Sprint(mib<<10))
		return errors.Join(errors.New("not yet"), err)
	})
	if err := os.RemoveAll(b.data(away)); err != nil {
		b.t.Fatal(err)
	}
	results := make(chan benched, 1)
	ended := make(chan error, 1)
	go func() {
		r, err := b.tryPublish(rounds(1, 10), "--publishers", "16", "--batch", "1", "--rate", "1000")
		results <- r
		ended <- err
	}()
	began := time.Now()
	b.begin(away)
	b.whole(3)
	took := time.Since(began)
	m, err := b.member(b.master())
	if err != nil {
		b.t.Fatal(err)
	}
	r := <-results
	if err := <-ended; err != nil && r.Messages == 0 {
		b.t.Fatal(err)
	}
	b.row("1,000 messages/s while an empty one catches up", r)
	b.t.Logf("| an empty replica of a log of %d MiB is in sync after | %.1f s, %.0f MiB/s, its start included |", m.Committed>>20, took.Seconds(), float64(m.Committed>>20)/took.Seconds())
}
