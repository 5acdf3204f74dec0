package consul

import (
	"context"
	"errors"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/zone"
)

// Alone notes in the group's term that the topology has this node as its only one, who
// is about to write what no term knows (see coordinator.Term.Alone). It is called before
// that, and returns nil when it is noted, now or by an earlier start, or when the group
// never had a term.
//
// When Consul cannot be asked the error is KindNoQuorum, and known says whether this
// node's memory has a term of the group: if not, nothing is known that has to be noted.
func (c *Coordinator) Alone(ctx context.Context, group zone.Group) (known bool, err error) {
	if err := c.recall(group); err != nil {
		return false, err
	}
	mine := c.known(group)
	if mine.Version != 0 && mine.Alone == c.o.Self {
		return true, nil
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	for {
		s, err := c.list(ctx, group)
		if err == nil {
			switch {
			case s.term.Epoch == 0 || mine.Newer(s.term):
				return mine.Version != 0, nil // nobody is elected by what is left there, and all nodes have to answer
			case s.term.Alone != c.o.Self:
				next := s.term.LeftAlone(c.o.Self)
				if err = c.putTerm(ctx, s, next); err == nil {
					err = c.learn(next)
				}
			default:
				err = c.learn(s.term)
			}
		}
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, errChanged) || ctx.Err() != nil {
			return mine.Version != 0, &coordinator.Error{Op: "alone", Group: group, Kind: coordinator.KindNoQuorum, Err: err}
		}
	}
}
