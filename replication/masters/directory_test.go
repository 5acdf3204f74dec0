package masters

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// group returns the group g of a topology whose nodes are named.
func group(t *testing.T, nodes ...string) *zone.GroupInfo {
	t.Helper()
	var b strings.Builder
	b.WriteString("{deployment: d, epoch: 1.1, cities: [{name: c, coordinator: {driver: consul}, zones: [{name: z, kind: CZone, groups: [{name: g, nodes: [")
	for i, n := range nodes {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString("{name: " + n + ", client: " + n + ":1, peer: " + n + ":2, gossip: " + n + ":3}")
	}
	b.WriteString("]}]}]}]}")
	top, err := zone.Parse([]byte(b.String()), "t.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return top.FindGroup("g")
}

func order(d *Directory, g *zone.GroupInfo) string {
	var names []string
	for _, n := range d.Order(g) {
		names = append(names, string(n.Name))
	}
	return strings.Join(names, " ")
}

// step is a refusal, or what gossip says from then on.
type step struct {
	asked, master zone.Node
	epoch         uint64
	hints         []Hint
}

func TestTheNewestWordCounts(t *testing.T) {
	hint := func(n zone.Node, epoch uint64) []Hint { return []Hint{{"g", n, epoch}} }
	for _, c := range []struct {
		name  string
		steps []step
		want  string // the order
	}{
		{"nothing is known", nil, "a b c"},
		{"gossip tells", []step{{hints: hint("b", 3)}}, "b a c"},
		{"the higher of two hints", []step{{hints: []Hint{{"g", "a", 2}, {"g", "c", 3}}}}, "c a b"},
		{"a hint of another group", []step{{hints: []Hint{{"h", "c", 9}}}}, "a b c"},
		{"a hint of who is no member", []step{{hints: hint("x", 9)}}, "a b c"},
		{"a refusal names a newer master than gossip", []step{{hints: hint("b", 3)}, {asked: "b", master: "c", epoch: 4}}, "c a b"},
		{"gossip is newer than a refusal", []step{{asked: "b", master: "c", epoch: 4}, {hints: hint("a", 5)}}, "a b c"},
		{"a refusal of an older epoch says nothing of the master", []step{{asked: "b", master: "c", epoch: 4}, {asked: "a", master: "b", epoch: 3}}, "c b a"},
		{"a hint whose node denies it", []step{{hints: hint("b", 3)}, {asked: "b", epoch: 3}}, "c a b"},
		{"nobody is master, one after the other is asked", []step{{asked: "a"}, {asked: "b"}}, "c a b"},
		{"and round", []step{{asked: "a"}, {asked: "b"}, {asked: "c"}}, "a b c"},
		{"the others name one that denies it", []step{{asked: "b", master: "a", epoch: 2}, {asked: "a", epoch: 2}, {asked: "b", master: "a", epoch: 2}}, "c a b"},
		{"until it is elected again", []step{{asked: "b", master: "a", epoch: 2}, {asked: "a", epoch: 2}, {asked: "b", master: "a", epoch: 3}}, "a c b"},
		{"a member that names itself names nobody", []step{{asked: "a", master: "a", epoch: 2}}, "b c a"},
		{"a master that left", []step{{asked: "a", master: "x", epoch: 2}}, "b c a"},
		{"one that is no member is not heard", []step{{asked: "x", master: "c", epoch: 2}}, "a b c"},
	} {
		var hints []Hint
		d, g := New(func() []Hint { return hints }), group(t, "a", "b", "c")
		for _, s := range c.steps {
			if s.hints != nil {
				hints = s.hints
			} else {
				d.Refused(g, s.asked, s.master, s.epoch)
			}
		}
		if got := order(d, g); got != c.want {
			t.Errorf("%s: tried in the order %s, want %s", c.name, got, c.want)
		}
	}
}

func TestEveryMemberIsReachedHoweverTheyAnswer(t *testing.T) {
	g := group(t, "a", "b", "c", "d", "e")
	names := []zone.Node{"", "a", "b", "c", "d", "e"}
	for seed := range len(names) * len(names) * 3 {
		d, asked := New(nil), map[zone.Node]bool{}
		for i := range 12 {
			n := d.Order(g)[0].Name
			asked[n] = true
			d.Refused(g, n, names[(seed+i*seed/7)%len(names)], uint64(seed%3)) // whatever it says
		}
		if len(asked) < len(g.Nodes)-1 { // one may be named to the end by all others, and then it is first
			t.Errorf("seed %d: only %v were asked", seed, asked)
		}
	}
}

func TestRefusedSaysWhetherToAskAnother(t *testing.T) {
	d, g := New(nil), group(t, "a", "b")
	if d.Refused(g, "a", "", 0) {
		t.Error("nobody is known, and another is to be asked at once")
	}
	if !d.Refused(g, "a", "b", 1) {
		t.Error("the master is known, and is not to be asked at once")
	}
	if n, epoch := d.Master(g); n != "b" || epoch != 1 {
		t.Errorf("master %s in epoch %d", n, epoch)
	}
	if d.Refused(g, "b", "", 1) {
		t.Error("the master denies it, and another is known")
	}
}

func TestAGroupOfOneNodeCostsNothing(t *testing.T) {
	d, g := New(func() []Hint { t.Error("gossip is asked"); return nil }), group(t, "a")
	if n := testing.AllocsPerRun(100, func() { d.Order(g) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if d.Refused(g, "a", "b", 7); len(d.heard) != 0 || order(d, g) != "a" {
		t.Error("a refusal of the only node is remembered")
	}
	if n, epoch := d.Master(g); n != "a" || epoch != 0 {
		t.Errorf("master %s in epoch %d", n, epoch)
	}
	if s := (&answers{}); d.Listen(s, g, "a") != wire.Stream(s) {
		t.Error("its session is another")
	}
}

func TestMemoryIsBounded(t *testing.T) {
	d, g := New(nil), *group(t, "a", "b")
	for i := range maxGroups + 100 {
		g.Name = zone.Group(strings.Repeat("x", i%40) + string(rune('0'+i)))
		d.Refused(&g, "a", "b", 1)
	}
	if len(d.heard) > maxGroups {
		t.Errorf("%d groups are remembered", len(d.heard))
	}
}

// answers is a stream that brings frames.
type answers struct {
	wire.Stream
	frames []wire.Frame
	err    error
}

func (a *answers) Recv(context.Context) (wire.Frame, error) {
	if len(a.frames) == 0 {
		return wire.Frame{}, a.err
	}
	f := a.frames[0]
	a.frames = a.frames[1:]
	return f, nil
}

func TestRefusalIsHeardOnItsWay(t *testing.T) {
	first := &wire.Frame{Type: wire.TypeOpen, Session: 7, Class: zone.ClassBulk}
	refusal := Refusal(first, "c", 4, "not here")
	if refusal.Session != 7 || refusal.Class != zone.ClassBulk || refusal.Type != wire.TypeRefuse {
		t.Errorf("%+v", refusal)
	}
	held := wire.Refuse{Code: wire.CodeHeld, Master: "c", Epoch: 4}
	for _, c := range []struct {
		name string
		s    answers
		want string
	}{
		{"a refusal", answers{frames: []wire.Frame{refusal}}, "c b a"},
		{"the end of the session", answers{err: &wire.ClosedError{Code: wire.CodeNotMaster}}, "b c a"},
		{"another refusal", answers{frames: []wire.Frame{{Type: wire.TypeRefuse, Payload: held.Append(nil)}}}, "a b c"},
		{"a refusal after an answer", answers{frames: []wire.Frame{{Type: wire.TypeAck}, refusal}}, "a b c"},
		{"garbage", answers{frames: []wire.Frame{{Type: wire.TypeRefuse, Payload: []byte{1}}}}, "a b c"},
	} {
		d, g := New(nil), group(t, "a", "b", "c")
		frames := slices.Clone(c.s.frames)
		s := d.Listen(&c.s, g, "a")
		for i := range 3 {
			f, err := s.Recv(t.Context())
			if i < len(frames) && (err != nil || f.Type != frames[i].Type) || i >= len(frames) && err != c.s.err { //nolint:errorlint // the very same
				t.Errorf("%s: frame %d is %v, %v", c.name, i, f.Type, err)
			}
		}
		if got := order(d, g); got != c.want {
			t.Errorf("%s: tried in the order %s, want %s", c.name, got, c.want)
		}
	}
}
