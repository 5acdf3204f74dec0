package zone

import (
	"errors"
	"fmt"
)

// Step is one step of an explanation.
type Step struct {
	Title  string // such as "shard"
	Detail string // such as "85: the last 2 digits of \"u1085\""
}

// String returns "title: detail".
func (s Step) String() string { return s.Title + ": " + s.Detail }

// QueryFor returns the query of a message of the topic, published in from, of
// which only key is known: it stands wherever the topic's route reads, and is
// the message group too when the topic is FIFO.
func QueryFor(topic *TopicInfo, from *ZoneInfo, key string) Query {
	q := Query{Topic: topic, From: from}
	if topic == nil {
		return q
	}
	switch topic.Route.Kind {
	case RouteShard:
		q.User = key
	case RouteExplicit:
		q.Destination = key
	}
	if topic.Kind == KindFIFO || topic.Kind == KindLite || topic.Route.From == FromMessageGroup {
		q.MessageGroup = key
	}
	return q
}

// Explain says step by step how Resolve comes to its answer. The last step is
// the answer, or the reason why there is none.
func (t *Topology) Explain(q Query) []Step {
	steps := []Step{{"topology", fmt.Sprintf("deployment %s, epoch %s, digest %x", t.Deployment, t.Epoch, t.Digest[:6])}}
	add := func(title, format string, args ...any) {
		steps = append(steps, Step{title, fmt.Sprintf(format, args...)})
	}
	d, err := t.Resolve(q)
	if q.Topic == nil {
		add("refused", "%v", err)
		return steps
	}
	topic := q.Topic
	add("topic", "%s, kind %s, class %s, route %s", topic.Name, topic.Kind, topic.Class, topic.Route)
	if topic.Kind == KindDelay {
		add("delayed", "at most %s; a message waits where it was published and takes its way anew when it is due", FormatDuration(topic.MaxDelay))
	}
	if topic.Kind == KindTransaction {
		add("transaction", "waits at the origin for its producer's decision, %s; what follows is for one that is committed", topic.Transaction)
	}
	if topic.Kind == KindLite {
		add("lite", "the lite topic of a message is its key here; %s, each at one broker group", topic.Lite)
	}
	if topic.Receipts != nil {
		add("receipts", "a receipt goes to topic %s of the zone of origin once all groups of the destination have settled the message", topic.Receipts.Name)
	}
	if topic.promise() != "" || q.From != nil && q.From.replicates() {
		add("acknowledged", "%s", topic.promiseText())
	}
	if topic.Idempotent > 0 {
		add("idempotent", "a message id that comes again within %s is the same message", FormatDuration(topic.Idempotent))
	}
	if q.From != nil {
		add("published", "in zone %s (%s) of city %s", q.From.Name, q.From.Kind, q.From.City.Name)
	} else {
		add("published", "in no particular zone; give one to see local routes and how far the record travels")
	}
	if topic.resident != nil {
		add("residency", "only %s; %s", cityNames(topic.Residency), t.residencyVerdict(q, d, err))
	}
	for _, s := range t.explainRoute(q) {
		add(s.Title, "%s", s.Detail)
	}
	if err != nil {
		add("refused", "%v", err)
		return steps
	}
	if d.Channel != nil {
		return append(steps, t.explainBroadcast(q, d)...)
	}
	group := "broker group " + string(d.Group.Name) + members(d.Group)
	switch {
	case q.MessageGroup != "" || d.HasShard || q.MessageID != "":
		add("slot", "%d of %d: hash of %s", d.Slot, Slots, slotReason(q, d))
		add("group", "%s owns slot %d in zone %s%s", d.Group.Name, d.Slot, d.Zone.Name, ownGroups(d.Zone))
	case len(d.Zone.Groups) > 1:
		add("slot", "hash of the message id, which is not given here")
		group = fmt.Sprintf("one of %d broker groups", len(d.Zone.Groups))
	}
	if home := homeText(q, d); home != "" {
		add("home", "%s", home)
	}
	add("lands", "in %s, zone %s, city %s%s", group, d.Zone.Name, d.Zone.City.Name, reachText(q.From, d.Reach))
	return steps
}

func (t *Topology) residencyVerdict(q Query, d Destination, err error) string {
	switch {
	case errors.Is(err, ErrOriginForbidden):
		return fmt.Sprintf("city %s, where it was published, is not among them", q.From.City.Name)
	case errors.Is(err, ErrDestinationForbidden):
		return "the destination's city is not among them"
	case d.Channel != nil:
		return "other cities skip the record"
	case err != nil:
		return "not reached"
	}
	return fmt.Sprintf("city %s is among them", d.Zone.City.Name)
}

// explainRoute says how the route picks the zone.
func (t *Topology) explainRoute(q Query) []Step {
	r := q.Topic.Route
	switch r.Kind {
	case RouteLocal:
		return []Step{{"route", "local: the zone where it was published"}}
	case RouteGlobal:
		if z := t.index.activeGZone; z != nil {
			return []Step{{"route", fmt.Sprintf("global: the active GZone is %s of city %s", z.Name, z.City.Name)}}
		}
		return []Step{{"route", "global: there is no active GZone"}}
	case RouteExplicit:
		return []Step{{"destination", t.destinationText(q)}}
	case RouteShard:
		if q.User == "" {
			return []Step{{"user", "none in " + r.Source()}}
		}
		steps := []Step{{"user", fmt.Sprintf("%q, from %s", clip(q.User), r.Source())}}
		s, kind := t.shardOf(q.User)
		if kind != 0 {
			return steps
		}
		steps = append(steps, Step{"shard", fmt.Sprintf("%d of %d: %s", s, t.ShardCount, t.shardReason())})
		if z := t.ShardOwner(s); z != nil {
			steps = append(steps, Step{"owner", fmt.Sprintf("shard %d belongs to zone %s of city %s", s, z.Name, z.City.Name)})
		}
		return steps
	}
	return nil
}

func (t *Topology) destinationText(q Query) string {
	source := q.Topic.Route.Source()
	if q.Destination == "" {
		return "none in " + source
	}
	name := clip(q.Destination)
	z := t.index.destinations[q.Destination]
	switch {
	case z == nil:
		return fmt.Sprintf("%q, from %s: neither a zone nor a city", name, source)
	case t.index.zones[Zone(q.Destination)] != nil:
		return fmt.Sprintf("%q, from %s: a zone of city %s", name, source, z.City.Name)
	}
	return fmt.Sprintf("%q, from %s: a city, so its CZone %s", name, source, z.Name)
}

// shardReason says how the shard was taken from the user id.
func (t *Topology) shardReason() string {
	switch t.ShardBy {
	case ShardByLastDigits:
		digits := 0
		for n := t.ShardCount; n > 1; n /= 10 {
			digits++
		}
		return fmt.Sprintf("the last %s of the user id", plural(digits, "digit"))
	case ShardByModulo:
		return fmt.Sprintf("the user id modulo %d", t.ShardCount)
	}
	return fmt.Sprintf("the XXH64 of the user id modulo %d", t.ShardCount)
}

func slotReason(q Query, d Destination) string {
	switch {
	case q.MessageGroup != "":
		return fmt.Sprintf("message group %q", clip(q.MessageGroup))
	case d.HasShard:
		return fmt.Sprintf("shard %d", d.Shard)
	}
	return fmt.Sprintf("message id %q", clip(q.MessageID))
}

func ownGroups(z *ZoneInfo) string {
	if len(z.Groups) == 1 {
		return ", as its only group"
	}
	return fmt.Sprintf(", one of %d groups", len(z.Groups))
}

func reachText(from *ZoneInfo, r Reach) string {
	switch {
	case from == nil:
		return ""
	case r == ReachZone:
		return ": it stays in the zone"
	case r == ReachCity:
		return ": from broker to broker inside the city"
	}
	return ": through the routers of both cities"
}

func (t *Topology) explainBroadcast(q Query, d Destination) []Step {
	topic := q.Topic
	steps := []Step{{"channel", fmt.Sprintf("%s, slot %d: one numbering for all cities", d.Channel.Name, d.Slot)}}
	if home := homeText(q, d); home != "" {
		steps = append(steps, Step{"home", home})
	}
	for _, c := range t.Cities {
		if !topic.ResidentIn(c) {
			steps = append(steps, Step{"skips", fmt.Sprintf("city %s, which the residency excludes", c.Name)})
			continue
		}
		detail := fmt.Sprintf("in broker group %s, zone %s, city %s", c.CZone.SlotOwner(d.Slot).Name, c.CZone.Name, c.Name)
		if q.From != nil {
			if via := d.Channel.Via(c, q.From.City.Name); via != nil {
				detail += fmt.Sprintf(", from what %s has landed", via.Name)
			}
		}
		if topic.Route.Kind == RouteBroadcastZone {
			detail += fmt.Sprintf(", and onward in its %s", plural(len(c.Zones), "zone"))
		}
		steps = append(steps, Step{"lands", detail})
	}
	return steps
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// homeText says which group stores a message first; empty when it may be any.
func homeText(q Query, d Destination) string {
	if !q.Topic.HasHome() || q.From == nil || q.MessageGroup == "" && !d.HasShard && q.MessageID == "" {
		return ""
	}
	what := "has the order of its message group"
	switch {
	case q.Topic.Idempotent > 0 && q.Topic.Kind == KindFIFO:
		what = "knows which ids have come and " + what
	case q.Topic.Idempotent > 0 && q.Topic.Kind == KindLite:
		what = "knows which ids have come and has the order of its lite topic"
	case q.Topic.Kind == KindLite:
		what = "has the order of its lite topic"
	case q.Topic.Idempotent > 0:
		what = "knows which ids have come"
	}
	return fmt.Sprintf("broker group %s of zone %s, where it was published, %s", q.From.Home(&q, &d).Name, q.From.Name, what)
}
