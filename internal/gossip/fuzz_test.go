package gossip

import (
	"errors"
	"testing"

	"github.com/hashicorp/memberlist"
)

// FuzzNode has a pool learn of nodes of any name, address and metadata, as a
// packet of anybody with the key may claim them. It remembers those that are
// well formed and forgets each when it leaves.
func FuzzNode(f *testing.F) {
	m := sampleMeta()
	b, err := m.Encode(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(joinName("sh-a-1-0", m.Start), b, []byte{127, 0, 0, 1}, uint16(7000))
	f.Add("sh-a-1-0~ffffffffffffffffff", b, []byte{127, 0, 0, 1}, uint16(0))
	f.Add("~", []byte{}, []byte{1, 2, 3}, uint16(1))
	f.Add(joinName("sh-a-1-0", 1), b, make([]byte, 16), uint16(7000))
	f.Fuzz(func(t *testing.T, name string, meta, addr []byte, port uint16) {
		d := &directory{stats: &counters{}, changed: make(chan struct{}, 1), members: map[string]Member{}}
		n := &memberlist.Node{Name: name, Meta: meta, Addr: addr, Port: port}
		alive := d.NotifyAlive(n) == nil
		d.NotifyJoin(n)
		d.NotifyUpdate(n)
		for _, m := range d.list() {
			if !alive || m.Name == "" || len(m.Name) > maxName || !m.Addr.IsValid() {
				t.Errorf("remembers %+v of a node that is refused: %v", m, errors.New(name))
			}
		}
		d.NotifyLeave(n)
		if left := d.list(); len(left) != 0 {
			t.Errorf("still remembers %+v", left)
		}
	})
}
