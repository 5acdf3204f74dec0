package rocketmq

import (
	"context"
	"math"
	"net"
	"strconv"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/mqrouter/mqrouter/broker"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// allQueues as the id of an assigned queue stands for all queues of its broker.
const allQueues = -1

// subject is a topic as a client may name it: one of the topology, the dead-letter
// topic of a consumer group, or broker.ParkedTopic.
type subject struct {
	name     zone.Topic
	info     *zone.TopicInfo // nil for a dead-letter topic
	queues   int
	types    []pb.MessageType // that it takes
	readable bool             // consumers of this zone find it here
	writable bool
}

// find looks a topic up as this node's zone sees it.
func find(t *zone.Topology, z *zone.ZoneInfo, name zone.Topic) (subject, *pb.Status) {
	if z == nil {
		return subject{}, refuse(pb.Code_INTERNAL_SERVER_ERROR, "the topology does not have this node's zone")
	}
	if g, ok := strings.CutPrefix(string(name), broker.DeadLetterPrefix); ok {
		info := t.FindConsumerGroup(zone.ConsumerGroup(g))
		if info == nil && !t.UnknownGroupsNewest && name != broker.ParkedTopic {
			return subject{}, refuse(pb.Code_TOPIC_NOT_FOUND, "there is no consumer group "+g+" for the topic "+string(name))
		}
		return subject{name: name, queues: 1, types: acceptedBy(zone.KindNormal), readable: true}, nil
	}
	info := t.FindTopic(name)
	if info == nil {
		return subject{}, refuse(pb.Code_TOPIC_NOT_FOUND, "the topology does not declare the topic "+string(name))
	}
	s := subject{name: name, info: info, queues: max(info.Queues, 1), types: acceptedBy(info.Kind)}
	s.writable = info.ResidentIn(z.City)
	s.readable = t.LandsIn(info, z)
	return s, nil
}

func (s subject) permission() pb.Permission {
	switch {
	case s.readable && s.writable:
		return pb.Permission_READ_WRITE
	case s.readable:
		return pb.Permission_READ
	case s.writable:
		return pb.Permission_WRITE
	}
	return pb.Permission_NONE
}

// messageTypes maps the kinds of topics to the protocol.
var messageTypes = map[zone.MessageKind]pb.MessageType{
	zone.KindNormal:      pb.MessageType_NORMAL,
	zone.KindFIFO:        pb.MessageType_FIFO,
	zone.KindDelay:       pb.MessageType_DELAY,
	zone.KindTransaction: pb.MessageType_TRANSACTION,
	zone.KindPriority:    pb.MessageType_PRIORITY,
	zone.KindLite:        pb.MessageType_LITE,
}

// messageType returns the protocol's type, never 0, at which Java would throw.
func messageType(k zone.MessageKind) pb.MessageType {
	if t, ok := messageTypes[k]; ok {
		return t
	}
	return pb.MessageType_NORMAL
}

// brokersOf describes a broker group to clients, each of its nodes that serves them as
// a broker of its own, the master first: a client whose node is gone goes on with
// another within the same send, since its tries go to brokers of different names. A
// broker has id 0 and one address, since some clients cannot connect when there are
// several. A group of one node has the group's name; nodes of a larger one have their
// own, which stays when the master moves.
func (s *Server) brokersOf(g *zone.GroupInfo) []*pb.Broker {
	nodes := g.Nodes
	if len(nodes) > 1 && s.opts.Fronts != nil {
		if living := s.opts.Fronts(g); len(living) > 0 {
			nodes = living
		}
	}
	var all []*pb.Broker
	for _, n := range nodes {
		name := string(g.Name)
		if len(g.Nodes) > 1 {
			name = string(n.Name)
		}
		if b := brokerAt(name, n.Client); b != nil {
			all = append(all, b)
		}
	}
	return all
}

// brokerAt describes a broker, or returns nil when it has no client address.
func brokerAt(name, client string) *pb.Broker {
	host, portText, err := net.SplitHostPort(client)
	if err != nil {
		return nil
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil
	}
	return &pb.Broker{Name: name, Endpoints: &pb.Endpoints{
		Scheme:    addressScheme(host),
		Addresses: []*pb.Address{{Host: host, Port: int32(port)}},
	}}
}

// groupOf returns the broker group that a client means by a broker's name.
func groupOf(t *zone.Topology, name string) zone.Group {
	if n := t.FindNode(zone.Node(name)); n != nil && n.Group != nil && len(n.Group.Nodes) > 1 {
		return n.Group.Name
	}
	return zone.Group(name)
}

func addressScheme(host string) pb.AddressScheme {
	ip := net.ParseIP(host)
	switch {
	case ip == nil:
		return pb.AddressScheme_DOMAIN_NAME
	case ip.To4() != nil:
		return pb.AddressScheme_IPv4
	}
	return pb.AddressScheme_IPv6
}

// QueryRoute lists the queues of a topic at the brokers of this node's zone: at
// each the ids from 0 on, as Node uses queue 0 only. The order is stable, and goes
// from broker to broker: simple consumers ask one queue after the other and wait at
// each for their whole poll time, although each broker answers for all its queues. A
// replica, which passes on what it gets, has queue 0 only: it is for when the master
// is gone, and costs a hop until then.
func (s *Server) QueryRoute(ctx context.Context, req *pb.QueryRouteRequest) (*pb.QueryRouteResponse, error) {
	queues, st := s.route(ctx, req)
	return &pb.QueryRouteResponse{Status: st, MessageQueues: queues}, nil
}

// languageOfNode is what the client for Node.js says it is written in.
const languageOfNode = "HTTP"

// accessPoint returns the address that all brokers of a route have instead of their
// own; nil = none. A producer of the client for Node.js (1.0.8) sends each message
// group to the broker that the first route named for it, as long as it lives: newer
// routes change nothing, and when that node is down the message group stands still. So
// in order it stays with the address where it began, if that leads to all nodes: it is
// none of theirs. Where the zone has several broker groups it would have to lead to
// the right one, which no address does.
func accessPoint(ctx context.Context, began *pb.Endpoints, z *zone.ZoneInfo, sub subject) *pb.Endpoints {
	if sub.info == nil || sub.info.Kind != zone.KindFIFO || len(z.Groups) != 1 || len(z.Groups[0].Nodes) == 1 || len(began.GetAddresses()) != 1 {
		return nil
	}
	if v := metadata.ValueFromIncomingContext(ctx, "x-mq-language"); len(v) == 0 || v[0] != languageOfNode {
		return nil
	}
	a := began.GetAddresses()[0]
	if a.GetHost() == "" || a.GetPort() <= 0 || a.GetPort() > math.MaxUint16 {
		return nil
	}
	for _, n := range z.Groups[0].Nodes {
		if n.Client == net.JoinHostPort(a.GetHost(), strconv.Itoa(int(a.GetPort()))) {
			return nil
		}
	}
	return &pb.Endpoints{Scheme: addressScheme(a.GetHost()), Addresses: []*pb.Address{{Host: a.GetHost(), Port: a.GetPort()}}}
}

// seek judges who asks, and looks up the topic that is named.
func (s *Server) seek(ctx context.Context, topic *pb.Resource) (t *zone.Topology, z *zone.ZoneInfo, sub subject, st *pb.Status) {
	if _, st = s.caller(ctx); st != nil {
		return nil, nil, sub, st
	}
	name, st := topicName(ctx, topic)
	if st != nil {
		return nil, nil, sub, st
	}
	t, z = s.topology()
	sub, st = find(t, z, name)
	return t, z, sub, st
}

func (s *Server) route(ctx context.Context, req *pb.QueryRouteRequest) ([]*pb.MessageQueue, *pb.Status) {
	_, z, sub, st := s.seek(ctx, req.GetTopic())
	if st != nil {
		return nil, st
	}
	if sub.permission() == pb.Permission_NONE {
		return nil, refuse(pb.Code_FORBIDDEN, "the topic "+string(sub.name)+" may not be used in the city "+string(z.City.Name))
	}
	var masters, all []*pb.Broker
	began := accessPoint(ctx, req.GetEndpoints(), z, sub)
	for _, g := range z.Groups {
		if list := s.brokersOf(g); len(list) > 0 {
			masters, all = append(masters, list[0]), append(all, list...)
		}
	}
	out := make([]*pb.MessageQueue, 0, len(masters)*sub.queues+len(all))
	for id := range sub.queues {
		brokers := masters
		if id == 0 {
			brokers = all
		}
		for _, b := range brokers {
			if began != nil {
				b = &pb.Broker{Name: b.GetName(), Endpoints: began}
			}
			out = append(out, &pb.MessageQueue{
				Topic: req.GetTopic(), Id: int32(id), Permission: sub.permission(), Broker: b,
				AcceptMessageTypes: sub.types,
			})
		}
	}
	if len(out) == 0 {
		return nil, refuse(pb.Code_INTERNAL_SERVER_ERROR, "no broker of the zone "+string(z.Name)+" has a client address")
	}
	return out, statusOK
}

// QueryAssignment gives every push consumer all brokers of the zone that hold the
// topic, one entry for all queues of each: consumers share the load by receiving. A
// pull consumer gets each queue, for that is what it pulls from. In order it is one
// entry for each queue as well, as a client has one receive at a time for each entry,
// and then gets one message by each (see receiveRequest). Of a group with replicas it
// is the master alone, or while there is none a replica: clients ask again within 5 s.
func (s *Server) QueryAssignment(ctx context.Context, req *pb.QueryAssignmentRequest) (*pb.QueryAssignmentResponse, error) {
	out, st := s.assign(ctx, req)
	return &pb.QueryAssignmentResponse{Status: st, Assignments: out}, nil
}

func (s *Server) assign(ctx context.Context, req *pb.QueryAssignmentRequest) ([]*pb.Assignment, *pb.Status) {
	t, z, sub, st := s.seek(ctx, req.GetTopic())
	if st != nil {
		return nil, st
	}
	group, st := groupName(ctx, req.GetGroup())
	if st != nil {
		return nil, st
	}
	if st := consumable(t, z, sub, group); st != nil {
		s.tellDenied(ctx, req.GetGroup(), req.GetTopic(), st)
		return nil, st
	}
	ids := []int32{allQueues}
	id, _ := clientID(ctx) // judged before
	if oneByOne(t, group, sub.info) || s.clients.kind(id) == pb.ClientType_PULL_CONSUMER {
		ids = ids[:0]
		for id := range sub.queues {
			ids = append(ids, int32(id))
		}
	}
	var out []*pb.Assignment
	for _, g := range z.Groups {
		list := s.brokersOf(g)
		if len(list) == 0 {
			continue
		}
		for _, id := range ids {
			out = append(out, &pb.Assignment{MessageQueue: &pb.MessageQueue{
				Topic: req.GetTopic(), Id: id, Permission: sub.permission(), Broker: list[0],
				AcceptMessageTypes: sub.types,
			}})
		}
	}
	return out, statusOK
}

// consumable judges whether the group may receive the topic in this zone. nil
// means yes. A valid topology has each group consume wherever its topics land.
func consumable(t *zone.Topology, z *zone.ZoneInfo, sub subject, group zone.ConsumerGroup) *pb.Status {
	info := t.FindConsumerGroup(group)
	switch {
	case info == nil && !t.UnknownGroupsNewest:
		return refuse(pb.Code_CONSUMER_GROUP_NOT_FOUND, "the topology does not declare the consumer group "+string(group))
	case !sub.readable:
		return refuse(pb.Code_FORBIDDEN, "the topic "+string(sub.name)+" does not land in the zone "+string(z.Name)+" and cannot be received here")
	case sub.info != nil && accepted[sub.info.Kind] == nil:
		return supportedKind(sub.info)
	case info == nil:
		return nil
	case info.Cache:
		return refuse(pb.Code_FORBIDDEN, "the consumer group "+string(group)+" is a cache's subscription and not received by clients")
	case sub.info == nil:
		return nil
	case !subscribes(info, sub.info):
		return refuse(pb.Code_CONSUMER_GROUP_NOT_FOUND, "the consumer group "+string(group)+" does not subscribe to the topic "+string(sub.name))
	}
	return nil
}

func subscribes(g *zone.ConsumerGroupInfo, topic *zone.TopicInfo) bool {
	for _, o := range g.Topics {
		if o == topic {
			return true
		}
	}
	return false
}
