package link

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mqrouter/mqrouter/internal/wan"
	"github.com/mqrouter/mqrouter/router/link/fec"
)

// wanVariable asks for the tables of TestWAN, which take more than an hour by
// default: `make wan`. With it go
//
//	MQROUTER_WAN_SECONDS      length of a run that is measured (20)
//	MQROUTER_WAN_WARM         seconds before it that are left out (8)
//	MQROUTER_WAN_RUNS         runs of each row, of which the median is printed (5)
//	MQROUTER_WAN_CONNECTIONS  limit of connections of the links that have several (4)
//	MQROUTER_WAN_RATE         MB/s of the bottleneck, with a queue of 100 ms; 0 = none (0)
//	MQROUTER_WAN_FLOWS        sessions that send in bulk (16)
//	MQROUTER_WAN_ONLY         part of the path's name; empty = all
//	MQROUTER_WAN_BY           part of the row's name, or several with | between them; empty = all
//	MQROUTER_WAN_TABLE        bulk or urgent: this table alone
//	MQROUTER_WAN_OFFLOAD      1: devices cut packets; 0: the kernel does, one by one (1)
//
// Cutting is left to the devices by default since the hosts of a real path have
// network cards that do so: what a packet costs a host is part of what is compared,
// while the path itself judges every packet on its own either way.
//
// and those of TestWANShares.
const wanVariable = "MQROUTER_WAN"

// wanPath is a path of the tables, the same in both directions.
type wanPath struct {
	name string
	path wan.Path
}

var wanPaths = []wanPath{
	{"30 ms, no loss", wan.Path{Delay: 15 * time.Millisecond}},
	{"100 ms, no loss", wan.Path{Delay: 50 * time.Millisecond}},
	{"30 ms, 1 %", wan.Path{Delay: 15 * time.Millisecond, Loss: wan.Random(0.01)}},
	{"100 ms, 0.5 %", wan.Path{Delay: 50 * time.Millisecond, Loss: wan.Random(0.005)}},
	{"30 ms, five in a row each second", wan.Path{Delay: 15 * time.Millisecond, Loss: wan.Bursts(5, time.Second)}},
}

// wanKind is a row: what carries the bytes.
type wanKind struct {
	name       string
	congestion string // of the kernel's TCP; empty = a link
	window     int    // bytes that TCP's buffers are made for; 0 = the kernel's own choice
	parallel   int    // limit of a link's connections
	correction *fec.Options
}

// largeWindow is what a path of 100 ms and 300 MB/s holds: it bounds no row.
const largeWindow = 32 << 20

func wanKinds(parallel int) []wanKind {
	several := strconv.Itoa(parallel) + " connections"
	return []wanKind{
		{name: "TCP, CUBIC", congestion: "cubic"},
		{name: "TCP, BBR", congestion: "bbr"},
		{name: "TCP, CUBIC, large windows", congestion: "cubic", window: largeWindow},
		{name: "TCP, BBR, large windows", congestion: "bbr", window: largeWindow},
		{name: "link, 1 connection", parallel: 1},
		{name: "link, " + several, parallel: parallel},
		{name: "link, 1 connection, corrected", parallel: 1, correction: &fec.Options{}},
		{name: "link, " + several + ", corrected", parallel: parallel, correction: &fec.Options{}},
	}
}

// wanPlan is how long and how often is measured.
type wanPlan struct {
	warm, long  time.Duration
	runs, flows int
}

// wanNumber reads a number from the environment.
func wanNumber(t *testing.T, name string, def int) int {
	text := os.Getenv(wanVariable + "_" + name)
	if text == "" {
		return def
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n == 0 && def > 0 {
		t.Fatalf("%s_%s=%q: write a number, from 0 on where that is the default, else from 1", wanVariable, name, text)
	}
	return n
}

// wanSwitch reads a 0 or 1 from the environment.
func wanSwitch(t *testing.T, name string, def bool) bool {
	switch text := os.Getenv(wanVariable + "_" + name); text {
	case "":
		return def
	case "0", "1":
		return text == "1"
	default:
		t.Fatalf("%s_%s=%q: write 0 or 1", wanVariable, name, text)
		return false
	}
}

// openWAN makes the emulated path, or skips the test and says why.
func openWAN(t *testing.T, single bool) *wan.Net {
	t.Helper()
	n, err := wan.Open(wan.Options{Seed: 1, Single: single})
	// A machine of the CI may have anything; a person's that permits it should work.
	if errors.Is(err, wan.ErrNotPermitted) || err != nil && os.Getenv("CI") == "true" {
		t.Skipf("skipped: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// TestWAN prints what links carry over emulated paths beside the kernel's TCP, and
// how late they make single changes. It judges nothing: absolute figures are the
// machine's.
func TestWAN(t *testing.T) {
	if os.Getenv(wanVariable) == "" {
		t.Skip("skipped: `make wan` runs it")
	}
	plan := wanPlan{
		warm: time.Duration(wanNumber(t, "WARM", 8)) * time.Second, long: time.Duration(wanNumber(t, "SECONDS", 20)) * time.Second,
		runs: wanNumber(t, "RUNS", 5), flows: wanNumber(t, "FLOWS", wanFlows),
	}
	single := !wanSwitch(t, "OFFLOAD", true)
	net, paths := openWAN(t, single), chosenPaths(t)
	kinds := slices.DeleteFunc(wanKinds(wanNumber(t, "CONNECTIONS", 4)), func(k wanKind) bool { return !chosen(k.name) })
	table := os.Getenv(wanVariable + "_TABLE")
	fmt.Printf("%s; %d flows, medians of %d runs of %v after %v\n", surroundings(single), plan.flows, plan.runs, plan.long, plan.warm)
	fmt.Println("TCP is the kernel's, with the windows that it chooses itself (" + windows(t, net) + "): what an operator has who has turned BBR on and nothing else.")
	fmt.Printf("With large windows both ends have asked for %d MiB, which needs root or other limits of the system's: the most that TCP could do.\n", largeWindow>>20)
	fmt.Println("\nOne sender, one receiver, as much as goes. Bytes on the wire: of the sender, IP headers included, for each byte that arrived.")
	fmt.Println("CPU: seconds for each GB that arrived, of this process without the emulation, and with it (where the kernel does most of TCP's receiving).")
	fmt.Println("\n| path | by | MB/s | least to most | wire/body | CPU s/GB | with emulation |")
	fmt.Println("| --- | --- | --- | --- | --- | --- | --- |")
	for _, p := range paths {
		if table != "urgent" {
			bulkTable(t, net, p, kinds, plan)
		}
	}
	fmt.Println("\n1,000 changes of 1 KiB a second; milliseconds over the one-way delay; what did not come within a second of the end counts as if it had then.")
	fmt.Println("\n| path | by | p50 | p99 | p99.9 | worst | came | wire/body |")
	fmt.Println("| --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, p := range paths {
		if table != "bulk" {
			urgentTable(t, net, p, kinds, plan)
		}
	}
}

// chosen reports whether a row is asked for.
func chosen(name string) bool {
	return slices.ContainsFunc(strings.Split(os.Getenv(wanVariable+"_BY"), "|"), func(part string) bool { return strings.Contains(name, part) })
}

func chosenPaths(t *testing.T) []wanPath {
	only, rate := os.Getenv(wanVariable+"_ONLY"), wanNumber(t, "RATE", 0)
	var out []wanPath
	for _, p := range wanPaths {
		if strings.Contains(p.name, only) {
			p.path.Rate = int64(rate) * 1e6
			out = append(out, p)
		}
	}
	return out
}

// surroundings says what the figures are of.
func surroundings(single bool) string {
	cut := "devices cut packets"
	if single {
		cut = "packets come one by one"
	}
	load, _ := os.ReadFile("/proc/loadavg")
	return fmt.Sprintf("%d processors, %s, load %s at the start, %s; %s", runtime.NumCPU(), kernel(), strings.TrimSpace(string(load)), runtime.Version(), cut)
}

// windows tells the bounds between which the kernel chooses TCP's buffers.
func windows(t *testing.T, n *wan.Net) string {
	most := func(name string) string {
		f := strings.Fields(tcpSetting(t, n, name))
		kib, err := strconv.Atoi(f[len(f)-1])
		if err != nil {
			t.Fatal(err)
		}
		return strconv.Itoa(kib>>10) + " KiB"
	}
	return "at most " + most("tcp_wmem") + " to send and " + most("tcp_rmem") + " to receive"
}

// bulkTable measures the kinds in turn, so that what else the machine does meanwhile
// concerns all alike.
func bulkTable(t *testing.T, net *wan.Net, p wanPath, kinds []wanKind, plan wanPlan) {
	results := make([][]bulkResult, len(kinds))
	for range plan.runs {
		for i, k := range kinds {
			if missing(t, net, k) {
				continue
			}
			net.Set(p.path)
			results[i] = append(results[i], runBulk(t, net, k, plan))
		}
	}
	for i, k := range kinds {
		if len(results[i]) == 0 {
			fmt.Printf("| %s | %s | this kernel has none |\n", p.name, k.name)
			continue
		}
		of := func(f func(bulkResult) float64) []float64 { return sorted(results[i], f) }
		rate := of(func(r bulkResult) float64 { return r.rate / 1e6 })
		fmt.Printf("| %s | %s | %.1f | %.1f to %.1f | %.3f | %.2f | %.2f |\n", p.name, k.name, median(rate), rate[0], rate[len(rate)-1],
			median(of(func(r bulkResult) float64 { return r.wire })), median(of(func(r bulkResult) float64 { return r.cpu })),
			median(of(func(r bulkResult) float64 { return r.all })))
	}
}

func urgentTable(t *testing.T, net *wan.Net, p wanPath, kinds []wanKind, plan wanPlan) {
	// Urgent links have one connection, and a megabyte a second needs no large window.
	kinds = slices.DeleteFunc(slices.Clone(kinds), func(k wanKind) bool { return k.parallel > 1 || k.window > 0 })
	results := make([][]urgentResult, len(kinds))
	for range plan.runs {
		for i, k := range kinds {
			if missing(t, net, k) {
				continue
			}
			net.Set(p.path)
			results[i] = append(results[i], runUrgent(t, net, k, plan))
		}
	}
	for i, k := range kinds {
		if len(results[i]) == 0 {
			fmt.Printf("| %s | %s | this kernel has none |\n", p.name, k.name)
			continue
		}
		at := func(share float64) float64 {
			return median(sorted(results[i], func(r urgentResult) float64 {
				took := r.took[min(int(share*float64(len(r.took))), len(r.took)-1)]
				return float64(took-p.path.Delay) / float64(time.Millisecond)
			}))
		}
		fmt.Printf("| %s | %s | %.2f | %.2f | %.2f | %.2f | %.1f %% | %.2f |\n", p.name, k.name, at(0.5), at(0.99), at(0.999), at(1),
			100*median(sorted(results[i], func(r urgentResult) float64 { return r.came })),
			median(sorted(results[i], func(r urgentResult) float64 { return r.wire })))
	}
}

func sorted[T any](all []T, f func(T) float64) []float64 {
	out := make([]float64, len(all))
	for i := range all {
		out[i] = f(all[i])
	}
	slices.Sort(out)
	return out
}

func median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// missing reports whether the kernel lacks what the row needs.
func missing(t *testing.T, net *wan.Net, k wanKind) bool {
	if k.congestion == "" {
		return false
	}
	return !slices.Contains(strings.Fields(tcpSetting(t, net, "tcp_available_congestion_control")), k.congestion)
}

// tcpSetting reads a setting of a site's TCP.
func tcpSetting(t *testing.T, net *wan.Net, name string) string {
	t.Helper()
	var have []byte
	err := net.Site(0).Do(func() (err error) {
		have, err = os.ReadFile(filepath.Join("/proc/sys/net/ipv4", name))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(have)
}

func kernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "Linux"
	}
	return "Linux " + unix.ByteSliceToString(u.Release[:])
}

// TestLinkCarriesOverAnEmulatedPath is a short run of what `make wan` measures: a
// corrected link and the kernel's TCP over a path that loses. A machine that stands
// still meanwhile gets another run.
func TestLinkCarriesOverAnEmulatedPath(t *testing.T) {
	net := openWAN(t, false)
	plan := wanPlan{warm: 200 * time.Millisecond, long: 500 * time.Millisecond, flows: wanFlows}
	path := wan.Path{Delay: 5 * time.Millisecond, Loss: wan.Random(0.01)}
	net.Set(path)
	link := wanKind{parallel: 2, correction: &fec.Options{}}
	for _, k := range []wanKind{{congestion: "cubic"}, link} {
		if missing(t, net, k) {
			continue
		}
		carries(t, func() bool {
			r := runBulk(t, net, k, plan)
			return r.rate > 0 && r.wire > 0 && r.cpu > 0 && r.all > r.cpu
		})
	}
	carries(t, func() bool {
		r := runUrgent(t, net, link, plan)
		if r.took[0] < path.Delay {
			t.Errorf("a change came after %v, before its time", r.took[0])
		}
		return r.came > 0 && r.wire > 0
	})
	if st := net.Stats(0); st.Lost == 0 || st.Lost > st.Packets/10 {
		t.Errorf("%+v, want about 1 %% lost", st)
	}
}

func carries(t *testing.T, run func() bool) {
	t.Helper()
	for range 10 {
		if run() {
			return
		}
	}
	t.Error("nothing was carried")
}
