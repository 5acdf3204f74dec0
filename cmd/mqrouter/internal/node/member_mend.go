package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/ship"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	// mendPause is how often a member looks whether its log has a wound, and mendAgain
	// how long it waits when nobody could help.
	mendPause = time.Second
	mendAgain = time.Minute
	// mendRate is how much of a wound is fetched in a second: a segment in a few seconds,
	// at an eighth of what replicas that catch up are given.
	mendRate = 32 << 20
	// fetchers is how many members are given parts of this node's log at a time.
	fetchers = 2
)

// errNobodyHas says that no other member could give a part of the log.
var errNobodyHas = errors.New("no other node of the group has it whole")

// mend makes what the check of the log finds damaged anew, from whichever other member has
// it, one segment after the other. Master and replicas do that alike: what is sealed and
// committed is the same in all logs of the store, byte for byte.
func (l *life) mend(ctx context.Context) error {
	told := map[record.Position]bool{} // wounds that nobody could help with
	for wait := mendPause; ; {
		pauseFor(ctx, wait)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		wait = mendPause
		wounds := l.broker.Wounds()
		if len(wounds) == 0 {
			clear(told)
		}
		for _, w := range wounds {
			err := l.mendOne(ctx, w)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err == nil:
				delete(told, w.From)
				continue
			case errors.Is(err, commitlog.ErrNoWound): // trimmed, or not committed yet
			case !told[w.From]:
				told[w.From] = true
				l.log.Error("damaged part of the log cannot be made anew; it is tried again", "segment", w.Damage.Segment, "position", uint64(w.From), "err", err)
			}
			wait = mendAgain
		}
	}
}

// mendOne asks one member after the other.
func (l *life) mendOne(ctx context.Context, w commitlog.Wound) error {
	all := errNobodyHas
	for _, n := range l.sources() {
		began := time.Now()
		err := l.mendFrom(ctx, n, w)
		switch {
		case err == nil:
			l.log.Info("damaged part of the log was made anew from another node's", "segment", w.Damage.Segment, "position", uint64(w.From),
				"bytes", uint64(w.To-w.From), "peer", string(n), "took", time.Since(began))
			return nil
		case errors.Is(err, commitlog.ErrFull), errors.Is(err, commitlog.ErrClosed), errors.Is(err, commitlog.ErrNoWound), ctx.Err() != nil:
			return err // no other member changes that
		}
		all = fmt.Errorf("%w; %s: %w", all, n, err)
	}
	return all
}

// sources names the other members, the master first.
func (l *life) sources() []zone.Node {
	master, _ := l.master()
	all := slices.DeleteFunc(l.members(), func(n zone.Node) bool { return n == l.self.Name })
	slices.SortStableFunc(all, func(a, b zone.Node) int {
		switch master {
		case a:
			return -1
		case b:
			return 1
		}
		return 0
	})
	return all
}

// mendFrom fetches a part from one member.
func (l *life) mendFrom(ctx context.Context, n zone.Node, w commitlog.Wound) error {
	s, err := l.dial(ctx, n, rand.Uint64()|1)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close(wire.CodeOK) }()
	return l.broker.Mend(ctx, w, func(ctx context.Context, from record.Position) (ship.Stretch, error) {
		st, err := ship.Fetch(ctx, s, n, wire.Fetch{Group: l.self.Group.Name, Incarnation: l.broker.Log().Incarnation(), From: from, To: w.To, Limit: ship.FetchLimit})
		pauseFor(ctx, time.Duration(len(st.Frames))*time.Second/mendRate)
		return st, err
	})
}

// serveFetch gives another member parts of this one's log.
func (l *life) serveFetch(ctx context.Context, s *peer.Session, first wire.Frame) {
	select {
	case l.fetched <- struct{}{}:
	default:
		s.CloseText(wire.CodeHeld, "other nodes are given parts of this log: ask again")
		return
	}
	defer func() { <-l.fetched }()
	if err := ship.ServeFetch(ctx, l.broker.Log(), l.self.Group.Name, s, first); err != nil && ctx.Err() == nil {
		l.log.Debug("session of a node that fetched ended", "peer", string(s.Identity().Name), "err", err)
	}
}
