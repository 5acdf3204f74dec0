package link

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/wan"
	"github.com/mqrouter/mqrouter/router/link/fec"
	"github.com/mqrouter/mqrouter/zone"
)

// The bottleneck of TestWANShares: 100 Mbit/s with 80 ms of queue, 30 ms there and
// back beside that.
const (
	sharedRate  = 12_500_000 // bytes a second
	sharedQueue = 80 * time.Millisecond
	sharedDelay = 15 * time.Millisecond // one way
)

// shareRow is what meets at the bottleneck.
type shareRow struct {
	name string
	by   []wanKind
}

func shareRows(parallel int) []shareRow {
	cubic := wanKind{name: "TCP, CUBIC", congestion: "cubic"}
	links := slices.DeleteFunc(wanKinds(parallel), func(k wanKind) bool { return k.congestion != "" })
	rows := []shareRow{{"CUBIC beside CUBIC", []wanKind{cubic, cubic}}}
	for _, k := range links {
		rows = append(rows, shareRow{"CUBIC beside a " + k.name, []wanKind{cubic, k}})
	}
	for _, k := range links {
		if k.correction != nil {
			rows = append(rows, shareRow{"a " + k.name + ", beside another", []wanKind{k, k}})
		}
	}
	for _, k := range links {
		rows = append(rows, shareRow{"a " + k.name + ", alone", []wanKind{k}})
	}
	return rows
}

// TestWANShares prints what flows get of a bottleneck that they share, and how long
// its queue is. Beside CONNECTIONS and BY of TestWAN there are
//
//	MQROUTER_WAN_FAIR_SECONDS  length of a run that is measured (60)
//	MQROUTER_WAN_FAIR_WARM     seconds before it that are left out: windows grow slowly (30)
//	MQROUTER_WAN_FAIR_RUNS     runs of each row, of which the median is printed (1)
//	MQROUTER_WAN_FAIR_LOSS     lost at random as well, in packets of 100,000; 0 = none (0)
//
// Packets come one by one: at this rate that costs little, and a run of packets
// would arrive at once, as behind no real bottleneck.
func TestWANShares(t *testing.T) {
	if os.Getenv(wanVariable) == "" {
		t.Skip("skipped: `make wan` runs it")
	}
	plan := wanPlan{
		warm: time.Duration(wanNumber(t, "FAIR_WARM", 30)) * time.Second, long: time.Duration(wanNumber(t, "FAIR_SECONDS", 60)) * time.Second,
		runs: wanNumber(t, "FAIR_RUNS", 1),
	}
	path := wan.Path{Delay: sharedDelay, Rate: sharedRate, Queue: int64(sharedRate * sharedQueue / time.Second)}
	loss := float64(wanNumber(t, "FAIR_LOSS", 0)) / 1e5
	if loss > 0 {
		path.Loss = wan.Random(loss)
	}
	net := openWAN(t, true)
	fmt.Printf("%s; medians of %d runs of %v after %v\n", surroundings(true), plan.runs, plan.long, plan.warm)
	fmt.Printf("\nA bottleneck of %.1f MB/s with %v of queue, %v there and back beside that, %g %% lost.\n", sharedRate/1e6, sharedQueue, 2*sharedDelay, 100*loss)
	fmt.Println("Share: of the first, of what arrives of both. Connections: those that carry sessions, over the run. Dropped: of what was sent, by the full queue.")
	fmt.Println("\n| what | share of the first | MB/s, each | queue, mean | p95 | dropped | connections |")
	fmt.Println("| --- | --- | --- | --- | --- | --- | --- |")
	for _, row := range shareRows(wanNumber(t, "CONNECTIONS", 4)) {
		if !strings.Contains(row.name, os.Getenv(wanVariable+"_BY")) {
			continue
		}
		var results []shareResult
		for range plan.runs {
			net.Set(path)
			results = append(results, runShare(t, net, row, plan))
		}
		printShare(row, results)
	}
}

func printShare(row shareRow, results []shareResult) {
	of := func(f func(shareResult) float64) float64 { return median(sorted(results, f)) }
	var rates, conns []string
	for i, k := range row.by {
		rates = append(rates, fmt.Sprintf("%.2f", of(func(r shareResult) float64 { return r.rates[i] / 1e6 })))
		if k.congestion == "" {
			conns = append(conns, fmt.Sprintf("%.1f", of(func(r shareResult) float64 { return r.conns[i] })))
		}
	}
	share := "-"
	if len(row.by) > 1 {
		share = fmt.Sprintf("%.1f %%", 100*of(func(r shareResult) float64 { return r.rates[0] / (r.rates[0] + r.rates[1]) }))
	}
	fmt.Printf("| %s | %s | %s | %.1f ms | %.1f ms | %.3f %% | %s |\n", row.name, share, strings.Join(rates, ", "),
		of(func(r shareResult) float64 { return r.queue }), of(func(r shareResult) float64 { return r.longQueue }),
		100*of(func(r shareResult) float64 { return r.dropped }), strings.Join(conns, ", "))
}

// shareResult is what a run at the bottleneck came to.
type shareResult struct {
	rates            []float64 // of each, bytes a second that arrived
	conns            []float64 // of each, mean number of connections for sessions; 0 = TCP
	queue, longQueue float64   // mean and 95th percentile in time, milliseconds
	dropped          float64   // part of the packets sent, 0 to 1
}

// party is one who sends over the bottleneck.
type party struct {
	total func() int64
	conns func() int
	end   func()
}

func meet(t *testing.T, n *wan.Net, k wanKind) party {
	if k.congestion != "" {
		total, end := tcpBulk(t, n, k)
		return party{total, func() int { return 0 }, end}
	}
	x, end := linkFlows(t, n, k, wanFlows)
	return party{x.total, func() int {
		if c := x.from.links[Key{x.to, zone.ClassBulk}].carriers.Load(); c != nil {
			return len(*c)
		}
		return 1
	}, end}
}

// runShare has all of a row send, and looks at the queue ten times in a round trip.
func runShare(t *testing.T, n *wan.Net, row shareRow, plan wanPlan) shareResult {
	r := shareResult{rates: make([]float64, len(row.by)), conns: make([]float64, len(row.by))}
	var all []party
	for _, k := range row.by {
		p := meet(t, n, k)
		defer p.end()
		all = append(all, p)
	}
	<-time.After(plan.warm)
	before, start, sent := make([]int64, len(all)), time.Now(), n.Stats(0)
	for i, p := range all {
		before[i] = p.total()
	}
	var queues []float64
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	for time.Since(start) < plan.long {
		<-tick.C
		queues = append(queues, n.Queue(0).Seconds()*1e3)
		for i, p := range all {
			r.conns[i] += float64(p.conns())
		}
	}
	took := time.Since(start).Seconds()
	for i, p := range all {
		r.rates[i] = float64(p.total()-before[i]) / took
		r.conns[i] /= float64(len(queues))
	}
	st := n.Stats(0).Sub(sent)
	r.dropped = float64(st.Overflowed) / float64(max(st.Packets, 1))
	slices.Sort(queues)
	for _, q := range queues {
		r.queue += q / float64(len(queues))
	}
	r.longQueue = queues[len(queues)*95/100]
	return r
}

// TestPartiesMeetAtAnEmulatedBottleneck is a short run of what TestWANShares
// measures.
func TestPartiesMeetAtAnEmulatedBottleneck(t *testing.T) {
	net := openWAN(t, true)
	row := shareRow{"both", []wanKind{{congestion: "cubic"}, {parallel: 2, correction: &fec.Options{}}}}
	if missing(t, net, row.by[0]) {
		t.Skip("skipped: this kernel has no CUBIC")
	}
	carries(t, func() bool {
		net.Set(wan.Path{Delay: 5 * time.Millisecond, Rate: 10_000_000, Queue: 500_000})
		r := runShare(t, net, row, wanPlan{warm: 200 * time.Millisecond, long: 500 * time.Millisecond})
		return r.rates[0] > 0 && r.rates[1] > 0 && r.queue > 0 && r.longQueue >= r.queue/2 && r.dropped < 1 && r.conns[1] >= 1
	})
}
