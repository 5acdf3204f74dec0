package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// letterDesk shows a broker's dead letters to operators.
type letterDesk struct{ n *brokerNode }

// Queues implements admin.DeadLetters.
func (d letterDesk) Queues(ctx context.Context) ([]admin.DeadLetterQueue, error) {
	list, err := d.n.broker.DeadLetterQueues(ctx)
	var all []admin.DeadLetterQueue
	for _, q := range list {
		all = append(all, admin.DeadLetterQueue{
			Node: string(d.n.self.Name), City: string(d.n.self.City.Name), Zone: string(d.n.self.Zone.Name),
			Queue: string(q.Topic), Group: string(q.Group), Held: q.Next - q.First, Pending: q.Pending,
			Oldest: q.Oldest, Reasons: q.Reasons, Counted: q.Counted,
		})
	}
	return all, requestError(err)
}

// Bounds of what a page carries besides the headers of its letters, in bytes.
const (
	maxBodies     = 16 << 20
	maxProperties = 64 << 10 // of a letter
)

// Letters implements admin.DeadLetters.
func (d letterDesk) Letters(ctx context.Context, q admin.DeadLetterQuery) (admin.DeadLetterPage, error) {
	var props []record.Property
	for _, p := range q.Properties {
		name, value, _ := strings.Cut(p, "=")
		props = append(props, record.Property{Key: name, Value: value})
	}
	list, next, err := d.n.broker.DeadLetters(ctx, broker.DeadLetterQuery{
		Tag: q.Tag, Key: q.Key, Properties: props,
		Topic: zone.Topic(q.Queue), From: q.From, Limit: q.Limit, MessageID: q.MessageID, Reason: q.Reason,
		City: zone.City(q.City), Destination: zone.Group(q.Destination), Since: q.Since, Until: q.Until, Pending: q.Pending,
	})
	if err != nil {
		return admin.DeadLetterPage{}, requestError(err)
	}
	page := admin.DeadLetterPage{Next: next}
	bytes := 0
	for i := range list {
		if bytes > maxBodies {
			page.Next = list[i].Offset
			break
		}
		l := d.letter(&list[i], q.Body)
		bytes += len(l.Body)
		page.Letters = append(page.Letters, l)
	}
	return page, nil
}

func (d letterDesk) letter(l *broker.DeadLetter, body int) admin.DeadLetter {
	v, c := l.Record, &l.Cause
	out := admin.DeadLetter{
		Node: string(d.n.self.Name), Zone: string(d.n.self.Zone.Name), Queue: string(l.Topic), Offset: l.Offset,
		MessageID: string(v.MessageID()), Topic: string(c.Topic), Reason: c.Word(), Why: why(c), Group: string(c.Group), Attempts: c.Attempts,
		City: string(c.City), Dest: string(c.Destination), Number: c.Number, Born: v.Born(), Dead: l.Dead, Replayed: l.Replayed,
		Tag: string(v.Tag()), MsgGroup: string(v.MessageGroup()), BodySize: len(v.Body()),
		Body: v.Body()[:min(body, len(v.Body()))],
	}
	for k := range v.Keys {
		out.Keys = append(out.Keys, string(k))
	}
	size := 0
	for k, value := range v.Properties {
		if size += len(k) + len(value); size > maxProperties {
			break
		}
		out.Properties = append(out.Properties, []string{string(k), string(value)})
	}
	return out
}

// why says for people why a message was given up.
func why(c *broker.Cause) string {
	if c.Kind == broker.CauseConsumer {
		return fmt.Sprintf("consumer group %s gave it up after attempt %d", c.Group, c.Attempts)
	}
	if c.Kind == broker.CauseStranded {
		return fmt.Sprintf("a delayed message that was due when topic %s was gone", c.Topic)
	}
	if c.Kind == broker.CauseUndecided {
		if c.Reason == record.ReasonUnknownTopic {
			return fmt.Sprintf("a half message of a topic that takes no transactions any more; producers were asked %d times", c.Attempts)
		}
		return fmt.Sprintf("a half message that no producer decided; they were asked %d times", c.Attempts)
	}
	return fmt.Sprintf("%s in %s did not take it: %s", c.Destination, c.City, c.Word())
}

// Replay implements admin.DeadLetters.
func (d letterDesk) Replay(ctx context.Context, r admin.ReplayRequest) ([]admin.ReplayResult, error) {
	list, err := d.n.broker.Replay(ctx, broker.ReplayRequest{Topic: zone.Topic(r.Queue), Offsets: r.Offsets, Force: r.Force, DryRun: r.DryRun})
	var all []admin.ReplayResult
	for _, res := range list {
		one := admin.ReplayResult{Offset: res.Offset, MessageID: res.MessageID, Outcome: res.Outcome.String(), Where: res.Where}
		if res.Err != nil {
			one.Error = res.Err.Error()
		}
		all = append(all, one)
	}
	return all, requestError(err)
}

// requestError gives errors of the broker the status that they mean.
func requestError(err error) error {
	if err == nil {
		return nil
	}
	status := http.StatusInternalServerError
	switch broker.KindOf(err) {
	case broker.KindInvalid:
		status = http.StatusBadRequest
	case broker.KindOffset, broker.KindUnsupported:
		status = http.StatusConflict
	case broker.KindTopicUnknown, broker.KindGroupUnknown:
		status = http.StatusNotFound
	case broker.KindBusy, broker.KindDiskFull, broker.KindBudget, broker.KindClosed, broker.KindStopped:
		status = http.StatusServiceUnavailable
	case broker.KindNotMaster: // it was, when it began
		status = http.StatusMisdirectedRequest
	}
	return &admin.RequestError{Status: status, Err: err}
}

// errNotOperator refuses a change that another node asks for.
var errNotOperator = errors.New("changes are made with an operator's certificate: see mqrouter pki issue --admin")

// operatorOnly lets only operators change something.
func operatorOnly(cs *tls.ConnectionState) error {
	if len(cs.PeerCertificates) == 0 {
		return errNotOperator
	}
	id, err := peer.IdentityOf(cs.PeerCertificates[0])
	if err != nil {
		return err
	}
	if id.Role != zone.RoleAdmin {
		return errNotOperator
	}
	return nil
}

var _ admin.DeadLetters = letterDesk{}
