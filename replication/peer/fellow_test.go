package peer

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// A group's log holds everything that the group ever took: it is given to the nodes
// that the topology names as its members, and to nobody else.
func TestOnlyMembersOfTheGroupFollowItsLog(t *testing.T) {
	member := func(id Identity) bool { return id == broker("d1") }
	cases := []struct {
		name    string
		group   zone.Group // that the dialling node says it belongs to
		own     zone.Group // the listening node's
		fellow  func(Identity) bool
		welcome bool
	}{
		{"a member", "g", "g", member, true},
		{"a node that the topology has elsewhere", "g", "g", func(Identity) bool { return false }, false},
		{"a member of another group", "h", "g", member, false},
		{"a node without group", "", "g", member, false},
		{"where there is no group", "", "", member, false},
		{"where nobody is asked", "g", "g", nil, false},
	}
	for i := range 2 * len(cases) {
		c, asks := cases[i/2], []wire.Type{wire.TypeFollow, wire.TypeFetch}[i%2]
		t.Run(c.name+", "+asks.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, func(ctx context.Context, s *Session) {
					if _, err := s.Recv(ctx); err == nil {
						_ = s.Send(ctx, wire.Frame{Type: wire.TypeLead})
					}
					<-s.Done()
				}, func(l, d *Options) { l.Group, d.Group, l.Fellow = c.own, c.group, c.fellow })
				s := p.open(t, 1)
				send(t, s, asks, "please")
				f := recv(t, s)
				r, err := wire.ParseRefuse(f.Payload)
				switch {
				case c.welcome && f.Type != wire.TypeLead:
					t.Errorf("a member is answered with %s", f.Type)
				case !c.welcome && (f.Type != wire.TypeRefuse || err != nil || r.Code != wire.CodeWrongIdentity):
					t.Errorf("answered with %s %+v, %v", f.Type, r, err)
				}
				p.close(t)
			})
		})
	}
}
