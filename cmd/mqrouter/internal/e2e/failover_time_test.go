package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestTimeWithoutAPublish kills masters under load and measures for how long no
// publisher of the group was acknowledged. It asserts nothing of the times: they are
// printed, for the README, with what the machine did meanwhile.
func TestTimeWithoutAPublish(t *testing.T) {
	rnd := attackRand(t)
	c := newReplicatedCluster(t)
	if *coordinatorFlag == "consul" {
		underConsul(t, c, startConsul(t))
	}
	c.upAll()
	a := &arena{cluster: c, ledger: newLedger(t), runs: map[string][]*process{}}
	a.ledger.homeOf = func(broker string) string { return broker[:strings.LastIndexByte(broker, '-')] }
	a.whole("at the start")
	endpoints := a.clients(members...)
	for i := range 6 {
		from := slices.Concat(endpoints[i%3:], endpoints[:i%3])
		if i >= 3 { // else all would wait at the dead node's address at the same time
			slices.Reverse(from)
		}
		a.ledger.wanderingPublisher(fmt.Sprint("publisher ", i), from, 5*time.Millisecond, &a.pulse, func(int) letter {
			return letter{topic: "transfer", homes: []string{"rz-a"}, properties: map[string]string{"userId": fmt.Sprint(1003 + 10*i)}}
		})
	}
	a.ledger.wanderingConsumer("rz-a", endpoints, "credit", "transfer")
	before := readFile(t, "/proc/loadavg")
	var gaps []time.Duration
	for range rounds(3, 50) {
		m := a.ledger.mark()
		eventually(t, "publishers go on", time.Minute, func() error { return a.ledger.goesOn(m, 10) })
		hold(time.Duration(rnd.IntN(500)) * time.Millisecond)
		victim := a.master()
		over := a.ledger.troubleBegins(false)
		a.ledger.begin(&a.pulse)
		a.kill(victim)
		m = a.ledger.mark()
		eventually(t, "publishers go on", time.Minute, func() error { return a.ledger.goesOn(m, 10) })
		gaps = append(gaps, a.ledger.silence(&a.pulse))
		a.begin(victim)
		a.whole("after a kill")
		over()
	}
	a.ledger.endPublishing()
	m := a.ledger.mark()
	eventually(t, "everything arrives", time.Minute, func() error { return a.ledger.arrived(m) })
	if err := a.ledger.verdict(); err != nil {
		t.Error(err)
	}
	t.Logf("load average before %s, after %s", strings.TrimSpace(before), strings.TrimSpace(readFile(t, "/proc/loadavg")))
	t.Log(histogram(gaps))
}

// histogram tells how times are spread, in steps of a quarter of a second.
func histogram(all []time.Duration) string {
	slices.Sort(all)
	at := func(part float64) time.Duration { return all[min(int(part*float64(len(all))), len(all)-1)] }
	const step = 250 * time.Millisecond
	counts := map[time.Duration]int{}
	for _, d := range all {
		counts[d/step*step]++
	}
	var b strings.Builder
	fmt.Fprintf(&b, "time without a publish, %d kills of the master: p50 %.1f s, p95 %.1f s, max %.1f s\n", len(all), at(.5).Seconds(), at(.95).Seconds(), all[len(all)-1].Seconds())
	for d := time.Duration(0); d <= all[len(all)-1]; d += step {
		if counts[d] > 0 {
			fmt.Fprintf(&b, "%5.2f s %s %d\n", d.Seconds(), strings.Repeat("#", counts[d]), counts[d])
		}
	}
	return b.String()
}
