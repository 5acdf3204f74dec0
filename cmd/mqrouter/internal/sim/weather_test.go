package sim

import (
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/internal/simnet"
)

// weather is what the network is like at the moment.
type weather struct {
	mu    sync.Mutex
	wan   map[[2]string]simnet.Path // guarded by mu; from city to city
	lan   map[string]simnet.Path    // guarded by mu; inside a city
	hosts map[string]hostWeather    // guarded by mu; by name
}

// hostWeather is added to the paths from and to a host.
type hostWeather struct {
	in, out bool    // cut
	rate    float64 // bytes a second towards it; 0 = any
}

var (
	fineWAN = simnet.Path{Delay: 15 * time.Millisecond, Jitter: time.Millisecond}
	fineLAN = simnet.Path{Delay: 200 * time.Microsecond, Jitter: 50 * time.Microsecond}
)

func newWeather() *weather {
	s := &weather{}
	s.fine()
	return s
}

// fine ends all trouble.
func (s *weather) fine() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wan, s.lan, s.hosts = map[[2]string]simnet.Path{}, map[string]simnet.Path{}, map[string]hostWeather{}
}

// path is the path function of the network.
func (s *weather) path(from, to *simnet.Host) simnet.Path {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := fineLAN, false
	if a, b := from.Label(), to.Label(); a == b {
		if p, ok = s.lan[a]; !ok {
			p = fineLAN
		}
	} else if p, ok = s.wan[[2]string{a, b}]; !ok {
		p = fineWAN
	}
	if len(s.hosts) > 0 {
		f, t := s.hosts[from.Name()], s.hosts[to.Name()]
		p.Cut = p.Cut || f.out || t.in
		if t.rate > 0 {
			p.Rate = t.rate
		}
	}
	return p
}

// setWAN changes the way from one city to another; nil makes it fine.
func (s *weather) setWAN(from, to string, change func(*simnet.Path)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if change == nil {
		delete(s.wan, [2]string{from, to})
		return
	}
	p, ok := s.wan[[2]string{from, to}]
	if !ok {
		p = fineWAN
	}
	change(&p)
	s.wan[[2]string{from, to}] = p
}

// setBoth is setWAN in both directions.
func (s *weather) setBoth(a, b string, change func(*simnet.Path)) {
	s.setWAN(a, b, change)
	s.setWAN(b, a, change)
}

// setLAN changes the ways inside a city; nil makes them fine.
func (s *weather) setLAN(city string, change func(*simnet.Path)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if change == nil {
		delete(s.lan, city)
		return
	}
	p := fineLAN
	change(&p)
	s.lan[city] = p
}

// setHost changes the ways from and to a host; nil makes them fine.
func (s *weather) setHost(name string, change func(*hostWeather)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if change == nil {
		delete(s.hosts, name)
		return
	}
	h := s.hosts[name]
	change(&h)
	s.hosts[name] = h
}

func cut(p *simnet.Path) { p.Cut = true }
