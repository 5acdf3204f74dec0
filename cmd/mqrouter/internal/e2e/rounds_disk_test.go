package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/faults"
)

// order is a blow by the layer in a member's binary, until it is healed.
func (a *arena) order(rnd *rand.Rand, what string, d time.Duration, o faults.Orders) blow {
	place, who := a.victim(rnd)
	give := func(v string, o faults.Orders) {
		if err := errors.Join(os.MkdirAll(a.data(v), 0o700), faults.Give(a.data(v), o)); err != nil {
			a.t.Fatal(err)
		}
	}
	return a.on(who, fmt.Sprintf("%s %s for %v", what, place, d), d,
		func(v string) { give(v, o) }, func(v string) { give(v, faults.Orders{}) })
}

func fullDisks(a *arena, rnd *rand.Rand) blow {
	b := a.order(rnd, "a full disk at", between(rnd, time.Second, 5*time.Second), faults.Orders{Full: true})
	b.disk = true
	return b
}

func slowDisk(a *arena, rnd *rand.Rand) blow {
	slow := time.Duration(5+rnd.IntN(300)) * time.Millisecond
	return a.order(rnd, fmt.Sprintf("each write and sync takes %v more at", slow), between(rnd, time.Second, 5*time.Second), faults.Orders{Slow: slow})
}

// brokenDisk fails syncs, writes or reads. What a node does not survive ends it, and
// it is started again when the disk is well.
func brokenDisk(a *arena, rnd *rand.Rand) blow {
	d, what, o := between(rnd, 100*time.Millisecond, 3*time.Second), "syncs fail at", faults.Orders{FailSync: true}
	switch rnd.IntN(3) {
	case 1:
		what, o = "writes fail at", faults.Orders{FailWrite: true}
	case 2:
		what, o = "reads fail at", faults.Orders{FailRead: true}
	}
	b := a.order(rnd, what, d, o)
	b.disk = true
	return b
}

// clockStep sets a clock and sets it right again within the time that a broker takes
// for believing it (timer.Proof), unless it starts meanwhile.
func clockStep(a *arena, rnd *rand.Rand) blow {
	step := time.Duration(1+rnd.IntN(3600)) * time.Second
	what := fmt.Sprintf("the clock is %v ahead at", step)
	if rnd.IntN(2) == 0 {
		what, step = fmt.Sprintf("the clock is %v behind at", step), -step
	}
	b := a.order(rnd, what, min(between(rnd, time.Second, 5*time.Second), 8*time.Second), faults.Orders{Clock: step})
	b.clock = true
	return b
}

// rottenOld flips a bit in a segment that is no longer written. Nobody looks there as
// long as nobody reads it, so its operator, who was told by the disk, has the store made
// anew. Half of the time the node runs meanwhile.
func rottenOld(a *arena, rnd *rand.Rand) blow {
	place, who := a.victim(rnd)
	runs, at, bit := rnd.IntN(2) == 0, rnd.Float64(), byte(1)<<rnd.IntN(8)
	b := a.on(who, "a flipped bit in an old segment of "+place+stillRuns(runs), between(rnd, 0, 2*time.Second), func(v string) {
		if !a.spared(v) {
			return
		}
		if !runs {
			a.kill(v)
			defer a.revive(v)
		}
		old := a.segments(v)
		slices.Sort(old)
		if old = old[:max(len(old)-1, 0)]; len(old) == 0 {
			a.said[len(a.said)-1] += ": it has none"
			return
		}
		n := min(int(at*float64(len(old))), len(old)-1)
		a.flip(v, old[n], at*float64(len(old))-float64(n), bit, 0)
	}, func(v string) {
		a.spare(v)
		a.kill(v)
		a.aside(v)
		a.begin(v)
	})
	b.rot = true
	return b
}

// rottenNew flips a bit in what was committed of the segment that is written. The node
// finds it when it starts again, at the latest; unless that segment has come to be an old
// one while the node ran on, which is for its operator again.
func rottenNew(a *arena, rnd *rand.Rand) blow {
	place, who := a.victim(rnd)
	runs, at, bit := rnd.IntN(2) == 0, rnd.Float64(), byte(1)<<rnd.IntN(8)
	var struck uint64                      // base of the segment
	rotten := func() bool { return false } // whether the bit is still flipped
	b := a.on(who, "a flipped bit in the newest segment of "+place+stillRuns(runs), between(rnd, 0, 2*time.Second), func(v string) {
		m, err := a.member(v)
		if err != nil {
			a.said[len(a.said)-1] += ": it does not answer"
			return
		}
		if !a.spared(v) {
			return
		}
		if !runs {
			a.kill(v)
			defer a.revive(v)
		}
		all := a.segments(v)
		if len(all) == 0 {
			a.said[len(a.said)-1] += ": it has none"
			return
		}
		struck = slices.Max(all)
		rotten = a.flip(v, struck, at, bit, m.Committed)
	}, func(v string) {
		a.spare(v)
		a.kill(v)
		if rotten() && struck < slices.Max(a.segments(v)) {
			a.aside(v)
		}
		a.begin(v)
	})
	b.rot = true
	return b
}

// others returns nil when somebody else than the member is in sync, as the master says.
// What is on one disk only is lost with it, and the group waits for an operator then.
func (a *arena) others(name string) error {
	m, err := a.member(a.master())
	switch {
	case err != nil:
		return err
	case m.Role != "master":
		return errors.New("no master answers")
	case !slices.ContainsFunc(m.InSync, func(n string) bool { return n != name }):
		return fmt.Errorf("in sync are %v", m.InSync)
	}
	return nil
}

// spared waits a moment for others. When none are there the blow is left out, which it
// says.
func (a *arena) spared(name string) bool {
	a.t.Helper()
	err := a.others(name)
	for till := time.Now().Add(10 * time.Second); err != nil && time.Now().Before(till); err = a.others(name) {
		hold(100 * time.Millisecond)
	}
	if err != nil {
		a.said[len(a.said)-1] += ": left out, " + err.Error()
	}
	return err == nil
}

// spare waits until a member with a damaged store can go. The set may have shrunk to it
// since the store was damaged, by another blow.
func (a *arena) spare(name string) {
	a.t.Helper()
	if a.others(name) == nil {
		return
	}
	a.net.heal()
	eventually(a.t, "others than "+name+" are in sync", 2*time.Minute, func() error { return a.others(name) })
}

func stillRuns(runs bool) string {
	if runs {
		return " while it runs"
	}
	return ""
}

// flip changes one bit of a member's segment, at a part of its length, below a position
// if that is not 0. The header, which is the member's own, is left alone. The func that it
// returns says whether the bit is still as it was changed to.
func (a *arena) flip(name string, base uint64, part float64, bit byte, below uint64) (rotten func() bool) {
	a.t.Helper()
	rotten = func() bool { return false }
	path := filepath.Join(a.data(name), "log", fmt.Sprintf("%016x.log", base))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		a.said[len(a.said)-1] += ": it is gone"
		return rotten
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		a.t.Fatal(err)
	}
	end := info.Size()
	if below > 0 {
		end = min(end, int64(below-min(base, below)))
	}
	if end <= segmentHead {
		a.said[len(a.said)-1] += ": it is empty"
		return rotten
	}
	at := segmentHead + int64(part*float64(end-segmentHead))
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		a.t.Fatal(err)
	}
	b[0] ^= bit
	if _, err := f.WriteAt(b, at); err != nil {
		a.t.Fatal(err)
	}
	a.said[len(a.said)-1] += fmt.Sprintf(" at %d", base+uint64(at))
	return func() bool {
		all, err := os.ReadFile(path)
		return err == nil && int64(len(all)) > at && all[at] == b[0]
	}
}

// aside moves a member's store away, as the runbook says for a damaged one.
func (a *arena) aside(name string) {
	a.t.Helper()
	away := fmt.Sprintf("%s.damaged-%d", a.data(name), time.Now().UnixNano())
	if err := os.Rename(a.data(name), away); err != nil && !os.IsNotExist(err) {
		a.t.Fatal(err)
	}
	a.said = append(a.said, "the store of "+name+" was moved away")
}

var saysDamage = regexp.MustCompile(`corrupt at position \d+ in [0-9a-f]+\.log|META is damaged`)

// supervise starts a member that has ended, and has its store made anew when it says
// that this is damaged.
func (a *arena) supervise(name string) {
	p := a.nodes[name].running
	if saysDamage.MatchString(p.output()) {
		a.aside(name)
	} else {
		a.said = append(a.said, name+" ended and was started again")
	}
	a.begin(name)
}
