package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"
)

// blow is a fault with its victim and its times drawn.
type blow struct {
	name   string
	strike func()
	last   time.Duration // until the next blow, or the heal
	heal   func()        // nil: healing the network is enough
	disk   bool          // a disk is broken: what it breaks is started again when it ends
	rot    bool          // a store is damaged: there is one such blow a round at most
	clock  bool
}

// kindOfBlow draws one.
type kindOfBlow struct {
	weight int
	draw   func(a *arena, rnd *rand.Rand) blow
}

// kindsOfBlows are what a round draws from. Whom a blow hits is drawn by place in the
// group, and is known when it strikes: who is master is not the seed's to say.
var kindsOfBlows = []kindOfBlow{
	{4, killed},
	{2, killedTwice},
	{1, stopped},
	{4, suspended},
	{3, cutOff},
	{3, cutOneWay},
	{2, cutPair},
	{2, voteless},
	{1, everybody},
	{2, sidesKilled},
	{2, citiesCut},
	{2, fullDisks},
	{2, slowDisk},
	{3, brokenDisk},
	{3, clockStep},
	{3, rottenOld},
	{3, rottenNew},
}

// draw returns the blows of a round, one or two.
func (a *arena) draw(rnd *rand.Rand) []blow {
	sum := 0
	for _, k := range kindsOfBlows {
		sum += k.weight
	}
	var blows []blow
	for range 1 + rnd.IntN(2) {
		at := rnd.IntN(sum)
		for _, k := range kindsOfBlows {
			if at -= k.weight; at < 0 {
				b := k.draw(a, rnd)
				if !b.rot || len(blows) == 0 || !blows[0].rot { // one sound copy has to stay
					blows = append(blows, b)
				}
				break
			}
		}
	}
	return blows
}

// between draws a time; in the long suite up to three times as long.
func between(rnd *rand.Rand, from, to time.Duration) time.Duration {
	if long() {
		to *= 3
	}
	return from + time.Duration(rnd.Int64N(int64(to-from))).Round(10*time.Millisecond)
}

// victim draws a member by its place: the master twice as often as each replica. The
// func says who that is when it is called.
func (a *arena) victim(rnd *rand.Rand) (place string, who func() string) {
	n := rnd.IntN(4)
	if n < 2 {
		return "the master", a.master
	}
	place = []string{"a replica", "the other replica"}[n-2]
	return place, func() string {
		master := max(slices.Index(members, a.master()), 0)
		return members[(master+n-1)%len(members)]
	}
}

// kill ends a node's process, if it has one.
func (a *arena) kill(name string) { a.nodes[name].running.kill() }

// revive starts a node that does not run.
func (a *arena) revive(name string) {
	select {
	case <-a.nodes[name].running.done:
		a.begin(name)
	default:
	}
}

func (a *arena) signal(name string, sig syscall.Signal) {
	p := a.nodes[name].running
	select {
	case <-p.done:
	default:
		syscall.Kill(p.cmd.Process.Pid, sig)
	}
}

// on is a blow against one member that is known when it strikes.
func (a *arena) on(who func() string, name string, last time.Duration, strike, heal func(victim string)) blow {
	victim := ""
	return blow{name: name, last: last,
		strike: func() {
			victim = who()
			a.said[len(a.said)-1] += " (" + victim + ")"
			strike(victim)
		},
		heal: func() {
			if heal != nil {
				heal(victim)
			}
		}}
}

func killed(a *arena, rnd *rand.Rand) blow {
	place, who := a.victim(rnd)
	down := between(rnd, 0, 4*time.Second)
	return a.on(who, fmt.Sprintf("SIGKILL of %s, down for %v", place, down), down, a.kill, a.revive)
}

// killedTwice kills a node, and again while it starts.
func killedTwice(a *arena, rnd *rand.Rand) blow {
	place, who := a.victim(rnd)
	alive := time.Duration(rnd.IntN(600)) * time.Millisecond
	return a.on(who, fmt.Sprintf("SIGKILL of %s, and again %v after its start", place, alive), 0, func(v string) {
		a.kill(v)
		a.begin(v)
		hold(alive)
		a.kill(v)
	}, a.revive)
}

func stopped(a *arena, rnd *rand.Rand) blow {
	place, who := a.victim(rnd)
	return a.on(who, "SIGTERM of "+place, between(rnd, 0, time.Second), func(v string) {
		a.signal(v, syscall.SIGTERM)
		select {
		case <-a.nodes[v].running.done:
		case <-time.After(30 * time.Second):
			a.t.Errorf("%s does not stop within 30 s of SIGTERM", v)
			a.kill(v)
		}
	}, a.revive)
}

func suspended(a *arena, rnd *rand.Rand) blow {
	place, who := a.victim(rnd)
	d := min(between(rnd, 200*time.Millisecond, 4*time.Second), 10*time.Second)
	return a.on(who, fmt.Sprintf("SIGSTOP of %s for %v", place, d), d,
		func(v string) {
			a.revive(v) // a blow before this one may have killed it: it freezes while it starts
			a.signal(v, syscall.SIGSTOP)
		}, func(v string) { a.signal(v, syscall.SIGCONT) })
}

// others are the members but one.
func others(of string) []string {
	return slices.DeleteFunc(slices.Clone(members), func(m string) bool { return m == of })
}

func cutOff(a *arena, rnd *rand.Rand) blow {
	place, who := a.victim(rnd)
	d := between(rnd, 500*time.Millisecond, 5*time.Second)
	return a.on(who, fmt.Sprintf("%s is cut off for %v", place, d), d, func(v string) { a.net.part([]string{v}, others(v)) }, nil)
}

func cutOneWay(a *arena, rnd *rand.Rand) blow {
	place, who := a.victim(rnd)
	d := between(rnd, 500*time.Millisecond, 5*time.Second)
	if rnd.IntN(2) == 0 {
		return a.on(who, fmt.Sprintf("nothing from %s reaches the other members for %v", place, d), d, func(v string) { a.net.lose([]string{v}, others(v)) }, nil)
	}
	return a.on(who, fmt.Sprintf("nothing from the other members reaches %s for %v", place, d), d, func(v string) { a.net.lose(others(v), []string{v}) }, nil)
}

func cutPair(a *arena, rnd *rand.Rand) blow {
	place, who := a.victim(rnd)
	d, which, both := between(rnd, 500*time.Millisecond, 5*time.Second), rnd.IntN(2), rnd.IntN(2) == 0
	text := "nothing passes between"
	if !both {
		text = "nothing passes, one way, between"
	}
	return a.on(who, fmt.Sprintf("%s %s and one other member for %v", text, place, d), d, func(v string) {
		o := others(v)[which]
		a.net.lose([]string{v}, []string{o})
		if both {
			a.net.lose([]string{o}, []string{v})
		}
	}, nil)
}

// voteless takes the coordinator's majority away: two of its three voters.
func voteless(a *arena, rnd *rand.Rand) blow {
	if a.consul != nil {
		return withoutConsul(a, rnd)
	}
	stays, d := members[rnd.IntN(len(members))], between(rnd, 500*time.Millisecond, 4*time.Second)
	gone := others(stays)
	each := func(f func(string)) func() {
		return func() {
			for _, v := range gone {
				f(v)
			}
		}
	}
	if rnd.IntN(2) == 0 {
		return blow{name: fmt.Sprintf("SIGKILL of two voters, %v, for %v", gone, d), strike: each(a.kill), last: d, heal: each(a.revive)}
	}
	return blow{name: fmt.Sprintf("SIGSTOP of two voters, %v, for %v", gone, d), last: d,
		strike: each(func(v string) { a.signal(v, syscall.SIGSTOP) }), heal: each(func(v string) { a.signal(v, syscall.SIGCONT) })}
}

// withoutConsul stops all servers of Consul, or the one that a member asks, or kills the
// one that leads.
func withoutConsul(a *arena, rnd *rand.Rand) blow {
	d := between(rnd, 500*time.Millisecond, 4*time.Second)
	switch rnd.IntN(4) {
	case 0, 1:
		place, who := a.victim(rnd)
		agent := func(v string) *consulServer { return a.consul.servers[slices.Index(members, v)] }
		return a.on(who, fmt.Sprintf("SIGSTOP of the Consul server that %s asks for %v", place, d), d,
			func(v string) { agent(v).signal(syscall.SIGSTOP) }, func(v string) { agent(v).signal(syscall.SIGCONT) })
	case 2:
		return blow{name: fmt.Sprintf("SIGSTOP of Consul for %v", d), last: d,
			strike: func() { a.consul.signal(syscall.SIGSTOP) }, heal: func() { a.consul.signal(syscall.SIGCONT) }}
	}
	var victim *consulServer
	return blow{name: fmt.Sprintf("SIGKILL of Consul's leader, down for %v", d), last: d,
		strike: func() {
			victim = a.consul.leader()
			victim.running.kill()
		}, heal: func() { a.consul.up(victim) }}
}

// everybody is a city without power.
func everybody(a *arena, _ *rand.Rand) blow {
	each := func(f func(string)) func() {
		return func() {
			for _, v := range members {
				f(v)
			}
		}
	}
	return blow{name: "SIGKILL of the whole group", strike: each(a.kill), heal: each(a.revive)}
}

// sidesKilled kills what the group's flows pass and where they go.
func sidesKilled(a *arena, rnd *rand.Rand) blow {
	side, down := []string{"rt-a", "rt-b", "rz-b-1"}[rnd.IntN(3)], between(rnd, 0, 2*time.Second)
	return blow{name: fmt.Sprintf("SIGKILL of %s, down for %v", side, down), strike: func() { a.kill(side) }, last: down, heal: func() { a.revive(side) }}
}

func citiesCut(a *arena, rnd *rand.Rand) blow {
	d, from, to := between(rnd, 500*time.Millisecond, 5*time.Second), []string{"rt-a"}, []string{"rt-b"}
	if rnd.IntN(2) == 0 {
		from, to = to, from
	}
	if rnd.IntN(2) == 0 {
		return blow{name: fmt.Sprintf("nothing passes between the cities for %v", d), strike: func() { a.net.part(from, to) }, last: d}
	}
	return blow{name: fmt.Sprintf("nothing passes from %s to %s for %v", from[0], to[0], d), strike: func() { a.net.lose(from, to) }, last: d}
}

// dialler finds out which node has connected from a port of 127.0.0.1.
func (a *arena) dialler(port, at int) string {
	pids := map[string]int{}
	a.mu.Lock()
	for name, runs := range a.runs {
		pids[name] = runs[len(runs)-1].cmd.Process.Pid
	}
	a.mu.Unlock()
	return whoDialled(pids, port, at)
}
