package link

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestOneRightAddressIsEnough: of the two addresses that a router may have, what
// gossip says and what the topology says, either may be wrong, because nobody is
// there or because somebody else is. The link comes up all the same, one attempt
// later, and never with the wrong node.
func TestOneRightAddressIsEnough(t *testing.T) {
	for name, change := range map[string]func(p *Peer, stranger string){
		"both right":             func(*Peer, string) {},
		"first: nobody there":    func(p *Peer, _ string) { p.Addr, p.Alt = "10.9.9.9:1", p.Addr },
		"first: somebody else":   func(p *Peer, stranger string) { p.Addr, p.Alt = stranger, p.Addr },
		"first: no address":      func(p *Peer, _ string) { p.Addr, p.Alt = "nonsense", p.Addr },
		"second: nobody there":   func(p *Peer, _ string) { p.Alt = "10.9.9.9:1" },
		"second: somebody else":  func(p *Peer, stranger string) { p.Alt = stranger },
		"after a cut, they move": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 20*time.Millisecond)
				defer w.close()
				a := w.start("a", "amsterdam", 11, nil, nil)
				b := w.start("b", "berlin", 12, nil, nil)
				c := w.start("c", "cologne", 13, nil, nil)
				to := b.peer
				if change == nil {
					// Gossip begins to lie while the link is up: nothing happens until
					// it has to be dialled again.
					a.SetPeers([]Peer{to})
					w.until(time.Second, "link", up(a, b))
					before := statusOf(a, "b").Since
					to.Addr, to.Alt = c.peer.Addr, b.peer.Addr
					a.SetPeers([]Peer{to})
					time.Sleep(5 * time.Second)
					if s := statusOf(a, "b"); s.Since != before || s.State != StateUp {
						t.Fatalf("a wrong address disturbed a good link: %+v", s)
					}
					b.Manager.links[Key{"a", a.o.Classes[0]}].connections()[0].close(0, "")
					w.until(time.Second, "link lost", func() bool { return statusOf(a, "b").Since != before })
				} else {
					change(&to, c.peer.Addr)
					a.SetPeers([]Peer{to})
				}
				took := w.until(1500*time.Millisecond, "link", up(a, b))
				t.Logf("up after %v", took)
				if s := statusOf(a, "c"); s.State == StateUp {
					t.Errorf("a link with a node that was not meant: %+v", s)
				}
			})
		})
	}
}
