package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/broadcast"
	"github.com/mqrouter/mqrouter/zone"
)

// published is an attempt of a client to publish.
type published struct {
	id     string
	topic  string
	from   zone.Zone
	city   zone.City
	to     []zone.Zone // where it is to land
	stream string
	seq    int    // in the stream
	order  string // messages of a stream with the same order are in it; "" = none is promised
	group  string // message group
	change *broadcast.Change

	begun, ended time.Duration
	acked        bool
	refused      bool // it was certainly not stored
	text         string
	excused      string // why it may be lost although it was acknowledged
}

// delivered is a message as a consumer got it.
type delivered struct {
	id      string
	topic   string
	zone    zone.Zone
	group   string
	broker  string // broker group that delivered it
	life    int64  // of its store; -1 = not known
	queue   int32
	offset  int64
	attempt int32
	acked   bool // its consumer then acknowledged it
	at      time.Duration
}

// history is what clients saw. Its methods are safe for concurrent use.
type history struct {
	w *world

	mu       sync.Mutex
	pubs     []*published              // guarded by mu; in the order of beginning
	byID     map[string]*published     // guarded by mu
	got      []*delivered              // guarded by mu; in the order of arrival
	first    map[arrival]time.Duration // guarded by mu; when a message came first
	landed   map[landing]place         // guarded by mu
	places   map[placeIn]string        // guarded by mu; which message has a place
	versions map[string]uint64         // guarded by mu; newest given out, by key
	seen     map[seenKey]seenVersion   // guarded by mu; what readers of caches saw last
	faults   []string                  // guarded by mu
	keys     []string                  // that change; set before anybody publishes
	groups   map[string]string         // the consumer group of each topic; set before anybody publishes
	levels   map[string]int            // guarded by mu; answers to publishes, by level
}

type arrival struct {
	id    string
	zone  zone.Zone
	group string
}

type landing struct {
	broker string
	life   int64
	topic  string
	id     string
}

type place struct {
	queue  int32
	offset int64
}

type placeIn struct {
	broker string
	life   int64
	topic  string
	place
}

type seenKey struct {
	city zone.City
	key  string
}

type seenVersion struct {
	version uint64
	at      time.Time
}

func newHistory(w *world) *history {
	return &history{
		w: w, byID: map[string]*published{}, first: map[arrival]time.Duration{}, landed: map[landing]place{},
		places: map[placeIn]string{}, versions: map[string]uint64{}, seen: map[seenKey]seenVersion{}, keys: []string{"m1", "m2", "m3", "m4", "m5", "m6"}, levels: map[string]int{},
		groups: map[string]string{"transfer": "transfer-credit", "orders": "orders-pack", "notes": "notes-read", "member": "member-watch", "rules": "rules-watch", "steps": "steps-work"},
	}
}

// fault notes that a promise is broken; mu is held.
func (h *history) fault(format string, args ...any) {
	if len(h.faults) < 50 {
		h.faults = append(h.faults, fmt.Sprintf("%v: ", h.w.now())+fmt.Sprintf(format, args...))
	}
}

func (h *history) begin(p *published) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p.begun = h.w.now()
	h.pubs = append(h.pubs, p)
	h.byID[p.id] = p
}

func (h *history) end(p *published, text string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p.ended, p.acked, p.refused, p.text = h.w.now(), err == nil, refused(err), text
	if !p.acked {
		return
	}
	level, _, _ := strings.Cut(text, " ")
	h.levels[level]++
	// L6: what the answer says is where the message truly is.
	want := fmt.Sprintf("level=origin zone=%s", p.to[0])
	switch {
	case p.change != nil:
		want = "level=origin channel=member"
	case len(p.to) > 1:
		want = "level=origin channel=" + p.topic
	case p.to[0] == p.from && p.topic != "transfer" && p.group == "":
		want = fmt.Sprintf("level=stored zone=%s", p.from)
	case p.to[0] == p.from:
		want = "" // at home in one of the zone's groups, which may be another one
	}
	if want != "" && text != want {
		h.fault("L6: %s from %s was answered with %q, want %q", p.id, p.from, text, want)
	}
}

func (h *history) deliver(d *delivered) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d.at = h.w.now()
	h.got = append(h.got, d)
	p := h.byID[d.id]
	if p == nil || p.topic != d.topic {
		h.fault("I1: %s got %q on %s, which nobody published there", d.group, d.id, d.topic)
		return
	}
	wanted := false
	for _, z := range p.to {
		wanted = wanted || z == d.zone
	}
	if !wanted {
		h.fault("I2: %s landed in zone %s, want %v", d.id, d.zone, p.to)
	}
	a := arrival{d.id, d.zone, d.group}
	if _, ok := h.first[a]; !ok {
		h.first[a] = d.at
	}
	if p.refused {
		h.fault("L6: %s was refused, and delivered nevertheless", d.id)
	}
	if d.life < 0 {
		return
	}
	at := place{d.queue, d.offset}
	l := landing{d.broker, d.life, d.topic, d.id}
	if old, ok := h.landed[l]; ok && old != at {
		h.fault("I2: %s landed twice in %s: queue %d offset %d, and queue %d offset %d", d.id, d.broker, old.queue, old.offset, at.queue, at.offset)
	}
	h.landed[l] = at
	in := placeIn{d.broker, d.life, d.topic, at}
	if old, ok := h.places[in]; ok && old != d.id {
		h.fault("I2: queue %d offset %d of %s in %s is %s and was %s", at.queue, at.offset, d.topic, d.broker, d.id, old)
	}
	h.places[in] = d.id
}

// change makes the next change of some key.
func (h *history) change(rng *rand.Rand) *broadcast.Change {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := h.keys[rng.IntN(len(h.keys))]
	h.versions[key]++
	c := &broadcast.Change{Op: broadcast.OpSet, Key: key, Version: h.versions[key], Value: fmt.Appendf(nil, "%s@%d", key, h.versions[key])}
	if rng.IntN(6) == 0 {
		c.Op, c.Value = broadcast.OpDelete, nil
	}
	return c
}

// read checks what a reader of a cache sees: never an older version than it saw,
// unless the cache fell back by itself, which it may take until its reader
// notices.
func (h *history) read(city zone.City, key string, e *broadcast.Entry, s *store) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !e.Found && !e.Deleted {
		return // a miss is filled from the source
	}
	k := seenKey{city, key}
	last := h.seen[k]
	_, moved := s.told()
	if e.Version < last.version && !moved.After(last.at) {
		h.fault("I6: the cache of %s went back from version %d of %s to %d", city, last.version, key, e.Version)
	}
	if e.Found && string(e.Value) != fmt.Sprintf("%s@%d", key, e.Version) {
		h.fault("I6: the cache of %s has %q as version %d of %s", city, e.Value, e.Version, key)
	}
	if e.Version >= last.version || moved.After(last.at) {
		h.seen[k] = seenVersion{e.Version, time.Now()}
	}
}

// excuse notes that what a zone has acknowledged since a time, and has not been
// delivered everywhere, is gone with its store.
func (h *history) excuse(from zone.Zone, since time.Duration, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.pubs {
		// An answer that is under way may tell of what the store had.
		if p.from == from && (p.ended == 0 || p.ended >= since) && p.excused == "" && len(h.missing(p)) > 0 {
			p.excused = why
		}
	}
}

// missing returns where a message has not been delivered; mu is held.
func (h *history) missing(p *published) []zone.Zone {
	var out []zone.Zone
	for _, z := range p.to {
		if _, ok := h.first[arrival{p.id, z, h.groups[p.topic]}]; !ok {
			out = append(out, z)
		}
	}
	return out
}

// open returns acknowledged messages that are not delivered everywhere and have
// no excuse.
func (h *history) open() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for _, p := range h.pubs {
		if !p.acked || p.excused != "" {
			continue
		}
		if m := h.missing(p); len(m) > 0 {
			out = append(out, fmt.Sprintf("I1: %s of %s from %s, acknowledged at %v, has not come to %v", p.id, p.topic, p.from, p.ended, m))
		}
	}
	return out
}

// broken returns which promises were broken so far.
func (h *history) broken() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string(nil), h.faults...)
}
