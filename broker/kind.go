package broker

import (
	"fmt"

	"github.com/mqrouter/mqrouter/zone"
)

// SupportsKind reports whether topics of the kind can be published to and received
// from.
func SupportsKind(k zone.MessageKind) bool {
	switch k {
	case zone.KindNormal, zone.KindFIFO, zone.KindDelay, zone.KindTransaction, zone.KindPriority, zone.KindLite:
		return true
	}
	return false
}

// checkKind refuses a message that does not go with the kind of its topic.
func checkKind(t *zone.TopicInfo, m *Message) error {
	refuse := func(kind Kind, format string, args ...any) error {
		return &Error{Op: "publish", Kind: kind, Topic: t.Name, Text: fmt.Sprintf(format, args...)}
	}
	if !SupportsKind(t.Kind) {
		return refuse(KindUnsupported, "topics of kind %s are not supported by this version", t.Kind)
	}
	if t.Kind == zone.KindFIFO && m.MessageGroup == "" {
		return refuse(KindInvalid, "a message without a message group on a topic of kind fifo")
	}
	if t.Kind == zone.KindLite {
		if text := zone.LiteName(m.MessageGroup); text != "" {
			return refuse(KindLiteName, "%s", liteNameText(m.MessageGroup, text))
		}
	}
	if t.Kind == zone.KindPriority && m.Priority < 0 {
		return refuse(KindInvalid, "the priority %d; it must not be negative", m.Priority)
	}
	if m.Kind != 0 && m.Kind != t.Kind {
		return refuse(KindUnsupported, "a message of kind %s on a topic of kind %s", m.Kind, t.Kind)
	}
	if !m.DeliverAt.IsZero() && t.Kind != zone.KindDelay {
		return refuse(KindUnsupported, "a delivery time on a topic of kind %s", t.Kind)
	}
	return nil
}
