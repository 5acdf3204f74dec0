package broker

import (
	"fmt"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// send publishes a new message of a random kind at a random broker.
func (m *zoneModel) send() {
	m.t.Helper()
	_, s := m.living()
	topic := []zone.Topic{kindNormal, kindOnce, kindFIFO, kindDelay, kindTx, kindPriority}[m.rng.IntN(6)]
	m.next++
	x := &sent{id: fmt.Sprint(m.next), topic: topic, ofGroup: map[zone.ConsumerGroup]*reading{}}
	for _, g := range groupsOf(topic) {
		x.ofGroup[g] = &reading{}
	}
	x.message = s.message(topic, x.id)
	x.message.Body = make([]byte, m.rng.IntN(300))
	switch topic {
	case kindFIFO:
		x.message.MessageGroup = fmt.Sprint("group-", m.rng.IntN(4))
	case kindDelay:
		x.message.DeliverAt = time.Now().Add(time.Duration(m.rng.IntN(1800)-60) * time.Second)
	case kindPriority:
		x.message.Priority = int32(m.rng.IntN(3))
	}
	m.publish(s, x)
}

// sendAgain sends a copy of a message of an idempotent topic within its window, or
// what was refused before.
func (m *zoneModel) sendAgain() {
	_, s := m.living()
	if n := len(m.refused); n > 0 && m.rng.IntN(2) == 0 {
		x := m.refused[n-1]
		m.refused = m.refused[:n-1]
		if m.publish(s, x); m.all[x.id] != nil {
			m.counts["sent at last"]++
		}
		return
	}
	x := m.pick(func(x *sent) bool {
		return x.topic != kindNormal && x.topic != kindPriority && x.topic != kindLite && time.Since(x.at) < window
	})
	if x == nil {
		return
	}
	m.counts["copy"]++
	m.publish(s, x)
}

// publish sends a message, once more if it is known, and notes what that promises.
func (m *zoneModel) publish(s *station, x *sent) {
	m.t.Helper()
	x.message.Topic = s.Topology().FindTopic(x.topic)
	msg := x.message
	if m.mutant != nil && m.mutant.publish != nil {
		msg = m.mutant.publish(m, s, msg)
	}
	r := s.send(msg)
	known := m.all[x.id] != nil
	if KindOf(r.Err) == KindUnavailable && (!m.up[0] || !m.up[1]) {
		m.counts["unavailable"]++
		if !known {
			m.refused = append(m.refused, x)
		}
		return
	}
	if r.Err != nil {
		m.fail("message %s of %s: %v", x.id, x.topic, r.Err)
	}
	m.counts["sent"]++
	if known {
		if x.handle != "" && (r.Recall+r.TransactionID == "") {
			m.fail("a copy of %s of %s has no handle: %+v", x.id, x.topic, r)
		}
		return
	}
	x.at, x.visible = time.Now(), time.Now()
	switch {
	case r.TransactionID != "":
		x.handle, x.visible = r.TransactionID, time.Time{}
	case r.Recall != "":
		m.counts["delayed"]++
		x.handle, x.visible = r.Recall, x.message.DeliverAt
	case x.topic == kindTx || x.topic == kindDelay && x.message.DeliverAt.After(time.Now()):
		m.fail("message %s of %s has no handle: %+v", x.id, x.topic, r)
	}
	if x.topic == kindFIFO {
		g := x.message.MessageGroup
		x.numbered = len(m.fifo[g])
		m.fifo[g] = append(m.fifo[g], len(m.order))
	}
	if x.topic == kindLite {
		m.said(x)
	}
	m.all[x.id] = x
	m.order = append(m.order, x.id)
}

// decide recalls a delayed message, or ends a transaction, right or too late.
func (m *zoneModel) decide() {
	x := m.pick(func(x *sent) bool { return x.handle != "" && m.rng.IntN(2) == 0 })
	if x == nil {
		return
	}
	_, s := m.living()
	if x.topic == kindTx {
		m.end(s, x, []Resolution{ResolutionCommit, ResolutionCommit, ResolutionRollback, ResolutionUnknown}[m.rng.IntN(4)])
		return
	}
	// At the time itself, or when the broker was away then, either may come first; a
	// message that was delivered cannot be recalled any more.
	early := !x.never && time.Now().Before(x.visible)
	late := !x.never && x.ofGroup["one"].hands != nil
	id, err := s.Recall(m.t.Context(), x.topic, x.handle)
	switch {
	case KindOf(err) == KindUnavailable && (!m.up[0] || !m.up[1]):
	case late && err == nil:
		m.fail("message %s was recalled although it was delivered, due at %v", x.id, x.visible)
	case early && (err != nil || id != x.id):
		m.fail("recall of %s, due at %v: %q, %v", x.id, x.visible, id, err)
	case !late && err == nil:
		m.counts["recalled"]++
		x.never = true
	case KindOf(err) != KindSettled:
		m.fail("recall of %s: %v", x.id, err)
	}
}

// end decides a transaction: the first decision counts.
func (m *zoneModel) end(s *station, x *sent, r Resolution) {
	m.t.Helper()
	err := s.EndTransaction(m.t.Context(), x.topic, x.handle, r)
	if KindOf(err) == KindUnavailable && (!m.up[0] || !m.up[1]) {
		return
	}
	other := x.decided != ResolutionUnknown && r != ResolutionUnknown && r != x.decided
	switch {
	case other && KindOf(err) != KindDecided:
		m.fail("message %s was decided %d, and then %d: %v", x.id, x.decided, r, err)
	case other || err == nil && (r == ResolutionUnknown || x.decided != ResolutionUnknown):
	case err != nil:
		m.fail("end of %s with %d: %v", x.id, r, err)
	case r == ResolutionCommit:
		m.counts["committed"]++
		x.decided, x.visible = r, time.Now()
	default:
		m.counts["rolled back"]++
		x.decided, x.never = r, true
	}
}

// receive takes messages of a random topic for each of its groups, at a broker.
func (m *zoneModel) receive(i, most int, invisible time.Duration) {
	m.t.Helper()
	if !m.up[i] {
		return
	}
	topics := []zone.Topic{kindNormal, kindOnce, kindFIFO, kindDelay, kindTx, kindPriority}
	if most < 1000 {
		topics = topics[m.rng.IntN(6):][:1]
	}
	for _, topic := range topics {
		for _, g := range groupsOf(topic) {
			list := m.s[i].receive(g, topic, most, invisible)
			if m.mutant != nil && m.mutant.delivered != nil {
				list = m.mutant.delivered(m, i, g, list)
			}
			for _, d := range list {
				m.took(i, g, topic, d, time.Now().Add(invisible))
			}
		}
	}
}

// took judges a delivery.
func (m *zoneModel) took(i int, g zone.ConsumerGroup, topic zone.Topic, d Delivery, until time.Time) {
	m.t.Helper()
	id := string(d.Record.MessageID())
	x := m.all[id]
	if x == nil || x.topic != topic || string(d.Record.Body()) != string(x.message.Body) {
		m.fail("%s was delivered on %s: nobody sent that", id, topic)
	}
	r := x.ofGroup[g]
	switch before := m.blocked(x, g); {
	case !x.due():
		m.fail("message %s of %s was delivered: visible %v, never %v", id, topic, x.visible, x.never)
	case r.settled || r.acked:
		m.fail("message %s of %s was delivered to %s again after it was settled", id, topic, g)
	case r.hands != nil && r.hands.until.After(time.Now()):
		m.fail("message %s of %s is in hands until %v and was delivered to %s again", id, topic, r.hands.until, g)
	case before != nil:
		m.fail("message %s of message group %s came before %s was settled", id, x.message.MessageGroup, before.id)
	}
	m.counts["received"]++
	if r.hands != nil {
		m.counts["again"]++
	}
	r.unsure, r.hands = false, &held{d: d, by: i, until: until}
}

// settle does something with a message that is in hands, or was.
func (m *zoneModel) settle() {
	var g zone.ConsumerGroup
	x := m.pick(func(x *sent) bool {
		if x.over {
			return false
		}
		for _, g = range groupsOf(x.topic) {
			if r := x.ofGroup[g]; r.hands != nil && !r.settled && !r.acked && m.up[r.hands.by] {
				return true
			}
		}
		return false
	})
	if x == nil {
		return
	}
	r := x.ofGroup[g]
	s := m.s[r.hands.by]
	mine := !r.hands.old && r.hands.until.After(time.Now())
	switch n := m.rng.IntN(10); {
	case n < 7:
		m.ack(x, g, r)
	case n < 9:
		d := time.Duration(m.rng.IntN(30)) * time.Second
		handle, err := s.ChangeInvisible(m.t.Context(), g, x.topic, r.hands.d.Handle, d)
		switch {
		case err == nil:
			m.counts["hidden"]++
			r.hands.d.Handle, r.hands.until = handle, time.Now().Add(d)
		case mine || KindOf(err) != KindHandle:
			m.fail("hide %s of %s, which is in hands until %v: %v", x.id, x.topic, r.hands.until, err)
		}
	default:
		switch err := s.DeadLetter(m.t.Context(), g, x.topic, r.hands.d.Handle); {
		case err == nil:
			m.counts["dead"]++
			r.settled = true
		case mine || KindOf(err) != KindHandle:
			m.fail("dead-letter %s of %s: %v", x.id, x.topic, err)
		}
	}
}

func (m *zoneModel) ack(x *sent, g zone.ConsumerGroup, r *reading) {
	m.t.Helper()
	mine := !r.hands.old && r.hands.until.After(time.Now())
	switch err := m.s[r.hands.by].Ack(m.t.Context(), g, x.topic, r.hands.d.Handle); {
	case err == nil:
		m.counts["acked"]++
		r.acked = true
		if !mine {
			m.counts["late ack"]++
		}
	case mine || KindOf(err) != KindHandle:
		m.fail("acknowledge %s of %s, which is in hands until %v: %v", x.id, x.topic, r.hands.until, err)
	}
}
