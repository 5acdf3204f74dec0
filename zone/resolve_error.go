package zone

import (
	"fmt"
	"sync/atomic"
)

// ResolveKind says why a message has no destination.
type ResolveKind uint8

// The reasons why a message has no destination.
const (
	UnknownTopic         ResolveKind = iota + 1 // the topology does not declare the topic
	UnknownOrigin                               // a local route without the zone of origin, or a zone that does not exist
	MissingUser                                 // a shard route and no user id in the message
	BadUser                                     // the user id lacks the digits that the shard rule needs
	ShardUnowned                                // no zone owns the shard, or there are no shards
	MissingDestination                          // an explicit route and no destination in the message
	UnknownDestination                          // the named destination is neither a zone nor a city
	NoActiveGZone                               // a global route in a deployment without an active GZone
	DestinationForbidden                        // residency keeps the record out of the destination's city
	OriginForbidden                             // residency keeps the record out of the city of origin
	UnknownRoute                                // a route kind that this version does not know
	resolveKinds                                // how many there are, plus one
)

// ResolveError tells why a message has no destination. The values are made
// when the topology is parsed, so returning one does not allocate.
type ResolveError struct {
	Kind  ResolveKind
	Topic Topic // empty in the Err values of this package
	Route Route // zero in the Err values of this package
}

// The reasons as targets for errors.Is; they match whatever the topic.
var (
	ErrUnknownTopic         = &ResolveError{Kind: UnknownTopic}
	ErrUnknownOrigin        = &ResolveError{Kind: UnknownOrigin}
	ErrMissingUser          = &ResolveError{Kind: MissingUser}
	ErrBadUser              = &ResolveError{Kind: BadUser}
	ErrShardUnowned         = &ResolveError{Kind: ShardUnowned}
	ErrMissingDestination   = &ResolveError{Kind: MissingDestination}
	ErrUnknownDestination   = &ResolveError{Kind: UnknownDestination}
	ErrNoActiveGZone        = &ResolveError{Kind: NoActiveGZone}
	ErrDestinationForbidden = &ResolveError{Kind: DestinationForbidden}
	ErrOriginForbidden      = &ResolveError{Kind: OriginForbidden}
	ErrUnknownRoute         = &ResolveError{Kind: UnknownRoute}
)

// generic returns the Err value of a kind.
func generic(kind ResolveKind) *ResolveError {
	switch kind {
	case UnknownTopic:
		return ErrUnknownTopic
	case UnknownOrigin:
		return ErrUnknownOrigin
	case MissingUser:
		return ErrMissingUser
	case BadUser:
		return ErrBadUser
	case ShardUnowned:
		return ErrShardUnowned
	case MissingDestination:
		return ErrMissingDestination
	case UnknownDestination:
		return ErrUnknownDestination
	case NoActiveGZone:
		return ErrNoActiveGZone
	case DestinationForbidden:
		return ErrDestinationForbidden
	case OriginForbidden:
		return ErrOriginForbidden
	}
	return ErrUnknownRoute
}

// resolveFaults are the errors that Resolve returns for a topic: made with the first,
// so that later ones cost nothing, and a topic without faults neither.
type resolveFaults struct {
	made atomic.Pointer[[resolveKinds]ResolveError]
}

// fault returns the topic's error of a kind.
func (t *TopicInfo) fault(kind ResolveKind) *ResolveError {
	if t.faults == nil {
		return generic(kind)
	}
	all := t.faults.made.Load()
	if all == nil {
		all = new([resolveKinds]ResolveError)
		for k := range all {
			all[k] = ResolveError{Kind: ResolveKind(k), Topic: t.Name, Route: t.Route}
		}
		if !t.faults.made.CompareAndSwap(nil, all) {
			all = t.faults.made.Load()
		}
	}
	return &all[kind]
}

// Is reports whether target is a *ResolveError of the same kind, and of the
// same topic when it names one.
func (e *ResolveError) Is(target error) bool {
	o, ok := target.(*ResolveError)
	return ok && o.Kind == e.Kind && (o.Topic == "" || o.Topic == e.Topic)
}

// Error names the topic and says what is missing or wrong and, where the
// sender can mend it, where the value is read.
func (e *ResolveError) Error() string {
	if e.Topic == "" {
		return e.Kind.String()
	}
	switch e.Kind {
	case MissingUser, BadUser, MissingDestination, UnknownDestination:
		return fmt.Sprintf("topic %s: %s (read from %s)", e.Topic, e.Kind, e.Route.Source())
	}
	return fmt.Sprintf("topic %s: %s", e.Topic, e.Kind)
}

// String says the reason in words.
func (k ResolveKind) String() string {
	switch k {
	case UnknownTopic:
		return "the topology does not declare the topic"
	case UnknownOrigin:
		return "the zone of origin is not known"
	case MissingUser:
		return "the message has no user id"
	case BadUser:
		return "the user id does not end in the digits that name a shard"
	case ShardUnowned:
		return "no zone owns the user's shard"
	case MissingDestination:
		return "the message names no destination"
	case UnknownDestination:
		return "the destination is neither a zone nor a city of the deployment"
	case NoActiveGZone:
		return "the deployment has no active GZone"
	case DestinationForbidden:
		return "the topic's residency does not include the destination's city"
	case OriginForbidden:
		return "the topic's residency does not include the city where the message was published"
	case UnknownRoute:
		return "the route is not one that this version knows"
	}
	return fmt.Sprintf("reason %d", uint8(k))
}
