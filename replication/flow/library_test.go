package flow

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// changes is a story of many small changes on the channel.
type changes struct {
	*world
	ch   record.FlowID
	size int // of the bodies, at least
	rng  *rand.Rand
	kind int // of the bodies' form; noise = none
	of   int // topics

	mu           sync.Mutex
	dictionaries map[zone.Group]int               // sent; guarded by mu
	last         []byte                           // content of the last one; guarded by mu
	packed       map[zone.Group]int               // batches with a dictionary; guarded by mu
	raw          map[zone.Group]int               // bytes of the records in batches; guarded by mu
	bytes        map[zone.Group]int               // of their payloads; guarded by mu
	change       func(leg Leg, f *wire.Frame)     // what happens to a frame on its way; guarded by mu
	got          map[zone.Group]map[uint64][]byte // what committed; guarded by mu
	wrong        int                              // committed twice with another content; guarded by mu
}

// noise is the kind of bodies that nothing makes smaller.
const noise = 1000

func changing(t *testing.T, lim Limits, fn func(c *changes)) {
	t.Helper()
	lim.sampleBytes = 18 << 10 // 160 batches of one change
	story(t, lim, func(w *world) {
		c := &changes{
			world: w, ch: w.all[2], size: 200, rng: rand.New(rand.NewPCG(3, 3)), of: 1,
			dictionaries: map[zone.Group]int{}, packed: map[zone.Group]int{}, raw: map[zone.Group]int{}, bytes: map[zone.Group]int{},
			got: map[zone.Group]map[uint64][]byte{},
		}
		w.watch = func(leg Leg, s wire.Stream) wire.Stream {
			return &watched{s, func(f *wire.Frame) { c.saw(leg, f) }}
		}
		w.src.compose = func(r *record.Record) {
			memberChange(c.rng, r, c.size)
			r.Topic = zone.Topic(fmt.Sprintf("topic-%d", c.rng.IntN(c.of)))
			if c.kind == noise {
				r.Body = r.Body[:0]
				for range 500 {
					r.Body = binary.LittleEndian.AppendUint64(r.Body, c.rng.Uint64())
				}
				return
			}
			for i, b := range r.Body { // another form, with the same redundancy
				r.Body[i] = b + byte(c.kind)
			}
		}
		for g, s := range w.sinks {
			c.got[g] = map[uint64][]byte{}
			s.seen = func(l *Landing) { c.committed(g, l) }
		}
		fn(c)
		c.compare()
	})
}

func (c *changes) saw(leg Leg, f *wire.Frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch f.Type {
	case wire.TypeDictionary:
		p, err := wire.ParseDictionary(f.Payload)
		if err != nil {
			c.t.Error(err)
		}
		c.dictionaries[leg.Group]++
		c.last = bytes.Clone(p.Content)
	case wire.TypeBatch:
		b, err := wire.ParseBatch(f.Payload)
		if err != nil {
			c.t.Error(err)
		}
		c.raw[leg.Group] += int(b.RawSize)
		c.bytes[leg.Group] += len(f.Payload)
		if b.Dictionary != 0 {
			c.packed[leg.Group]++
		}
	}
	if c.change != nil {
		c.change(leg, f)
	}
}

func (c *changes) committed(g zone.Group, l *Landing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, r := range l.Records {
		n := l.First + uint64(i)
		if old := c.got[g][n]; old != nil && !bytes.Equal(old, r) {
			c.wrong++
		}
		c.got[g][n] = r
	}
}

// compare has every record at every destination, as it was published.
func (c *changes) compare() {
	c.t.Helper()
	if !c.quiet(30 * time.Second) {
		c.t.Error("not everything settled")
	}
	c.src.mu.Lock()
	want := c.src.flows[c.ch].records
	c.src.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wrong > 0 {
		c.t.Errorf("%d numbers were committed with another content before", c.wrong)
	}
	for g, got := range c.got {
		for i, r := range want {
			if !bytes.Equal(got[uint64(i+1)], r) {
				c.t.Fatalf("%s: number %d is not what was published", g, i+1)
			}
		}
	}
}

// run publishes for a while, a record each millisecond.
func (c *changes) run(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Millisecond) {
		c.src.publish(c.ch, "ok", 0)
	}
}

// forget starts the counts anew.
func (c *changes) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.raw)
	clear(c.bytes)
	clear(c.packed)
	clear(c.dictionaries)
}

// bytesOf returns the payloads of batches in parts of their records' bytes, and the
// dictionaries and the batches with one that went to a group.
func (c *changes) bytesOf(g zone.Group) (part float64, dictionaries, packed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return float64(c.bytes[g]) / float64(max(c.raw[g], 1)), c.dictionaries[g], c.packed[g]
}

// refusals returns how many destinations have refused a session with a dictionary.
func (c *changes) refusals() int {
	lib := c.outbox.library
	lib.mu.Lock()
	defer lib.mu.Unlock()
	return len(lib.deaf)
}

func TestSmallChangesShareADictionary(t *testing.T) {
	changing(t, Limits{}, func(c *changes) {
		c.run(time.Second / 2)
		for _, g := range []zone.Group{"b", "c"} {
			if _, n, _ := c.bytesOf(g); n != 1 {
				t.Errorf("%s got %d dictionaries", g, n)
			}
		}
		c.forget()
		c.run(time.Second / 2)
		for _, g := range []zone.Group{"b", "c"} {
			part, n, packed := c.bytesOf(g)
			if part > 0.6 || n > 0 || packed < 450 {
				t.Errorf("%s: %.2f of the records' bytes are sent; %d dictionaries more, %d batches with it", g, part, n, packed)
			}
			t.Logf("%s: %.2f of the records' bytes are sent, in %d batches", g, part, packed)
		}
		if _, n, packed := c.bytesOf("a"); n+packed > 0 {
			t.Errorf("%d dictionaries, %d batches with one in the origin's own city", n, packed)
		}
		in := c.inbox["b"]
		if n := in.dicts.count(); n != 1 {
			t.Errorf("%d dictionaries are kept for a session that brought one", n)
		}
		time.Sleep(time.Minute) // idle, the session closes
		if n := in.dicts.count(); n != 0 {
			t.Errorf("%d dictionaries are kept for no session", n)
		}
	})
}

func TestOldDestinationGetsNoDictionary(t *testing.T) {
	changing(t, Limits{}, func(c *changes) {
		c.stopDest("c")
		c.lim.keepDictionaries = -1 // its Accept has the older form
		c.startDest("c")
		c.run(time.Second / 2)
		if _, n, packed := c.bytesOf("c"); n+packed > 0 {
			t.Errorf("%d dictionaries, %d batches with one", n, packed)
		}
		if _, n, packed := c.bytesOf("b"); n == 0 || packed == 0 {
			t.Errorf("the other destination got %d dictionaries and %d batches with one", n, packed)
		}
	})
}

func TestRefusedDictionaryCostsNothingButItself(t *testing.T) {
	for name, spoil := range map[string]func(f *wire.Frame){
		"garbled": func(f *wire.Frame) {
			if f.Type == wire.TypeDictionary {
				for i := 20; i < len(f.Payload); i++ {
					f.Payload[i] = 0xff
				}
			}
		},
		"another id": func(f *wire.Frame) {
			if f.Type == wire.TypeDictionary {
				f.Payload[0]++
				f.Payload[8]++
			}
		},
		"too large": func(f *wire.Frame) {
			if f.Type == wire.TypeDictionary {
				d, _ := wire.ParseDictionary(f.Payload)
				d.Content = append(d.Content, make([]byte, wire.MaxDictionary)...)
				f.Payload = d.Append(nil)
			}
		},
		"a frame that the peer does not know": func(f *wire.Frame) {
			if f.Type == wire.TypeDictionary {
				f.Type = 200
			}
		},
	} {
		changing(t, Limits{}, func(c *changes) {
			c.change = func(leg Leg, f *wire.Frame) {
				if leg.Group == "b" {
					spoil(f)
				}
			}
			c.run(time.Second / 2)
			if _, n, _ := c.bytesOf("b"); n != 1 {
				t.Errorf("%s: %d dictionaries were sent to who refused the first", name, n)
			}
			c.forget()
			c.run(time.Second / 5)
			if _, n, packed := c.bytesOf("b"); n+packed > 0 {
				t.Errorf("%s: %d dictionaries, %d batches with one", name, n, packed)
			}
			c.outbox.mu.Lock()
			for leg, l := range c.outbox.lanes {
				if l.rawOnly {
					t.Errorf("%s: %s gets nothing compressed any more", name, leg.Group)
				}
			}
			c.outbox.mu.Unlock()
			if _, _, packed := c.bytesOf("c"); packed < 150 {
				t.Errorf("%s: %d batches with a dictionary to who takes it", name, packed)
			}
			time.Sleep(deafRest)
			c.run(time.Second / 5)
			if _, n, _ := c.bytesOf("b"); n == 0 {
				t.Errorf("%s: not tried again", name)
			}
		})
	}
}

func TestDictionaryFollowsWhatRecordsLookLike(t *testing.T) {
	changing(t, Limits{}, func(c *changes) {
		c.run(time.Second / 2)
		_, n, _ := c.bytesOf("b")
		first := c.last
		c.kind = noise
		c.run((checks*checkEvery + 200) * time.Millisecond)
		c.forget()
		c.run(time.Second / 10)
		if _, _, packed := c.bytesOf("b"); n != 1 || packed > 0 {
			t.Errorf("%d batches with a dictionary that is of no use", packed)
		}
		c.kind = 7
		c.run(time.Second / 2)
		if _, _, packed := c.bytesOf("b"); packed > 0 {
			t.Error("a dictionary was made again at once")
		}
		time.Sleep(learnRest)
		c.run(time.Second / 2)
		c.forget()
		c.run(time.Second / 5)
		if part, _, packed := c.bytesOf("b"); packed < 150 || part > 0.6 || bytes.Equal(first, c.last) {
			t.Errorf("%d batches with the next dictionary, %.2f of their records' bytes", packed, part)
		}
	})
}

func TestDictionaryHoldsNothingOfRecordsThatMayNotGoEverywhere(t *testing.T) {
	changing(t, Limits{}, func(c *changes) {
		mark := []byte("account of a resident")
		compose, n := c.src.compose, 0
		c.src.compose = func(r *record.Record) {
			compose(r)
			if n++; n%2 == 0 {
				r.Residency = []zone.City{"A", "B", "C"}
				r.Body = append(bytes.Repeat(mark, 5), r.Body...)
			}
		}
		c.run(time.Second)
		if _, n, packed := c.bytesOf("b"); n != 1 || packed < 300 {
			t.Errorf("%d dictionaries, %d batches with it", n, packed)
		}
		if bytes.Contains(c.last, mark[:8]) {
			t.Error("a record that may enter A, B and C only is in what may go anywhere")
		}
	})
}

// TestDictionariesSurviveFaults has topics more than a session keeps dictionaries of,
// records that change their form, and ends that come and go.
func TestDictionariesSurviveFaults(t *testing.T) {
	for seed := range uint64(5) {
		changing(t, Limits{keepDictionaries: 2}, func(c *changes) {
			rng := rand.New(rand.NewPCG(seed, 5))
			c.of, c.size = 1+int(seed), 100+50*rng.IntN(10)
			for range 6 {
				c.run(time.Duration(200+rng.IntN(300)) * time.Millisecond)
				if n := c.refusals(); n > 0 {
					t.Errorf("seed %d: %d destinations refused what dictionaries were needed for", seed, n)
				}
				switch rng.IntN(5) {
				case 0:
					c.net.reset(0.7, rng.IntN(2) == 0)
				case 1:
					c.origin.kill()
					c.src.restart()
					c.startOrigin()
				case 2:
					c.stopDest("b")
					c.startDest("b")
				case 3:
					c.kind = rng.IntN(4)
				case 4:
					time.Sleep(learnRest)
				}
			}
			c.run(time.Second)
			part, n, packed := c.bytesOf("b")
			t.Logf("seed %d: %d topics, %d dictionaries, %d batches with one, %.2f of the bytes", seed, c.of, n, packed, part)
			if packed == 0 {
				t.Errorf("seed %d: no batch had a dictionary", seed)
			}
		})
		if t.Failed() {
			return
		}
	}
}
