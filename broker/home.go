package broker

import (
	"context"
	"fmt"
	"sync"

	"github.com/mqrouter/mqrouter/zone"
)

// The home group of a message of an idempotent topic knows whether it is new, and
// that of a message of a FIFO topic has the order of its message group: were the
// message stored by whoever takes it, the next one could overtake it on another
// broker's flow. Any broker of the zone takes the send and passes it on to the home;
// a home that cannot be reached is waited for by the publisher, since nobody else
// can stand in.

// passesOn reports whether a message is of a topic whose messages have a home, and
// the zone more than one group. Other topics cost one test of a bool.
func (v *view) passesOn(msgs []Message) bool {
	if !v.homes {
		return false
	}
	for i := range msgs {
		if t := msgs[i].Topic; t != nil && v.topics[t.Name] != nil && v.topics[t.Name].info.HasHome() {
			return true
		}
	}
	return false
}

// home returns the group that the message is for. What cannot be resolved is for
// this one, which says why.
func (v *view) home(m *Message) zone.Group {
	if m.Topic == nil {
		return v.group.Name
	}
	t := v.topics[m.Topic.Name]
	if t == nil || !t.info.HasHome() {
		return v.group.Name
	}
	q := query(v, t.info, m)
	d, err := v.topo.Resolve(q)
	if err != nil {
		return v.group.Name
	}
	return v.zone.Home(&q, &d).Name
}

// part is the messages of one Publish that have one home, in their order.
type part struct {
	home    zone.Group
	which   []int
	msgs    []Message
	results []PublishResult
}

// parts divides messages by their homes.
func (v *view) parts(msgs []Message) []*part {
	var list []*part
	for i := range msgs {
		home := v.home(&msgs[i])
		var p *part
		for _, o := range list {
			if o.home == home {
				p = o
			}
		}
		if p == nil {
			p = &part{home: home}
			list = append(list, p)
		}
		p.which, p.msgs = append(p.which, i), append(p.msgs, msgs[i])
	}
	return list
}

// publishAtHome is Publish for messages of which some may have another home: one
// call for each home. What fails as a whole fails for the messages of that home.
func (b *Broker) publishAtHome(ctx context.Context, v *view, msgs []Message, out []PublishResult) error {
	list := v.parts(msgs)
	if len(list) == 1 && list[0].home == b.self {
		return b.publishHere(ctx, v, msgs, out)
	}
	var wg sync.WaitGroup
	for _, p := range list {
		p.results = make([]PublishResult, len(p.msgs))
		send := func() {
			err := b.publishPart(ctx, v, p)
			for k, i := range p.which {
				out[i] = p.results[k]
				if err != nil {
					out[i] = PublishResult{Offset: -1, Err: err}
				}
			}
		}
		if len(list) == 1 {
			send()
			break
		}
		wg.Go(send) // each writes other elements of out
	}
	wg.Wait()
	return nil
}

// publishPart publishes messages of one home. Large batches take several calls, one
// after the other, which keeps the order of message groups.
func (b *Broker) publishPart(ctx context.Context, v *view, p *part) error {
	if p.home == b.self {
		return b.publishHere(ctx, v, p.msgs, p.results)
	}
	b.metrics.passedOn(ctx, len(p.msgs))
	for from := 0; from < len(p.msgs); {
		body, n := appendSends(p.msgs[from:])
		if n == 0 {
			p.results[from] = PublishResult{Offset: -1, Err: &Error{Op: "publish", Kind: KindTooLarge, Topic: p.msgs[from].Topic.Name,
				Text: fmt.Sprintf("a message that must go to group %s, and is larger than a call may be, %d bytes", p.home, MaxCallBody)}}
			from++
			continue
		}
		reply, err := b.call(ctx, p.home, CallPublish, body)
		if err == nil {
			err = v.parseSent(reply, p.msgs[from:from+n], p.results[from:from+n])
		}
		if err != nil {
			for i := from; i < from+n; i++ {
				p.results[i] = PublishResult{Offset: -1, Err: err}
			}
		}
		from += n
	}
	return nil
}

// servePublish publishes what another broker of the zone passes on.
func (b *Broker) servePublish(ctx context.Context, body []byte) ([]byte, error) {
	v := b.view.Load()
	msgs, err := parseSends(v.topo, body)
	if err != nil {
		return nil, err
	}
	for i := range msgs {
		if home := v.home(&msgs[i]); home != b.self {
			return nil, &Error{Op: "publish", Kind: KindUnavailable,
				Text: fmt.Sprintf("by epoch %s the message is for group %s; the brokers' topologies differ for a moment", v.topo.Epoch, home)}
		}
	}
	out := make([]PublishResult, len(msgs))
	if err := b.publishHere(ctx, v, msgs, out); err != nil {
		return nil, err
	}
	return appendSent(nil, out), nil
}
