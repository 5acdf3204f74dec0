package zone

import (
	"fmt"
	"time"
)

// Bounds of a topic's window. A publisher's library repeats a send for seconds, an
// application for minutes; what a window remembers stands in memory.
const (
	minIdempotent = time.Second
	maxIdempotent = 24 * time.Hour
)

// checkIdempotent refuses a window on a topic that acknowledges before it knows: the
// fold learns of a message when it is committed.
func (d *draft) checkIdempotent(t *draftTopic) {
	if t.info.Idempotent > 0 && t.info.Durability != DurabilityAllInSync && t.info.Durability != 0 {
		d.add(t.idempotentAt, fmt.Sprintf("topic %s is idempotent, and its durability is %s", t.info.Name, t.info.Durability),
			"whether a message is new is known once it is committed; use durability: all-in-sync or remove idempotent")
	}
}

// windowText is empty for topics without a window.
func windowText(window time.Duration) string {
	if window == 0 {
		return ""
	}
	return FormatDuration(window)
}

// HasHome reports whether each message of the topic has one broker group in the zone
// where it is published that must be the first to store it: an idempotent topic's,
// which knows whether it is new, and a FIFO or lite topic's, where its message group or
// lite topic has its order.
func (t *TopicInfo) HasHome() bool {
	return t.Idempotent > 0 || t.Kind == KindFIFO || t.Kind == KindLite
}

// Home returns that group of a topic that has homes (TopicInfo.HasHome): in the zone where it is published, the owner of the slot that d, the
// answer of Resolve to q, has picked. Channels have a slot of their own, which says
// nothing of the message, so that its message group or id does there.
func (z *ZoneInfo) Home(q *Query, d *Destination) *GroupInfo {
	slot := d.Slot
	if d.Channel != nil {
		if slot = HashSlot(q.MessageID); q.MessageGroup != "" {
			slot = HashSlot(q.MessageGroup)
		}
	}
	return z.SlotOwner(slot)
}
