package zone

import "fmt"

// checkReceipts reports receipts that could not be given, or could not get where they
// are for: into every zone where the topic is published.
func (d *draft) checkReceipts(t *draftTopic) {
	to, name := t.info.Receipts, t.info.Name
	if to == nil {
		return
	}
	at := t.receipts.at
	switch {
	case to == t.info || to.Receipts != nil:
		d.add(at, fmt.Sprintf("topic %s has receipts on topic %s, which has receipts itself", name, to.Name),
			"give the receipts a topic of their own, without receipts")
	case t.info.Channel != nil:
		d.add(at, fmt.Sprintf("topic %s has receipts, and its route is %s", name, t.info.Route),
			"a publisher of broadcasts waits for a token instead; remove receipts")
	case to.Kind != KindNormal && to.Kind != 0:
		d.add(at, fmt.Sprintf("topic %s has receipts on topic %s, whose kind is %s", name, to.Name, to.Kind),
			"receipts are normal messages; use a topic of kind normal")
	case to.Route.Kind != RouteLocal && to.Route.Kind != 0:
		d.add(at, fmt.Sprintf("topic %s has receipts on topic %s, whose route is %s", name, to.Name, to.Route),
			"a receipt goes to the zone where its message was published, whatever it says; use a topic with the route local")
	case len(t.info.Groups) == 0:
		d.add(at, fmt.Sprintf("topic %s has receipts, and no consumer group subscribes to it", name),
			"declare a consumer group, or remove receipts")
	}
	for _, c := range d.topo.Cities {
		if t.info.ResidentIn(c) && !to.ResidentIn(c) {
			d.add(at, fmt.Sprintf("topic %s has receipts on topic %s, whose residency keeps them out of city %s, where messages may be published", name, to.Name, c.Name),
				fmt.Sprintf("add %s to the residency of %s", c.Name, to.Name))
			return
		}
	}
}
