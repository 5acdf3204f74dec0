package sim

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/internal/simnet"
	"github.com/mqrouter/mqrouter/zone"
)

// trouble makes the seed's faults, on the goroutine of the test.
type trouble struct {
	w      *world
	rng    *rand.Rand
	active []ending
	copies map[zone.Node]backup
	wipes  bool // this world's stores may be wiped or replaced by older copies
	long   bool // this world has a cut that is longer than every timer
	told   []string
	crowd  int // most goroutines seen
}

// ending is a fault that is to end.
type ending struct {
	at   time.Duration
	what string
	end  func()
}

// backup is a copy of a broker's disk.
type backup struct {
	mem *disk.Mem
	at  time.Duration
}

// most is how many faults there are at a time.
const most = 4

func newTrouble(w *world) *trouble {
	x := &trouble{w: w, rng: w.rng("trouble"), copies: map[zone.Node]backup{}}
	x.wipes, x.long = x.rng.IntN(3) == 0, x.rng.IntN(8) == 0
	return x
}

// rage makes trouble for a time and ends it all.
func (x *trouble) rage(d time.Duration) {
	until := x.w.now() + d
	for x.w.now() < until {
		time.Sleep(time.Duration(x.rng.Int64N(int64(2 * time.Second))))
		x.expire()
		x.revive()
		x.crowd = max(x.crowd, runtime.NumGoroutine())
		if len(x.active) < most {
			x.step()
		}
	}
	if x.long {
		x.longCut()
	}
	x.heal()
}

// note keeps what was done, for the reader of a failure.
func (x *trouble) note(format string, args ...any) {
	text := fmt.Sprintf("%v: ", x.w.now().Round(time.Millisecond)) + fmt.Sprintf(format, args...)
	x.told = append(x.told, text)
	x.w.log.Warn("TROUBLE", "what", text)
}

// during makes a fault for a time.
func (x *trouble) during(longest time.Duration, what string, end func()) {
	d := time.Duration(x.rng.Int64N(int64(longest))) + 50*time.Millisecond
	x.note("%s for %v", what, d.Round(time.Millisecond))
	x.active = append(x.active, ending{x.w.now() + d, what, end})
}

// expire ends faults whose time is over.
func (x *trouble) expire() {
	var left []ending
	for _, a := range x.active {
		if a.at <= x.w.now() {
			a.end()
			continue
		}
		left = append(left, a)
	}
	x.active = left
}

// revive starts nodes that ended by themselves, as systemd does.
func (x *trouble) revive() {
	for _, name := range x.w.names {
		m := x.w.nodes[name]
		if !m.ended() {
			continue
		}
		err := m.run.err
		if !m.sick(err) {
			x.w.t.Errorf("%s ended by itself: %v", name, err)
		}
		x.note("%s ended: %v", name, err)
		m.run = nil
		m.replace(m.mem.Clone())
		m.start()
	}
}

// heal ends every fault and starts what is down.
func (x *trouble) heal() {
	for _, a := range x.active {
		a.end()
	}
	x.active = nil
	x.w.sky.fine()
	for _, name := range x.w.names {
		m := x.w.nodes[name]
		m.faulty.Set(nil)
		m.mem.SetLimit(0)
		if s := x.w.caches[m.info.City.Name]; s != nil {
			s.setAway(false)
		}
		x.revive()
		if m.run == nil {
			m.start()
		}
	}
	x.note("healed")
}

// step does one thing.
func (x *trouble) step() {
	switch k := x.rng.IntN(24); {
	case k < 3:
		x.cutWAN()
	case k < 6:
		x.badWAN()
	case k < 7:
		x.slowWAN()
	case k < 8:
		x.badLAN()
	case k < 10:
		x.cutHost()
	case k < 12:
		x.reset()
	case k < 15:
		x.crash(zone.RoleBroker)
	case k < 17:
		x.crash(zone.RoleRouter)
	case k < 18:
		x.crash(zone.RoleCacheSync)
	case k < 20:
		x.badDisk()
	case k < 21:
		x.badCache()
	case k < 22:
		x.epoch()
	default:
		x.otherStore()
	}
}

func (x *trouble) pick(role zone.Role) *machine {
	var all []*machine
	for _, name := range x.w.names {
		if m := x.w.nodes[name]; m.info.Role == role {
			all = append(all, m)
		}
	}
	return all[x.rng.IntN(len(all))]
}

func (x *trouble) twoCities() (a, b string) {
	c := x.w.plan.cities
	i := x.rng.IntN(len(c))
	j := (i + 1 + x.rng.IntN(len(c)-1)) % len(c)
	return c[i].name, c[j].name
}

func (x *trouble) cutWAN() {
	a, b := x.twoCities()
	if x.rng.IntN(2) == 0 {
		x.w.sky.setWAN(a, b, cut)
		x.during(15*time.Second, fmt.Sprintf("cut %s -> %s", a, b), func() { x.w.sky.setWAN(a, b, nil) })
		return
	}
	x.w.sky.setBoth(a, b, cut)
	x.during(15*time.Second, fmt.Sprintf("cut %s <-> %s", a, b), func() { x.w.sky.setBoth(a, b, nil) })
}

// longCut outlasts every timer there is.
func (x *trouble) longCut() {
	a, b := x.twoCities()
	x.note("cut %s <-> %s for 150 s", a, b)
	x.w.sky.setBoth(a, b, cut)
	for range 150 {
		time.Sleep(time.Second)
		x.expire()
		x.revive()
	}
}

func (x *trouble) badWAN() {
	a, b := x.twoCities()
	bad := simnet.Path{
		Delay: time.Duration(5+x.rng.IntN(150)) * time.Millisecond, Jitter: time.Duration(1+x.rng.IntN(30)) * time.Millisecond,
		Loss: x.rng.Float64() * x.rng.Float64() * 0.4, Repeat: x.rng.Float64() * 0.1, Overrun: x.rng.Float64() * 0.2,
	}
	x.w.sky.setBoth(a, b, func(p *simnet.Path) { *p = bad })
	x.during(15*time.Second, fmt.Sprintf("bad weather %s <-> %s %+v", a, b, bad), func() { x.w.sky.setBoth(a, b, nil) })
}

func (x *trouble) slowWAN() {
	a, b := x.twoCities()
	rate := float64(1000 * (1 + x.rng.IntN(20)))
	x.w.sky.setWAN(a, b, func(p *simnet.Path) { p.Rate = rate })
	x.during(15*time.Second, fmt.Sprintf("%.0f bytes/s %s -> %s", rate, a, b), func() { x.w.sky.setWAN(a, b, nil) })
}

func (x *trouble) badLAN() {
	c := x.w.plan.cities[x.rng.IntN(len(x.w.plan.cities))].name
	bad := simnet.Path{Delay: time.Duration(1+x.rng.IntN(20)) * time.Millisecond, Jitter: time.Millisecond, Loss: x.rng.Float64() * 0.1}
	x.w.sky.setLAN(c, func(p *simnet.Path) { *p = bad })
	x.during(10*time.Second, fmt.Sprintf("bad weather in %s %+v", c, bad), func() { x.w.sky.setLAN(c, nil) })
}

func (x *trouble) cutHost() {
	name := string(x.w.names[x.rng.IntN(len(x.w.names))])
	h := hostWeather{in: x.rng.IntN(2) == 0, out: x.rng.IntN(2) == 0}
	if x.rng.IntN(4) == 0 {
		h = hostWeather{rate: float64(1000 * (1 + x.rng.IntN(10)))}
	}
	x.w.sky.setHost(name, func(p *hostWeather) { *p = h })
	x.during(12*time.Second, fmt.Sprintf("host %s %+v", name, h), func() { x.w.sky.setHost(name, nil) })
}

func (x *trouble) reset() {
	a, b := x.w.nodes[x.w.names[x.rng.IntN(len(x.w.names))]], x.w.nodes[x.w.names[x.rng.IntN(len(x.w.names))]]
	if a.run == nil || b.run == nil || a == b {
		return
	}
	x.note("reset %s and %s", a.info.Name, b.info.Name)
	x.w.net.Reset(a.run.host, b.run.host)
}

func (x *trouble) crash(role zone.Role) {
	m := x.pick(role)
	if m.run == nil {
		return
	}
	power := x.rng.IntN(2) == 0
	x.crashFor(m, power)
}

func (x *trouble) crashFor(m *machine, power bool) {
	m.crash(x.rng, power)
	x.during(8*time.Second, fmt.Sprintf("crash of %s, power %v", m.info.Name, power), func() {
		if m.run == nil {
			m.start()
		}
	})
}

// badDisk makes a disk full, slow, or sick at one sync.
func (x *trouble) badDisk() {
	m := x.pick(zone.RoleBroker)
	switch x.rng.IntN(3) {
	case 0:
		mem := m.mem
		mem.SetLimit(mem.Used() + int64(x.rng.IntN(64<<10)))
		x.during(10*time.Second, fmt.Sprintf("full disk of %s", m.info.Name), func() { mem.SetLimit(0); m.mem.SetLimit(0) })
	case 1:
		d := time.Duration(1+x.rng.IntN(300)) * time.Millisecond
		faulty := m.faulty
		faulty.Set(func(op disk.Op, _ string) error {
			if op == disk.OpSync {
				time.Sleep(d)
			}
			return nil
		})
		x.during(10*time.Second, fmt.Sprintf("disk of %s takes %v", m.info.Name, d), func() { faulty.Set(nil) })
	default:
		faulty := m.faulty
		var once sync.Once
		faulty.Set(func(op disk.Op, _ string) (err error) {
			if op == disk.OpSync {
				once.Do(func() { err = errSick })
			}
			return err
		})
		// The log stops then, until somebody looks at the disk and starts the broker.
		run := m.run
		x.during(8*time.Second, fmt.Sprintf("a sync of %s fails", m.info.Name), func() {
			faulty.Set(nil)
			if m.run != nil && m.run == run {
				m.crash(x.rng, false)
				m.start()
			}
		})
	}
}

func (x *trouble) badCache() {
	c := x.w.top.Cities[x.rng.IntN(len(x.w.top.Cities))]
	s := x.w.caches[c.Name]
	if s == nil {
		return
	}
	switch n := s.steps(); x.rng.IntN(3) {
	case 0:
		s.setAway(true)
		x.during(5*time.Second, fmt.Sprintf("the cache of %s is away", c.Name), func() { s.setAway(false) })
	case 1:
		x.note("the cache of %s is emptied", c.Name)
		x.fallBack(s, 0)
	default:
		keep := 0
		if n > 0 {
			keep = max(n-1-x.rng.IntN(20), 0)
		}
		x.note("the cache of %s falls back from %d steps to %d", c.Name, n, keep)
		x.fallBack(s, keep)
	}
}

func (x *trouble) fallBack(s *store, keep int) {
	if err := s.fallBack(keep); err != nil {
		x.w.t.Errorf("the cache does not fall back: %v", err)
	}
}

// epoch gives every node the next topology, each at its own time.
func (x *trouble) epoch() {
	x.w.plan.epoch++
	e := int64(x.w.plan.epoch)
	x.note("epoch %d", e)
	for _, name := range x.w.names {
		m := x.w.nodes[name]
		d := time.Duration(x.rng.Int64N(int64(6 * time.Second)))
		x.active = append(x.active, ending{x.w.now() + d, "epoch", func() {
			m.epoch.Store(max(m.epoch.Load(), e))
			select {
			case m.files <- struct{}{}:
			default:
			}
		}})
	}
}

// otherStore makes a copy of a broker's disk, brings an older one back, or wipes
// the disk.
func (x *trouble) otherStore() {
	if !x.wipes {
		return
	}
	m := x.pick(zone.RoleBroker)
	c, have := x.copies[m.info.Name]
	switch {
	case !have:
		x.copies[m.info.Name] = backup{m.mem.Crash(x.rng), x.w.now()}
		x.note("copy of %s", m.info.Name)
	case m.run == nil:
	case x.rng.IntN(2) == 0:
		m.crash(x.rng, false)
		m.replace(c.mem.Clone())
		m.life.Add(1)
		x.w.hist.excuse(m.info.Zone.Name, c.at, fmt.Sprintf("the store was replaced by its copy of %v", c.at))
		x.during(8*time.Second, fmt.Sprintf("%s comes back as of %v", m.info.Name, c.at), m.start)
	default:
		m.crash(x.rng, false)
		m.replace(disk.NewMem())
		m.life.Add(1)
		x.w.hist.excuse(m.info.Zone.Name, 0, "the store was wiped")
		x.during(8*time.Second, fmt.Sprintf("%s is wiped", m.info.Name), m.start)
	}
}
