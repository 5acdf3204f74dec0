package masters

import (
	"slices"
	"sync"

	"github.com/mqrouter/mqrouter/zone"
)

// Hint is what a living node says of itself: it leads the group in the epoch.
type Hint struct {
	Group zone.Group
	Node  zone.Node
	Epoch uint64 // of the coordinator's term; at least 1
}

// maxGroups bounds the groups of which refusals are remembered: more than a city has.
// Beyond it any is forgotten, which costs an attempt.
const maxGroups = 4096

// Directory knows what was heard of masters.
type Directory struct {
	hints func() []Hint

	mu    sync.Mutex
	heard map[zone.Group]word // guarded by mu
}

// word is what refusals have said of a group: the newest of them.
type word struct {
	epoch  uint64
	master zone.Node // "" = nobody that they knew
	not    zone.Node // who refused last
	denied zone.Node // who was taken for the master in epoch and said itself that it is not
}

// New returns a directory. hints returns what living nodes say of themselves, in any
// order, and does not block; nil means never anything.
func New(hints func() []Hint) *Directory {
	if hints == nil {
		hints = func() []Hint { return nil }
	}
	return &Directory{hints: hints, heard: map[zone.Group]word{}}
}

// Master returns who leads the group, as far as is known, and in which epoch. node is
// empty when nobody is known to. In a group of one node that one does, in epoch 0.
func (d *Directory) Master(g *zone.GroupInfo) (node zone.Node, epoch uint64) {
	if len(g.Nodes) == 1 {
		return g.Nodes[0].Name, 0
	}
	node, epoch, _ = d.known(g)
	return node, epoch
}

// Order returns the members of a group in the order in which to try them: the master
// as far as it is known, then the others, beginning behind the one that refused last.
// The caller does not change the slice.
func (d *Directory) Order(g *zone.GroupInfo) []*zone.NodeInfo {
	if len(g.Nodes) < 2 {
		return g.Nodes
	}
	master, _, not := d.known(g)
	from := 0
	if i := slices.IndexFunc(g.Nodes, func(n *zone.NodeInfo) bool { return n.Name == not }); i >= 0 {
		from = i + 1
	}
	list := make([]*zone.NodeInfo, 0, len(g.Nodes))
	if m := g.Member(master); m != nil {
		list = append(list, m)
	}
	for i := range g.Nodes {
		if n := g.Nodes[(from+i)%len(g.Nodes)]; n.Name != master {
			list = append(list, n)
		}
	}
	return list
}

// known weighs hints and refusals.
func (d *Directory) known(g *zone.GroupInfo) (master zone.Node, epoch uint64, not zone.Node) {
	d.mu.Lock()
	w := d.heard[g.Name]
	d.mu.Unlock()
	var best Hint
	for _, h := range d.hints() {
		if h.Group == g.Name && g.Member(h.Node) != nil && (h.Epoch > best.Epoch || h.Epoch == best.Epoch && h.Node < best.Node) {
			best = h
		}
	}
	switch {
	case best.Epoch > w.epoch:
		return best.Node, best.Epoch, ""
	case w.master == "" && best.Epoch == w.epoch && best.Node != w.not && best.Node != w.denied:
		return best.Node, best.Epoch, w.not
	case g.Member(w.master) == nil: // it left the topology
		return "", w.epoch, w.not
	}
	return w.master, w.epoch, w.not
}

// Refused notes that a member of the group, asked as its master, said that it is not:
// master is, in epoch, as far as it knows. An older epoch than one heard before says
// nothing new. It reports whether another node is worth asking at once: the master
// known now is not the one that was asked.
func (d *Directory) Refused(g *zone.GroupInfo, asked, master zone.Node, epoch uint64) (again bool) {
	if len(g.Nodes) < 2 || g.Member(asked) == nil {
		return false
	}
	if master == asked || g.Member(master) == nil {
		master = ""
	}
	d.mu.Lock()
	w, known := d.heard[g.Name]
	if !known && len(d.heard) >= maxGroups {
		for name := range d.heard {
			delete(d.heard, name)
			break
		}
	}
	switch {
	case epoch > w.epoch:
		w = word{epoch: epoch, master: master}
	case w.master == asked: // whatever it knows, it knows about itself
		w.master, w.denied = "", asked
	case epoch == w.epoch && master != "" && master != w.denied:
		w.master = master
	}
	w.not = asked
	d.heard[g.Name] = w
	d.mu.Unlock()
	now, _, _ := d.known(g)
	return now != "" && now != asked
}
