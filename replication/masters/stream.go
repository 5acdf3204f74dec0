package masters

import (
	"context"
	"errors"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// Refusal answers the first frame of a session at a node that is not the master of its
// group: master is, in epoch; "" and 0 when the node does not know. text is for people.
func Refusal(first *wire.Frame, master zone.Node, epoch uint64, text string) wire.Frame {
	r := wire.Refuse{Code: wire.CodeNotMaster, Master: string(master), Epoch: epoch, Text: text}
	return wire.Frame{Type: wire.TypeRefuse, Session: first.Session, Class: first.Class, Payload: r.Append(nil)}
}

// Listen returns a session with a member of a group that tells the directory when the
// member refuses it as not being the master. The session is otherwise as it was; that
// of a group of one node is the same.
func (d *Directory) Listen(s wire.Stream, g *zone.GroupInfo, node zone.Node) wire.Stream {
	if len(g.Nodes) < 2 {
		return s
	}
	return &stream{Stream: s, d: d, group: g, node: node}
}

// stream looks at the first thing that comes back.
type stream struct {
	wire.Stream
	d     *Directory
	group *zone.GroupInfo
	node  zone.Node
	heard bool // only Recv's goroutine
}

// Recv implements wire.Stream.
func (s *stream) Recv(ctx context.Context) (wire.Frame, error) {
	f, err := s.Stream.Recv(ctx)
	if s.heard {
		return f, err
	}
	var closed *wire.ClosedError
	switch {
	case err == nil && f.Type == wire.TypeRefuse:
		s.heard = true
		if r, bad := wire.ParseRefuse(f.Payload); bad == nil && r.Code == wire.CodeNotMaster {
			s.d.Refused(s.group, s.node, zone.Node(r.Master), r.Epoch)
		}
	case err == nil:
		s.heard = true
	case errors.As(err, &closed) && closed.Code == wire.CodeNotMaster:
		s.heard = true
		s.d.Refused(s.group, s.node, "", 0)
	}
	return f, err
}

var _ wire.Stream = (*stream)(nil)
