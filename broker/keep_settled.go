package broker

import (
	"cmp"
	"context"
	"slices"

	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/broker/tails"
	"github.com/mqrouter/mqrouter/replication/record"
)

// settledWindow is how much of the log is looked at in one step for what was settled of
// it, in bytes: some hundred thousand entries of indexes.
const settledWindow = 64 << 20

// settledInTail says what consumer groups had settled of the messages of a part of the
// log, as far as the fold has got. more: there is more than a head has room for.
func (b *Broker) settledInTail(ctx context.Context, from, end record.Position) (all []tails.Settled, more bool, err error) {
	room := tails.MaxSettled
	b.mu.RLock()
	names := sortedKeys(b.state.topics)
	end = min(end, b.state.position)
	b.mu.RUnlock()
	for _, name := range names {
		var list []tails.Settled
		for at := from; at < end; at += settledWindow {
			if err := ctx.Err(); err != nil {
				return nil, false, err
			}
			b.mu.RLock()
			if t := b.state.topics[name]; t != nil && !t.deadLetter {
				list, err = b.state.settledOf(t, at, min(at+settledWindow, end), list)
			}
			b.mu.RUnlock()
			if err != nil {
				return nil, false, err
			}
		}
		for _, s := range list {
			if len(s.Ranges) > room {
				s.Ranges, more = s.Ranges[:room], true
			}
			if room -= len(s.Ranges); len(s.Ranges) > 0 {
				all = append(all, s)
			}
		}
	}
	return all, more, nil
}

// settledOf adds what the topic's groups have settled of a part of the log.
func (s *state) settledOf(t *topic, from, end record.Position, list []tails.Settled) ([]tails.Settled, error) {
	type place struct {
		at     record.Position
		queue  int
		offset uint64
	}
	var places []place
	var buf [256]queue.Entry
	for q, x := range t.queues {
		n, _, err := x.index.Search(from)
		if err != nil {
			return nil, err
		}
		for n < x.index.Next() {
			got, err := x.index.Read(n, buf[:])
			if err != nil {
				return nil, err
			}
			for i := range got {
				if buf[i].Position < end {
					places = append(places, place{buf[i].Position, q, n + uint64(i)})
				}
			}
			if n += uint64(got); got == 0 || buf[got-1].Position >= end {
				break
			}
		}
	}
	slices.SortFunc(places, func(a, b place) int { return cmp.Compare(a.at, b.at) })
	for _, sub := range t.subs {
		if ownGroup(sub.key.group) {
			continue
		}
		i := slices.IndexFunc(list, func(x tails.Settled) bool { return x.Group == string(sub.key.group) })
		if i < 0 {
			i, list = len(list), append(list, tails.Settled{Group: string(sub.key.group), Topic: string(t.name)})
		}
		open := false // the last range goes on
		if n := len(list[i].Ranges); n > 0 && len(places) > 0 {
			open = list[i].Ranges[n-1][1]+1 == from // it went to the end of the window before
		}
		for _, p := range places {
			settled := s.settledIn(sub.key, p.queue, p.offset)
			r := &list[i].Ranges
			switch {
			case settled && open:
				(*r)[len(*r)-1][1] = p.at
			case settled && len(*r) <= tails.MaxSettled: // one too many says that there are more
				*r, open = append(*r, [2]record.Position{p.at, p.at}), true
			default:
				open = false
			}
		}
		if n := len(list[i].Ranges); open && n > 0 {
			list[i].Ranges[n-1][1] = end - 1
		}
	}
	return list, nil
}
