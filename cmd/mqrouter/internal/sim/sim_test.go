//go:debug tlsmlkem=0
package sim

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/pki"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/zone"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "run the simulation with this seed only, and log")
	seedsFlag = flag.Uint64("seeds", seeds(), "run the simulation with this many seeds")
)

// seeds is how many seeds run by default.
func seeds() uint64 {
	if os.Getenv("MQROUTER_LONG") != "" {
		return 10_000
	}
	return defaultSeeds
}

// authorities are the certificates of deployments, made once: they cost more than
// what they are for.
var authorities struct {
	sync.Mutex
	dirs map[[32]byte]string // guarded by Mutex; by topology text
	root string
}

func TestMain(m *testing.M) {
	flag.Parse()
	usualStart()
	root := "pki" // in the folder of its own
	if !exactChild() {
		var err error
		if root, err = os.MkdirTemp("", "mqrouter-sim-*"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	authorities.root, authorities.dirs = root, map[[32]byte]string{}
	os.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true") // a simulated socket has none
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	code := m.Run()
	_ = os.RemoveAll(root)
	os.Exit(code)
}

// pkiFor returns a folder with the certificates of a plan's nodes.
func pkiFor(t testing.TB, p *plan) string {
	t.Helper()
	authorities.Lock()
	defer authorities.Unlock()
	text := p.text(1)
	key := sha256.Sum256(text)
	if dir := authorities.dirs[key]; dir != "" {
		return dir
	}
	top, err := zone.Parse(text, "sim.yaml")
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	dir := filepath.Join(authorities.root, fmt.Sprintf("%x", key[:8]))
	now := time.Date(1999, 12, 31, 0, 0, 0, 0, time.UTC) // a bubble begins in 2000
	if err := pki.Init(top.Deployment, dir, 100*365*24*time.Hour, now); err != nil {
		t.Fatal(err)
	}
	var nodes []*zone.NodeInfo
	for _, c := range top.Cities {
		nodes = append(append(nodes, c.Routers...), c.Caches...)
		for _, z := range c.Zones {
			for _, g := range z.Groups {
				nodes = append(nodes, g.Nodes...)
			}
		}
	}
	if err := pki.Issue(dir, dir, top, nodes, peer.Request{Now: now, Validity: 99 * 365 * 24 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	authorities.dirs[key] = dir
	return dir
}

// bubble runs a world in simulated time.
func bubble(t *testing.T, seed uint64, p plan, f func(t *testing.T, w *world)) {
	t.Helper()
	if exactChild() {
		cryptotest.SetGlobalRandom(t, seed)
	}
	dir := pkiFor(t, &p)
	log := slog.New(slog.DiscardHandler)
	if os.Getenv(logEnv) != "" {
		log = verbose()
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed, p, dir, log)
		f(t, w)
		w.close()
	})
}

// worldTest is the name of the simulation's test, which its children run.
const worldTest = "TestWorldKeepsItsPromises"

// Environment of a process that runs a world.
const (
	logEnv   = "MQROUTER_SIM_LOG"   // not empty: the nodes log to the standard error
	traceEnv = "MQROUTER_SIM_TRACE" // a file that takes every event of the network
)

// TestWorldKeepsItsPromises is the simulation: a deployment, its clients, and the
// faults of a seed. Each world has a process of its own where that makes it
// replay exactly.
func TestWorldKeepsItsPromises(t *testing.T) {
	if exactChild() {
		simulate(t, *seedFlag)
		return
	}
	first, last := uint64(1), *seedsFlag
	if *seedFlag != 0 {
		first, last = *seedFlag, *seedFlag
	}
	for seed := first; seed <= last; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			if *seedFlag == 0 {
				t.Parallel()
			}
			output, passed, err := runExact(seed, *seedFlag != 0)
			switch {
			case errors.Is(err, errNotExact):
				t.Log(err)
				simulate(t, seed)
			case err != nil:
				t.Fatal(err)
			case !passed:
				t.Errorf("%s\nthe same again, with a log: go test ./cmd/mqrouter/internal/sim -run %s -v -seed %d", output, worldTest, seed)
			default:
				t.Log(output)
			}
		})
	}
}

// TestWorldReplaysExactly runs one world several times and compares every event
// of the network.
func TestWorldReplaysExactly(t *testing.T) {
	runs := 3
	if os.Getenv("MQROUTER_LONG") != "" {
		runs = 20
	}
	digest := regexp.MustCompile(`[0-9]+ events [0-9a-f]{16}`)
	seen := map[string]int{}
	for i := range runs {
		output, passed, err := runExact(11, false)
		if errors.Is(err, errNotExact) {
			t.Skip(err)
		}
		got := digest.FindString(output)
		if err != nil || !passed || got == "" {
			t.Fatalf("%v\n%s", err, output)
		}
		t.Logf("run %d: %s", i+1, got)
		seen[got]++
	}
	if len(seen) > 1 {
		t.Errorf("%d runs of one seed went %d ways", runs, len(seen))
	}
}

// healed is how long the last message may take once all faults are over: dialling
// anew within half a second, a health deadline of ten, and a delivery that was
// lost with its consumer's connection, which comes back after ten more.
const healed = 25 * time.Second

// mostGoroutines is twice what the nodes and clients of a world have while all
// their connections stand.
const mostGoroutines = 6000

func simulate(t *testing.T, seed uint64) {
	p := threeCities()
	if seed%3 == 1 {
		p.relay()
	}
	bubble(t, seed, p, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(w.ctx)
		w.consumers(w.ctx, 0.05)
		w.readCaches(w.ctx)
		var pubs sync.WaitGroup
		x := newTrouble(w)
		pause := 500 * time.Millisecond
		if x.long {
			pause = 3 * time.Second
		}
		for _, z := range []zone.Zone{"rz1", "rz2", "rz3", "rz4"} {
			pubs.Go(func() {
				if p := w.newProducer(ctx, z, "p-"+string(z)); p != nil {
					p.traffic(ctx, pause)
				}
			})
		}
		time.Sleep(time.Second)
		x.rage(12 * time.Second)
		time.Sleep(time.Second)
		cancel()
		pubs.Wait()
		took := w.quiet(2 * time.Minute)
		w.check()
		if took > healed {
			t.Errorf("the last message came %v after everything was healed, at most %v is right", took, healed)
		}
		if x.crowd > mostGoroutines && exactChild() { // else other worlds are in this process
			t.Errorf("I8: there were %d goroutines, at most %d are right", x.crowd, mostGoroutines)
		}
		events, digest := w.traced()
		t.Logf("seed %d: %d published, %d delivered, quiet after %v, at most %d goroutines, %d events %016x, %+v", seed, len(w.hist.pubs), len(w.hist.got), took, x.crowd, events, digest, w.net.Stats())
		if t.Failed() {
			for _, text := range x.told {
				t.Log(text)
			}
		}
	})
}
