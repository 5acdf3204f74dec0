package rocketmq

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// TestRoutesNameTheLivingFrontEndsOfAGroup: each node of a group with replicas is a
// broker of its own name, so that a client's tries within one send go to different
// nodes; the master has all queues, replicas one; assignments are of the master alone.
func TestRoutesNameTheLivingFrontEndsOfAGroup(t *testing.T) {
	var living []zone.Node // of g2, the master first
	b := start(t, func(o *Options) {
		text := fmt.Sprintf(topologyText, 8081)
		text = strings.Replace(text, "  - name: here\n", "  - name: here\n    coordinator: {driver: consul}\n", 1)
		text = strings.Replace(text, "nodes: [{name: b2,", "nodes: [{name: b2-x, client: \"x.example:1\", peer: \"x.example:2\", gossip: \"x.example:3\"},"+
			"{name: b2-y, client: \"y.example:1\", peer: \"y.example:2\", gossip: \"y.example:3\"}, {name: b2,", 1)
		topo, err := zone.Parse([]byte(text), "test.yaml")
		if err != nil {
			t.Fatal(err)
		}
		o.Store = newMemStore(topo)
		o.Group = "g2"
		o.Fronts = func(g *zone.GroupInfo) []*zone.NodeInfo {
			if len(g.Nodes) == 1 {
				t.Errorf("asked about %s, which has one node", g.Name)
			}
			var list []*zone.NodeInfo
			for _, n := range living {
				list = append(list, g.Member(n))
			}
			return list
		}
	})
	c := b.dial(t, nil)
	names := func(queues []*pb.MessageQueue) string {
		var all []string
		for _, q := range queues {
			if n := len(q.GetBroker().GetEndpoints().GetAddresses()); n != 1 {
				t.Errorf("%d addresses of one broker", n)
			}
			all = append(all, fmt.Sprintf("%s/%d@%s", q.GetBroker().GetName(), q.GetId(), q.GetBroker().GetEndpoints().GetAddresses()[0].GetHost()))
		}
		return strings.Join(all, " ")
	}
	for _, step := range []struct {
		living   []zone.Node
		route    string
		assigned string
	}{
		{[]zone.Node{"b2-y", "b2", "b2-x"}, "g1/0@127.0.0.1 b2-y/0@y.example b2/0@broker.example b2-x/0@x.example g1/1@127.0.0.1 b2-y/1@y.example", "g1/-1@127.0.0.1 b2-y/-1@y.example"},
		{[]zone.Node{"b2", "b2-x"}, "g1/0@127.0.0.1 b2/0@broker.example b2-x/0@x.example g1/1@127.0.0.1 b2/1@broker.example", "g1/-1@127.0.0.1 b2/-1@broker.example"},
		{nil, "g1/0@127.0.0.1 b2-x/0@x.example b2-y/0@y.example b2/0@broker.example g1/1@127.0.0.1 b2-x/1@x.example", "g1/-1@127.0.0.1 b2-x/-1@x.example"},
	} {
		living = step.living
		r, err := c.QueryRoute(as(t, "c"), &pb.QueryRouteRequest{Topic: res("t")})
		if err != nil {
			t.Fatal(err)
		}
		if got := names(r.GetMessageQueues()); got != step.route {
			t.Errorf("route %s\nwant  %s", got, step.route)
		}
		a, err := c.QueryAssignment(as(t, "c"), &pb.QueryAssignmentRequest{Topic: res("t"), Group: res("g")})
		if err != nil {
			t.Fatal(err)
		}
		var queues []*pb.MessageQueue
		for _, x := range a.GetAssignments() {
			queues = append(queues, x.GetMessageQueue())
		}
		if got := names(queues); got != step.assigned {
			t.Errorf("assigned %s\nwant     %s", got, step.assigned)
		}
	}
	// A queue of any of the group's names is one of the group.
	top := b.Server.store.Topology()
	for _, name := range []string{"b2", "b2-x", "b2-y", "g2"} {
		if g := groupOf(top, name); g != "g2" {
			t.Errorf("%s is a name of %s", name, g)
		}
	}
	if g := groupOf(top, "b1"); g != "b1" { // of a group of one node, whose name stands in routes
		t.Errorf("b1 is a name of %s", g)
	}
}

// TestANodeJSProducerInOrderStaysWithItsAccessPoint: it keeps the first route of a topic
// for ever, so that no message group may be bound to a node that dies.
func TestANodeJSProducerInOrderStaysWithItsAccessPoint(t *testing.T) {
	b := start(t, func(o *Options) {
		text := fmt.Sprintf(topologyText, 8081)
		text = strings.Replace(text, "  - name: here\n", "  - name: here\n    coordinator: {driver: consul}\n", 1)
		text = strings.Replace(text, "slots: 0-511", "slots: 0-1023", 1)
		begin := strings.Index(text, "          - name: g2\n")
		text = text[:begin] + text[strings.Index(text, "      - name: c1\n"):]
		text = strings.Replace(text, "nodes: [{name: b1,", "nodes: [{name: b1-x, client: \"x.example:1\", peer: \"x.example:2\", gossip: \"x.example:3\"},{name: b1,", 1)
		topo, err := zone.Parse([]byte(text), "test.yaml")
		if err != nil {
			t.Fatal(err)
		}
		o.Store = newMemStore(topo)
		o.Group = "g1"
	})
	c := b.dial(t, nil)
	const own = "b1-x@x.example:1 b1@127.0.0.1:8081"
	for _, step := range []struct {
		what, language, topic string
		began                 []string
		want                  string
	}{
		{"a balancer", "HTTP", "ordered", []string{"front.example:80"}, "b1-x@front.example:80 b1@front.example:80"},
		{"an address of a balancer", "HTTP", "ordered", []string{"10.0.0.1:80"}, "b1-x@10.0.0.1:80 b1@10.0.0.1:80"},
		{"not in order", "HTTP", "t", []string{"front.example:80"}, own},
		{"another client", "JAVA", "ordered", []string{"front.example:80"}, own},
		{"no client", "", "ordered", []string{"front.example:80"}, own},
		{"a node of the group", "HTTP", "ordered", []string{"x.example:1"}, own},
		{"several", "HTTP", "ordered", []string{"front.example:80", "back.example:80"}, own},
		{"none", "HTTP", "ordered", nil, own},
		{"not a port", "HTTP", "ordered", []string{"front.example:70000"}, own},
		{"not a host", "HTTP", "ordered", []string{":80"}, own},
	} {
		began := &pb.Endpoints{}
		for _, a := range step.began {
			host, text, _ := strings.Cut(a, ":")
			port, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			began.Addresses = append(began.Addresses, &pb.Address{Host: host, Port: int32(port)})
		}
		ctx := as(t, "c")
		if step.language != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "x-mq-language", step.language)
		}
		r, err := c.QueryRoute(ctx, &pb.QueryRouteRequest{Topic: res(step.topic), Endpoints: began})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, q := range r.GetMessageQueues() {
			e := q.GetBroker().GetEndpoints()
			if n := len(e.GetAddresses()); n != 1 || e.GetScheme() != addressScheme(e.GetAddresses()[0].GetHost()) {
				t.Errorf("%s: endpoints %v", step.what, e)
			}
			if q.GetId() == 0 {
				got = append(got, fmt.Sprintf("%s@%s:%d", q.GetBroker().GetName(), e.GetAddresses()[0].GetHost(), e.GetAddresses()[0].GetPort()))
			}
		}
		if got := strings.Join(got, " "); got != step.want {
			t.Errorf("%s: %s, want %s", step.what, got, step.want)
		}
	}
}
