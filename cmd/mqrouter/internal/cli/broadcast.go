package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/broadcast"
	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
	"github.com/mqrouter/mqrouter/zone"
)

// changed is what the broadcast commands print.
type changed struct {
	MessageID string `json:"message_id"`
	Op        string `json:"op"`
	Key       string `json:"key"`
	Version   uint64 `json:"version"`
	Reached   string `json:"reached"` // the server's words
}

type broadcastFlags struct {
	at      endpointFlags
	topic   string
	key     string
	version uint64
	value   string
	ttl     time.Duration
}

func newBroadcast(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "broadcast",
		Short: "Change a key in the caches of every city",
		Long: `Publish a change on a topic with a broadcast route. It lands in every city,
whose cachesync applies it. Of all changes of a key the one with the greatest
version wins, in whatever order they arrive.

A change that is not answered for, as when its broker dies or another of the group
becomes master, is published again for at most --timeout, by way of the brokers of
the zone that live. That it may land twice changes nothing: versions say which wins.`,
	}
	c.AddCommand(
		broadcastCommand(e, broadcast.OpSet, "Set a key", "the cache key",
			`  mqrouter broadcast set --zone rz01 --key member:1001 --version 7 --value gold`),
		broadcastCommand(e, broadcast.OpDelete, "Delete a key", "the cache key",
			`  mqrouter broadcast delete --zone rz05 --key member:1001 --version 8`),
		broadcastCommand(e, broadcast.OpFlushPrefix, "Delete every key with a prefix and at most a version", "the prefix",
			`  mqrouter broadcast flush-prefix --zone rz03 --key member: --version 100`),
	)
	return c
}

func broadcastCommand(e *env, op broadcast.Op, short, key, example string) *cobra.Command {
	var p broadcastFlags
	c := &cobra.Command{
		Use: op.String(), Short: short, Example: example, Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return p.run(c.Context(), e, op) },
	}
	p.at.declare(c)
	e.fleetFlags(c)
	c.Flags().StringVar(&p.topic, "topic", "member", "topic with a broadcast route")
	c.Flags().StringVar(&p.key, "key", "", key+" (required)")
	c.Flags().Uint64Var(&p.version, "version", 0, "version of the change, 1 or more (required)")
	if op == broadcast.OpSet {
		c.Flags().StringVar(&p.value, "value", "", "the value")
		c.Flags().DurationVar(&p.ttl, "ttl", 0, "how long the value lives; 0: until it is changed")
	}
	return c
}

func (p *broadcastFlags) run(ctx context.Context, e *env, op broadcast.Op) error {
	change := broadcast.Change{Op: op, Key: p.key, Version: p.version, Value: []byte(p.value), TTL: p.ttl}
	switch {
	case p.key == "":
		return usageError{fmt.Errorf("--key is missing")}
	case p.version == 0:
		return usageError{fmt.Errorf("--version is missing: 1 or more")}
	}
	form, err := change.Format()
	if err != nil {
		return usageError{err}
	}
	if err := p.demandBroadcast(ctx, e); err != nil {
		return err
	}
	addrs, err := p.at.addresses(ctx, e)
	if err != nil {
		return err
	}
	secure, err := e.fleet.tls()
	if err != nil {
		return err
	}
	ids, err := rocketmqclient.NewIDs(rand.Reader)
	if err != nil {
		return err
	}
	producer := p.at.producer(addrs, rocketmqclient.Config{TLS: secure}, e.fleet.timeout, e.errOut, p.topic)
	defer producer.close()
	m := &rocketmqclient.Message{Topic: p.topic, ID: ids.Next(), Born: time.Now(), Keys: []string{form.Key}, Properties: form.Properties, Body: form.Body}
	var r rocketmqclient.SendResult
	if _, err := producer.do(ctx, func(ctx context.Context, producer *rocketmqclient.Producer) (err error) {
		r, err = producer.Send(ctx, m)
		return err
	}); err != nil {
		return fmt.Errorf("%s of %s on %s: %w", op, p.key, p.topic, err)
	}
	out := changed{MessageID: r.MessageID, Op: op.String(), Key: p.key, Version: p.version, Reached: r.Text}
	return e.line(out, fmt.Sprintf("%s  %s", out.MessageID, out.Reached))
}

// demandBroadcast refuses a topic that reaches no cache, where the deployment
// can be asked; with --endpoint alone, only the broker knows.
func (p *broadcastFlags) demandBroadcast(ctx context.Context, e *env) error {
	if p.at.zone == "" {
		return nil
	}
	f, err := e.openFleet(ctx)
	if err != nil {
		return err
	}
	t := f.topology.FindTopic(zone.Topic(p.topic))
	if t == nil {
		return fmt.Errorf("topic %q is not in the topology; give the one with the route broadcast: --topic", p.topic)
	}
	if k := t.Route.Kind; k != zone.RouteBroadcastCity && k != zone.RouteBroadcastZone {
		return fmt.Errorf("topic %s has the route %s: no cache would learn of the change; give one with the route broadcast: --topic", p.topic, t.Route)
	}
	return nil
}
