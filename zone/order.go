package zone

import (
	"fmt"
	"slices"
)

// orderByDefault makes a consumer group that does not say fifo read in order when
// one of its topics is of kind fifo: a FIFO topic never comes out of order because a
// key was forgotten. A group that says fifo: false gives the order up.
func (g *draftConsumers) orderByDefault() {
	if g.fifoAt.line == 0 {
		g.info.FIFO = slices.ContainsFunc(g.info.Topics, func(t *TopicInfo) bool { return t.Kind == KindFIFO })
	}
}

// checkKind reports a kind whose promise the topic's route does not keep.
func (d *draft) checkKind(t *draftTopic) {
	if info := t.info; info.Kind == KindPriority && info.Channel != nil {
		d.add(t.kindAt, fmt.Sprintf("topic %s is of kind %s, and its route is %s", info.Name, info.Kind, info.Route),
			"a broadcast has one order, that of its numbers; use another route, or kind normal")
	}
}

// InOrder reports whether a consumer group gets the message groups of a topic in
// order, one message of each at a time: of FIFO topics, unless the group declares
// that it wants no order. A group that is not declared gets them in order. Lite topics
// are always in order. topic nil stands for a dead-letter topic, which has no order.
func (t *Topology) InOrder(group ConsumerGroup, topic *TopicInfo) bool {
	switch {
	case topic != nil && topic.Kind == KindLite:
		return true
	case topic == nil || topic.Kind != KindFIFO:
		return false
	}
	g := t.FindConsumerGroup(group)
	return g == nil || g.FIFO
}
