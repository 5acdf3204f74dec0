package broadcast_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/broadcast"
	"github.com/mqrouter/mqrouter/broadcast/cache"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// A service publishes a change through a broker of its own zone. It reaches the
// cache of every city.
func ExamplePublisher() {
	change := func(ctx context.Context) error {
		p, err := broadcast.NewPublisher(ctx, broadcast.PublisherOptions{Endpoint: "127.0.0.1:8081", Topic: "member"})
		if err != nil {
			return err
		}
		defer p.Close()
		// The version is that of the row in the database.
		if _, err := p.Set(ctx, "member:1001", 7, []byte("gold")); err != nil {
			return err
		}
		_, err = p.Delete(ctx, "member:1002", 3)
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := change(ctx); err != nil {
		fmt.Println(err)
	}
}

// What to give to the RocketMQ client of any language.
func ExampleChange_Format() {
	c := broadcast.Change{Op: broadcast.OpSet, Key: "member:1001", Version: 7, Value: []byte("gold"), TTL: time.Hour}
	m, err := c.Format()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("key", m.Key)
	names := []string{broadcast.PropertyOp, broadcast.PropertyTTL, broadcast.PropertyVersion}
	slices.Sort(names)
	for _, name := range names {
		fmt.Println("property", name, m.Properties[name])
	}
	fmt.Println("body", string(m.Body))
	// Output:
	// key member:1001
	// property mqr.op set
	// property mqr.ttl 3600000
	// property mqr.version 7
	// body gold
}

// A consumer of the topic can read changes as messages.
func ExampleParse() {
	c, err := broadcast.Parse([]string{"member:1001"}, map[string]string{"mqr.op": "delete", "mqr.version": "8"}, []byte("-"))
	fmt.Println(c.Op, c.Key, c.Version, err)
	_, err = broadcast.Parse([]string{"member:1001"}, map[string]string{"mqr.op": "delete", "mqr.version": "new"}, []byte("-"))
	fmt.Println(err)
	// Output:
	// delete member:1001 8 <nil>
	// broadcast: mqr.version is "new", want a decimal number from 1 to 18446744073709551615
}

// A service keeps a cache of its own, inside its process.
func ExampleSync() {
	members := cache.NewMemory(cache.MemoryOptions{})
	s, err := broadcast.NewSync(broadcast.Options{
		City: "shanghai", Topic: "member", Subscription: "member-cache", Exclusive: true,
		Applier: members, Kind: "memory",
		Dial:  func(ctx context.Context) (wire.Stream, error) { return nil, fmt.Errorf("no broker in this example") },
		OnGap: func(g broadcast.Gap) { fmt.Println("to be filled from the source:", g) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // a service cancels when it stops
	if err := s.Run(ctx); err != nil {
		fmt.Println(err)
	}
	e, err := members.Get(ctx, "member:1001")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(e.Found, s.Status().State)
	// Output: false stopped
}
