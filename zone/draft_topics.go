package zone

import (
	"fmt"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"
)

func (d *draft) readTopic(v value) {
	info := &TopicInfo{
		Queues: defaultQueues, Kind: KindNormal, Durability: DurabilityAllInSync, MinInSync: 1, Retention: defaultRetention,
		Budget: defaultBudget, AtBudget: BudgetRefuse, MaxBody: defaultBody,
	}
	t := &draftTopic{info: info, at: v.at()}
	d.topics = append(d.topics, t)
	r := &d.reader
	d.object(v, "a topic", []field{
		{"name", true, func(v value) { t.at, info.Name = v.at(), Topic(d.name(v, "a topic's name", topicName)) }},
		{"queues", false, func(v value) { integer(r, v, "queues", 1, maxQueues, &info.Queues) }},
		{"kind", false, func(v value) { t.kindAt, info.Kind = v.at(), choose(r, v, "a topic's kind", messageKindWords) }},
		{"durability", false, func(v value) { info.Durability = choose(r, v, "durability", durabilityWords) }},
		{"min_in_sync", false, func(v value) {
			t.minInSyncAt = v.at()
			integer(r, v, "min_in_sync", 1, maxMembers, &info.MinInSync)
		}},
		{"retention", false, func(v value) { d.duration(v, "retention", time.Minute, maxRetention, &info.Retention) }},
		{"class", false, func(v value) { t.classAt, info.Class = v.at(), choose(r, v, "class", classWords) }},
		{"residency", false, func(v value) {
			t.residencyAt, t.residency = v.at(), d.refs(v, "residency")
			if v.node.Kind == yaml.SequenceNode && len(v.node.Content) == 0 {
				d.add(v.at(), "residency names no city, so the topic's records may be nowhere",
					"name the allowed cities, or remove the key to allow all")
			}
		}},
		{"budget", false, func(v value) {
			t.budgetAt = v.at()
			size(r, v, "budget", 1, maxBudget, &info.Budget)
		}},
		{"at_budget", false, func(v value) { info.AtBudget = choose(r, v, "at_budget", budgetEndWords) }},
		{"max_body", false, func(v value) {
			t.maxBodyAt = v.at()
			size(r, v, "max_body", 1, maxBodyBytes, &info.MaxBody)
		}},
		{"max_delay", false, func(v value) {
			t.maxDelayAt = v.at()
			d.duration(v, "max_delay", time.Second, maxMaxDelay, &info.MaxDelay)
		}},
		{"receipts", false, func(v value) {
			t.receipts = ref{name: d.name(v, "the topic of the receipts", topicName), at: v.at()}
		}},
		{"idempotent", false, func(v value) {
			t.idempotentAt = v.at()
			d.duration(v, "idempotent", minIdempotent, maxIdempotent, &info.Idempotent)
		}},
		{"route", true, func(v value) { d.readRoute(v, t) }},
		{"transaction", false, func(v value) { d.readTransaction(v, t) }},
		{"lite", false, func(v value) { d.readLite(v, t) }},
		{"channel", false, func(v value) {
			t.channel = ref{name: d.name(v, "a channel's name", topicName), at: v.at()}
		}},
	})
	if info.Kind == KindDelay && info.MaxDelay == 0 {
		info.MaxDelay = defaultMaxDelay
	}
	if info.Class == 0 {
		info.Class = ClassBulk
		if info.Route.Kind == RouteBroadcastCity || info.Route.Kind == RouteBroadcastZone {
			info.Class = ClassUrgent
		}
	}
}

const routeForms = "a route is one of local, global, {broadcast: city}, {broadcast: zone}, " +
	"{shard: {property: userId}}, {shard: key}, {shard: message_group}, {explicit: {property: destination}}"

// readRoute reads local, global, or a mapping with one of the keys shard,
// explicit and broadcast.
func (d *draft) readRoute(v value, t *draftTopic) {
	t.routeAt = v.at()
	route := &t.info.Route
	if v.node.Kind == yaml.ScalarNode {
		switch v.node.Value {
		case "local":
			route.Kind = RouteLocal
		case "global":
			route.Kind = RouteGlobal
		case "shard":
			d.add(v.at(), "the route shard does not say where the user id stands", "write {shard: {property: userId}}, {shard: key} or {shard: message_group}")
		case "explicit":
			d.add(v.at(), "the route explicit does not say where the destination stands", "write {explicit: {property: destination}} or {explicit: key}")
		case "broadcast":
			d.add(v.at(), "the route broadcast does not say to what", "write {broadcast: city} or {broadcast: zone}")
		default:
			fix := routeForms
			if near := nearest(v.node.Value, []string{"local", "global", "shard", "explicit", "broadcast"}); near != "" {
				fix = "did you mean " + near + "? " + routeForms
			}
			d.add(v.at(), "route is "+v.describe(), fix)
		}
		return
	}
	before := len(d.problems.list)
	d.object(v, "route", []field{
		{"shard", false, func(v value) { route.Kind = RouteShard; d.readSource(v, route) }},
		{"explicit", false, func(v value) { route.Kind = RouteExplicit; d.readSource(v, route) }},
		{"broadcast", false, func(v value) {
			route.Kind = choose(&d.reader, v, "broadcast", []word[RouteKind]{{RouteBroadcastCity, "city"}, {RouteBroadcastZone, "zone"}})
		}},
	})
	if n := len(v.node.Content); n != 2 && len(d.problems.list) == before {
		d.add(v.at(), fmt.Sprintf("route has %d keys", n/2), routeForms)
		route.Kind = 0
	}
}

// readSource reads key, message_group or {property: NAME}.
func (d *draft) readSource(v value, route *Route) {
	if v.node.Kind == yaml.ScalarNode {
		switch v.node.Value {
		case FromKey.String():
			route.From = FromKey
		case FromMessageGroup.String():
			route.From = FromMessageGroup
		default:
			d.add(v.at(), fmt.Sprintf("%s is %s", route.Kind, v.describe()),
				"it is key, message_group or {property: NAME}; for a property of that name write {property: "+clip(v.node.Value)+"}")
		}
		return
	}
	d.object(v, route.Kind.String(), []field{
		{"property", true, func(v value) {
			route.From = FromProperty
			route.Property = d.name(v, "a property's name", propertyName)
		}},
	})
}

func (d *draft) readConsumers(v value) {
	info := &ConsumerGroupInfo{MaxAttempts: defaultAttempts, Backoff: defaultBackoff()}
	g := &draftConsumers{info: info, at: v.at()}
	d.consumers = append(d.consumers, g)
	d.object(v, "a consumer group", []field{
		{"name", true, func(v value) {
			g.at, info.Name = v.at(), ConsumerGroup(d.name(v, "a consumer group's name", consumerGroupName))
		}},
		{"topics", true, func(v value) {
			g.topics = d.refs(v, "topics")
			if v.node.Kind == yaml.SequenceNode && len(v.node.Content) == 0 {
				d.add(v.at(), "topics is empty", "name the topics to which the group subscribes")
			}
		}},
		{"zones", false, func(v value) {
			g.zonesAt, g.zones = v.at(), d.refs(v, "zones")
			if v.node.Kind == yaml.SequenceNode && len(v.node.Content) == 0 {
				d.add(v.at(), "zones is empty", "name the zones, or remove the key to consume wherever the topics land")
			}
		}},
		{"fifo", false, func(v value) {
			g.fifoAt = v.at()
			d.boolean(v, "fifo", &info.FIFO)
		}},
		{"lite", false, func(v value) {
			g.liteAt = v.at()
			info.Lite = choose(&d.reader, v, "lite", liteModeWords)
		}},
		{"max_attempts", false, func(v value) { integer(&d.reader, v, "max_attempts", 1, maxAttempts, &info.MaxAttempts) }},
		{"hold", false, func(v value) { size(&d.reader, v, "hold", 1, maxBudget, &info.Hold) }},
		{"retry", false, func(v value) { d.readBackoff(v, g) }},
		{"cache", false, func(v value) {
			g.cacheAt = v.at()
			d.boolean(v, "cache", &info.Cache)
		}},
	})
}

func defaultBackoff() Backoff {
	return Backoff{Initial: time.Second, Max: 10 * time.Minute, Multiplier: 2}
}

// readBackoff reads {initial, max, multiplier} or {steps}.
func (d *draft) readBackoff(v value, g *draftConsumers) {
	b := &g.info.Backoff
	var stepsAt, curveAt place
	span := func(v value, what string, to *time.Duration) { d.duration(v, what, minBackoff, maxBackoff, to) }
	d.object(v, "retry", []field{
		{"initial", false, func(v value) { curveAt = v.at(); span(v, "retry.initial", &b.Initial) }},
		{"max", false, func(v value) { curveAt, g.maxAt = v.at(), v.at(); span(v, "retry.max", &b.Max) }},
		{"multiplier", false, func(v value) {
			curveAt = v.at()
			s, _ := d.text(v, "retry.multiplier")
			m, err := strconv.ParseFloat(s, 64)
			if err != nil || !(m >= 1 && m <= 100) {
				d.add(v.at(), "retry.multiplier is "+v.describe(), "a number from 1 to 100 is needed")
				return
			}
			b.Multiplier = m
		}},
		{"steps", false, func(v value) {
			stepsAt = v.at()
			d.list(v, "retry.steps", func(v value) {
				var step time.Duration
				span(v, "a step of retry", &step)
				b.Steps = append(b.Steps, step)
			})
			if len(b.Steps) > maxAttempts {
				d.add(v.at(), fmt.Sprintf("retry.steps has %d steps", len(b.Steps)), fmt.Sprintf("use at most %d", maxAttempts))
			}
		}},
	})
	switch {
	case stepsAt.line > 0 && curveAt.line > 0:
		d.add(stepsAt, "retry has both steps and a curve", "use either steps, or initial, max and multiplier")
	case curveAt.line > 0 && b.Max < b.Initial:
		d.add(g.maxAt.or(curveAt), fmt.Sprintf("retry waits at first %s and at most %s", FormatDuration(b.Initial), FormatDuration(b.Max)),
			"initial is not longer than max")
	}
}
