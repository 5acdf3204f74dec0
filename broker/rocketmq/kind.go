package rocketmq

import (
	"fmt"
	"slices"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// accepted says which message types a topic of a kind takes, its own first: what
// its routes announce. A kind that is missing is not supported.
var accepted = map[zone.MessageKind][]pb.MessageType{
	zone.KindNormal:      {pb.MessageType_NORMAL},
	zone.KindFIFO:        {pb.MessageType_FIFO},
	zone.KindDelay:       {pb.MessageType_DELAY},
	zone.KindTransaction: {pb.MessageType_TRANSACTION},
	zone.KindLite:        {pb.MessageType_LITE},
	zone.KindPriority:    {pb.MessageType_PRIORITY, pb.MessageType_NORMAL}, // Node sends priority 0 as NORMAL
}

// unsupported names a part of the protocol that this server does not speak.
func unsupported(what string) *pb.Status {
	return refuse(pb.Code_UNSUPPORTED, what+" are not supported")
}

// acceptedBy returns the types that routes of a topic announce, never none, at
// which Java would throw.
func acceptedBy(k zone.MessageKind) []pb.MessageType {
	if list := accepted[k]; list != nil {
		return list
	}
	return []pb.MessageType{messageType(k)}
}

// supportedType reports whether some topic takes the message type.
func supportedType(t pb.MessageType) bool {
	for _, list := range accepted {
		if slices.Contains(list, t) {
			return true
		}
	}
	return false
}

// supportedKind refuses a topic of a kind that is not supported; nil means that it
// is.
func supportedKind(info *zone.TopicInfo) *pb.Status {
	if accepted[info.Kind] == nil {
		return unsupported("topics of kind " + info.Kind.String())
	}
	return nil
}

// checkKind judges the message group, the message's type against the topic's, and
// the properties that belong to other types.
func checkKind(info *zone.TopicInfo, sp *pb.SystemProperties) *pb.Status {
	if g := sp.GetMessageGroup(); sp.MessageGroup != nil && (blank(g) || control(g) || len(g) > maxMessageGroup) {
		return refuse(pb.Code_ILLEGAL_MESSAGE_GROUP, fmt.Sprintf("the message group has %d bytes, the limit is %d; it must not be blank or have control characters", len(g), maxMessageGroup))
	}
	kind := sp.GetMessageType()
	if kind == pb.MessageType_MESSAGE_TYPE_UNSPECIFIED {
		kind = pb.MessageType_NORMAL
	}
	if _, known := pb.MessageType_name[int32(kind)]; !known {
		return unsupported("messages of type " + kind.String()) // what a newer client wants of it cannot be left out
	}
	if !supportedType(kind) {
		return unsupported("messages of type " + kind.String())
	}
	if st := supportedKind(info); st != nil {
		return st
	}
	if !slices.Contains(accepted[info.Kind], kind) {
		return refuse(pb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
			fmt.Sprintf("the message is of type %s, and the topic %s takes %s", kind, info.Name, accepted[info.Kind][0]))
	}
	if kind == pb.MessageType_FIFO && sp.MessageGroup == nil {
		return refuse(pb.Code_ILLEGAL_MESSAGE_GROUP, "a FIFO message needs a message group")
	}
	if kind == pb.MessageType_LITE {
		if st := checkLiteName(sp.GetLiteTopic()); st != nil {
			return st
		}
	}
	if info.Kind == zone.KindPriority {
		if sp.GetPriority() < 0 {
			return refuse(pb.Code_BAD_REQUEST, fmt.Sprintf("the priority is %d, it must not be negative", sp.GetPriority()))
		}
		kind = pb.MessageType_PRIORITY
	}
	return checkForeign(kind, sp)
}

// checkForeign refuses properties that make a message one of another type.
func checkForeign(kind pb.MessageType, sp *pb.SystemProperties) *pb.Status {
	for _, p := range [...]struct {
		set  bool
		of   pb.MessageType
		what string
	}{
		{sp.MessageGroup != nil, pb.MessageType_FIFO, "message group"},
		{sp.DeliveryTimestamp != nil, pb.MessageType_DELAY, "delivery timestamp"},
		{sp.Priority != nil && sp.GetPriority() != 0, pb.MessageType_PRIORITY, "priority"},
		{sp.GetLiteTopic() != "", pb.MessageType_LITE, "lite topic"},
	} {
		if p.set && p.of != kind {
			return refuse(pb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "a "+kind.String()+" message has no "+p.what)
		}
	}
	return nil
}
