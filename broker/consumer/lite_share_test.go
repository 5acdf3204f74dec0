package consumer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// shared is a dispatcher of message groups that many clients share, all of which wait.
type shared struct {
	t       *testing.T
	seed    uint64
	d       *Dispatcher
	now     Instant
	keys    []uint64 // of the messages, by offset
	waiters map[string]*Waiter
}

func newShared(t *testing.T, clients int, keys ...uint64) *shared {
	p := NewProgress()
	p.Create("g", "t", liteQueue, 0)
	s := &shared{t: t, d: newChosen(0, p), now: 1, waiters: map[string]*Waiter{}}
	for i := range clients {
		name := fmt.Sprint("c", i)
		s.d.Choose(name, keys...)
		s.waiters[name] = s.d.WaitFor(name)
	}
	return s
}

func (s *shared) request(client string, most int) TakeRequest {
	return TakeRequest{Now: s.now, Max: most, Client: client, Invisible: time.Second, Key: func(_ uint16, o uint64) (uint64, Verdict) { return s.keys[o], Deliver }}
}

func (s *shared) publish(keys ...uint64) {
	s.keys = append(s.keys, keys...)
	s.d.Advance(liteQueue, uint64(len(s.keys)))
}

// woken returns who was woken and has not come, in order of their names.
func (s *shared) woken() (names []string) {
	for name, w := range s.waiters {
		if len(w.c) > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// come has a client that was woken look, as Receive does, and wait again.
func (s *shared) come(name string, most int) []Taken {
	w := s.waiters[name]
	s.waiters[name] = s.d.WaitFor(name)
	got, _ := s.d.Take(s.request(name, most), nil)
	if w != nil {
		w.Stop()
	}
	return got
}

// leave has a client wait no longer.
func (s *shared) leave(name string) {
	if w := s.waiters[name]; w != nil {
		w.Stop()
		delete(s.waiters, name)
	}
}

// check fails when something is ready and whoever has chosen it waits unwoken, or when
// the books of who has listed what are wrong.
func (s *shared) check() {
	s.t.Helper()
	d := s.d
	d.mu.Lock()
	defer d.mu.Unlock()
	for key, x := range d.order.lite.chosen {
		idle, comes := "", false
		for i, c := range x.list {
			if c.groups[key] != int32(i) {
				s.t.Fatalf("seed %d: %s stands at %d of %d, not at %d", s.seed, c.name, i, key, c.groups[key])
			}
			listed := slices.Contains(c.ready[c.first:], key)
			if int32(i) >= x.free && !listed {
				s.t.Fatalf("seed %d: %s has %d not listed", s.seed, c.name, key)
			}
			comes = comes || c.baton != nil && listed
			if len(c.line) > 0 && c.baton == nil {
				idle = c.name
			}
		}
		if d.isReady(key) && idle != "" && !comes {
			s.t.Fatalf("seed %d: %d is ready, %s waits for it, and nobody was woken", s.seed, key, idle)
		}
	}
}

// TestSharedLiteTopicWakesOne: of many that wait for a lite topic, a message wakes one,
// each in its turn, besides the one who sorts it; who does not come for it passes it on,
// and so does who has enough.
func TestSharedLiteTopicWakesOne(t *testing.T) {
	const clients, key = 100, 7
	s := newShared(t, clients, key)
	turns := map[string]int{}
	for range 5 * clients {
		s.publish(key)
		var got []Taken
		for rounds := 0; len(got) == 0; rounds++ {
			names := s.woken()
			if len(names) == 0 || len(names) > 2 || rounds > 2 {
				t.Fatalf("in round %d %v were woken", rounds, names)
			}
			for _, name := range names {
				if got = s.come(name, 1); len(got) > 0 {
					turns[name]++
					break
				}
			}
			s.check()
		}
		if err := s.d.Ack(s.now, liteQueue, got[0].Offset, got[0].Delivery); err != nil {
			t.Fatal(err)
		}
		for _, name := range s.woken() {
			if got := s.come(name, 1); len(got) > 0 {
				t.Fatalf("%s got %v", name, got)
			}
		}
		if names := s.woken(); len(names) > 0 {
			t.Fatalf("%v were woken for nothing", names)
		}
	}
	if len(turns) < clients/2 {
		t.Errorf("only %d of %d clients ever got one", len(turns), clients)
	}
	s.publish(key)
	s.d.Sort(s.request("nobody", 1))
	seen := map[string]bool{}
	for range 2 * clients { // each gives up
		for _, name := range s.woken() {
			seen[name] = true
			s.leave(name)
		}
		s.check()
	}
	if len(seen) != clients {
		t.Errorf("it was passed on to %d of %d", len(seen), clients)
	}
}

// TestNobodyWaitsForWhatIsReady lets clients that share lite topics wait, take, stop,
// choose and give up at random.
func TestNobodyWaitsForWhatIsReady(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(20, seed))
		const clients, keys = 6, 9
		s := newShared(t, clients, 1, 2, 3)
		s.seed = seed
		s.d.order.lite.leastStale = 1 + rng.IntN(4)
		var hands []Taken
		for range 400 {
			s.d.Sort(s.request("nobody", 1))
			name, key := fmt.Sprint("c", rng.IntN(clients)), 1+rng.Uint64N(keys)
			switch rng.IntN(9) {
			case 0, 1:
				for range 1 + rng.IntN(4) {
					s.publish(1 + rng.Uint64N(keys))
				}
			case 2, 3, 4: // who was woken comes; else the one that was drawn does
				if names := s.woken(); len(names) > 0 && rng.IntN(4) > 0 {
					name = names[rng.IntN(len(names))]
				}
				got := s.come(name, 1+rng.IntN(3))
				if hands = append(hands, got...); len(got) > 0 && rng.IntN(3) > 0 {
					s.leave(name) // it is busy with them
				}
			case 5:
				if len(hands) > 0 {
					i := rng.IntN(len(hands))
					_ = s.d.Ack(s.now, liteQueue, hands[i].Offset, hands[i].Delivery)
					hands = slices.Delete(hands, i, i+1)
				}
			case 6:
				s.d.Choose(name, key)
			case 7:
				s.d.Unchoose(name, key)
			case 8:
				s.leave(name)
				s.now = s.now.Add(time.Duration(rng.IntN(300)) * time.Millisecond)
				s.d.Expire(s.now)
			}
			s.check()
		}
	}
}

// TestChoosingAgainAndAgainCostsNoMemory: a client that never takes chooses and unchooses
// what is ready, and keeps something else that is. It gets both when it comes.
func TestChoosingAgainAndAgainCostsNoMemory(t *testing.T) {
	s := newShared(t, 1, 1)
	s.publish(1, 2)
	s.d.Sort(s.request("nobody", 1))
	for range 10_000 {
		s.d.Choose("c0", 2)
		s.d.Sort(s.request("nobody", 1))
		s.d.Unchoose("c0", 2)
	}
	s.d.Choose("c0", 2)
	s.d.Sort(s.request("nobody", 1))
	if c := s.d.order.lite.clients["c0"]; cap(c.ready) > 4*leastStale {
		t.Errorf("%d are listed, in room for %d", len(c.ready), cap(c.ready))
	}
	s.check()
	if got := s.come("c0", 10); len(got) != 2 {
		t.Errorf("it gets %v", got)
	}
}
