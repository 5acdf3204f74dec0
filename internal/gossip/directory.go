package gossip

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/memberlist"

	"github.com/mqrouter/mqrouter/zone"
)

const (
	maxName    = 200   // bytes of a node's name
	maxMembers = 16384 // members a pool remembers; further ones are refused and counted as malformed
)

// Member is a living node of the pool.
type Member struct {
	Name zone.Node
	Addr netip.AddrPort // gossip address
	Self bool
	Meta
}

// splitName takes "<node>~<start>" apart.
func splitName(full string) (node zone.Node, start uint64, ok bool) {
	name, hex, found := strings.Cut(full, "~")
	if !found || name == "" || len(name) > maxName || len(hex) > 16 {
		return "", 0, false
	}
	start, err := strconv.ParseUint(hex, 16, 64)
	return zone.Node(name), start, err == nil
}

func joinName(node zone.Node, start uint64) string {
	return string(node) + "~" + strconv.FormatUint(start, 16)
}

// directory is what memberlist's delegates write and the pool reads. The
// delegates are called with memberlist's lock held, so nothing here blocks.
type directory struct {
	self    string // full name
	node    zone.Node
	stats   *counters
	changed chan struct{} // capacity 1: a signal that waits is enough
	deaf    atomic.Bool   // set at Close
	meta    atomic.Pointer[[]byte]

	mu      sync.Mutex
	members map[string]Member // by full name; guarded by mu
}

var (
	_ memberlist.Delegate      = (*directory)(nil)
	_ memberlist.EventDelegate = (*directory)(nil)
	_ memberlist.AliveDelegate = (*directory)(nil)
)

// list returns the newest living start of each node, by name.
func (d *directory) list() []Member {
	d.mu.Lock()
	newest := make(map[zone.Node]Member, len(d.members))
	for _, m := range d.members {
		if old, ok := newest[m.Name]; !ok || m.Start > old.Start {
			newest[m.Name] = m
		}
	}
	d.mu.Unlock()
	all := make([]Member, 0, len(newest))
	for _, m := range newest {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// addresses returns the gossip addresses of all living members.
func (d *directory) addresses() map[netip.AddrPort]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make(map[netip.AddrPort]bool, len(d.members))
	for _, m := range d.members {
		all[m.Addr] = true
	}
	return all
}

func (d *directory) signal() {
	select {
	case d.changed <- struct{}{}:
	default: // one signal already waits
	}
}

// member reads a node as memberlist gives it.
func (d *directory) member(n *memberlist.Node) (Member, error) {
	name, start, ok := splitName(n.Name)
	if !ok {
		return Member{}, fmt.Errorf("gossip: malformed node name of %d bytes", len(n.Name))
	}
	meta, err := DecodeMeta(n.Meta)
	if err != nil {
		return Member{}, err
	}
	if meta.Start != start {
		return Member{}, fmt.Errorf("%w: start differs from the name's", ErrMetaMalformed)
	}
	ip, ok := netip.AddrFromSlice(n.Addr)
	if !ok {
		return Member{}, errors.New("gossip: malformed node address")
	}
	return Member{
		Name: name, Addr: netip.AddrPortFrom(ip.Unmap(), n.Port),
		Self: n.Name == d.self, Meta: meta,
	}, nil
}

// NotifyAlive refuses nodes that this package did not name and describe.
func (d *directory) NotifyAlive(n *memberlist.Node) error {
	if d.deaf.Load() {
		return ErrClosed
	}
	if _, err := d.member(n); err != nil {
		d.stats.malformed.Add(1)
		return err
	}
	d.mu.Lock()
	_, known := d.members[n.Name]
	full := !known && len(d.members) >= maxMembers
	d.mu.Unlock()
	if full {
		d.stats.malformed.Add(1)
		return fmt.Errorf("gossip: more than %d members", maxMembers)
	}
	return nil
}

// NotifyJoin implements memberlist.EventDelegate.
func (d *directory) NotifyJoin(n *memberlist.Node) {
	m, ok := d.put(n)
	if ok && m.Name == d.node && !m.Self {
		d.stats.nameConflicts.Add(1)
	}
}

// NotifyUpdate implements memberlist.EventDelegate.
func (d *directory) NotifyUpdate(n *memberlist.Node) { d.put(n) }

func (d *directory) put(n *memberlist.Node) (Member, bool) {
	if d.deaf.Load() {
		return Member{}, false
	}
	m, err := d.member(n)
	if err != nil {
		d.stats.malformed.Add(1) // NotifyAlive has let nothing of the kind in
		return Member{}, false
	}
	d.mu.Lock()
	d.members[n.Name] = m
	d.mu.Unlock()
	d.signal()
	return m, true
}

// NotifyLeave implements memberlist.EventDelegate.
func (d *directory) NotifyLeave(n *memberlist.Node) {
	if d.deaf.Load() {
		return
	}
	d.mu.Lock()
	delete(d.members, n.Name)
	d.mu.Unlock()
	d.signal()
}

// NodeMeta implements memberlist.Delegate. Pool checks the size beforehand.
func (d *directory) NodeMeta(int) []byte { return *d.meta.Load() }

// NotifyMsg implements memberlist.Delegate: no user messages are sent.
func (d *directory) NotifyMsg([]byte) {}

// GetBroadcasts implements memberlist.Delegate: metadata is all that is told.
func (d *directory) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements memberlist.Delegate.
func (d *directory) LocalState(bool) []byte { return nil }

// MergeRemoteState implements memberlist.Delegate.
func (d *directory) MergeRemoteState([]byte, bool) {}
