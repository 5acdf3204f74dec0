package e2e

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
)

// collected is an OpenTelemetry collector that keeps what it gets, over gRPC and
// over HTTP.
type collected struct {
	collector.UnimplementedTraceServiceServer
	grpc, http string // endpoints

	mu    sync.Mutex
	spans []collectedSpan // guarded by mu
}

// collectedSpan is a span and the node that made it.
type collectedSpan struct {
	*tracepb.Span
	node string
}

func (s *collectedSpan) attr(key string) string {
	for _, a := range s.GetAttributes() {
		if a.GetKey() == key {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

func newCollector(t *testing.T) *collected {
	c := &collected{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	collector.RegisterTraceServiceServer(s, c)
	go func() { _ = s.Serve(l) }() // ends with Stop
	t.Cleanup(s.Stop)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		var req collector.ExportTraceServiceRequest
		if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(b, &req) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		c.add(&req)
	}))
	t.Cleanup(h.Close)
	c.grpc, c.http = "http://"+l.Addr().String(), h.URL
	return c
}

// Export implements the OTLP service.
func (c *collected) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.add(req)
	return &collector.ExportTraceServiceResponse{}, nil
}

func (c *collected) add(req *collector.ExportTraceServiceRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rs := range req.GetResourceSpans() {
		node := ""
		for _, a := range rs.GetResource().GetAttributes() {
			if a.GetKey() == "service.instance.id" {
				node = a.GetValue().GetStringValue()
			}
		}
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				c.spans = append(c.spans, collectedSpan{s, node})
			}
		}
	}
}

// trace returns the spans of a trace.
func (c *collected) trace(id []byte) []collectedSpan {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.spans), func(s collectedSpan) bool { return !bytes.Equal(s.GetTraceId(), id) })
}

// client is the trace of a client: its ids and its traceparent.
func client(n byte, sampled bool) (trace, span []byte, parent string) {
	trace, span = bytes.Repeat([]byte{n}, 16), bytes.Repeat([]byte{n + 1}, 8)
	return trace, span, fmt.Sprintf("00-%x-%x-%02x", trace, span, map[bool]int{true: 1}[sampled])
}

// sendTraced publishes a message with a trace context in city a.
func (c *cluster) sendTraced(topic, parent string, properties map[string]string, keys ...string) {
	c.t.Helper()
	p, err := rocketmqclient.NewProducer(c.t.Context(), rocketmqclient.Config{Endpoint: c.nodes["rz-a-1"].client}, topic)
	if err != nil {
		c.t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.Send(c.t.Context(), &rocketmqclient.Message{Topic: topic, Body: []byte("pay"), Properties: properties, Keys: keys, TraceContext: parent}); err != nil {
		c.t.Fatal(err)
	}
}

// receiveTraced receives one message and returns its trace context.
func (c *cluster) receiveTraced(node, topic, group string) string {
	c.t.Helper()
	consumer, err := rocketmqclient.NewSimpleConsumer(c.t.Context(), rocketmqclient.Config{Endpoint: c.nodes[node].client}, group, time.Second, rocketmqclient.Subscription{Topic: topic})
	if err != nil {
		c.t.Fatal(err)
	}
	defer consumer.Close()
	var got []*rocketmqclient.Received
	eventually(c.t, "a message of "+topic+" at "+node, time.Minute, func() error {
		if got, err = consumer.Receive(c.t.Context(), 1, 30*time.Second); err == nil && len(got) == 0 {
			err = fmt.Errorf("nothing")
		}
		return err
	})
	if err := consumer.Ack(c.t.Context(), got...); err != nil {
		c.t.Error(err)
	}
	return got[0].TraceContext
}

// TestOneTraceFromPublishToReceive: every node is a process of its own; brokers
// and caches tell the collector over gRPC, routers over HTTP. One trace, the
// client's, has the spans of all stations, each under its right parent.
func TestOneTraceFromPublishToReceive(t *testing.T) {
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "200") // ms; the nodes inherit it
	col := newCollector(t)
	c := drawCluster(t, true)
	c.args = func(n *clusterNode) []string {
		if n.role == "router" {
			return []string{"--trace-endpoint", col.http}
		}
		return []string{"--trace-endpoint", col.grpc, "--trace-protocol", "grpc"}
	}
	c.upAll()
	quietTrace, _, quiet := client(0x40, false)
	c.sendTraced("transfer", quiet, map[string]string{"userId": "7"})
	if got := c.receiveTraced("rz-b-1", "transfer", "credit"); got != quiet {
		t.Errorf("a message that is not traced came with %q, want %q", got, quiet)
	}
	c.sendTraced("transfer", "", map[string]string{"userId": "7"})
	if got := c.receiveTraced("rz-b-1", "transfer", "credit"); got != "" {
		t.Errorf("a message without a context came with %q", got)
	}
	trace, span, parent := client(0x10, true)
	c.sendTraced("transfer", parent, map[string]string{"userId": "7"})
	delivered := c.receiveTraced("rz-b-1", "transfer", "credit")
	wideTrace, wideSpan, wide := client(0x20, true)
	c.sendTraced("member", wide, map[string]string{"mqr.version": "1", "mqr.op": "set"}, "k")
	c.receiveTraced("cz-b-1", "member", "watch")

	want := map[string][]string{ // stage -> nodes, * = one of the city's routers
		"publish transfer": {"rz-a-1"}, "outbound transfer": {"rz-a-1"}, "link city-b": {"rt-a*", "rt-b*"},
		"landing transfer": {"rz-b-1"}, "receive transfer": {"rz-b-1"},
	}
	at := c.traceOf(col, trace, want)
	checkParents(t, at, span, "transfer")
	receive := at["receive transfer"][0]
	if want := fmt.Sprintf("00-%x-%x-01", trace, receive.GetSpanId()); delivered != want {
		t.Errorf("the consumer got the context %q, want that of the receive span, %q", delivered, want)
	}
	if l := at["link city-b"][0]; l.attr("mqrouter.link.from") != "city-a" || l.attr("mqrouter.link.to") != "city-b" {
		t.Errorf("the link span has the attributes %v", l.GetAttributes())
	}
	at = c.traceOf(col, wideTrace, map[string][]string{
		"publish member": {"rz-a-1"}, "outbound member": {"rz-a-1", "rz-a-1"}, "link city-b": {"rt-a*", "rt-b*"},
		"landing member": {"cz-a-1", "cz-b-1"}, "apply member": {"cache-a", "cache-b"}, "receive member": {"cz-b-1"},
	})
	checkParents(t, at, wideSpan, "member")
	// Every span of the first messages would have come before those of the last.
	if got := col.trace(quietTrace); len(got) != 0 {
		t.Errorf("%d spans of a trace that its client did not sample", len(got))
	}
	for _, s := range col.spans {
		if !bytes.Equal(s.GetTraceId(), trace) && !bytes.Equal(s.GetTraceId(), wideTrace) {
			t.Errorf("%s made %s of a trace that nobody began", s.node, s.GetName())
		}
	}
}

// traceOf waits until a trace has exactly the spans, by name, of the nodes.
func (c *cluster) traceOf(col *collected, id []byte, want map[string][]string) map[string][]collectedSpan {
	c.t.Helper()
	var at map[string][]collectedSpan
	eventually(c.t, "trace "+hex.EncodeToString(id), time.Minute, func() error {
		at = map[string][]collectedSpan{}
		for _, s := range col.trace(id) {
			at[s.GetName()] = append(at[s.GetName()], s)
		}
		for name, nodes := range want {
			if len(at[name]) != len(nodes) {
				return fmt.Errorf("%d spans %q, want %d; there are %v", len(at[name]), name, len(nodes), slices.Sorted(maps.Keys(at)))
			}
		}
		return nil
	})
	for name, spans := range at {
		var nodes []string
		for _, s := range spans {
			node := s.node
			if c.nodes[node].role == "router" {
				node = node[:len(node)-1] + "*"
			}
			nodes = append(nodes, node)
		}
		slices.Sort(nodes)
		if !slices.Equal(nodes, want[name]) {
			c.t.Errorf("spans %q of %v, want of %v", name, nodes, want[name])
		}
	}
	return at
}

// checkParents checks who is under whom: links under outbound, the publish under
// the client, everything else under the publish.
func checkParents(t *testing.T, at map[string][]collectedSpan, client []byte, topic string) {
	t.Helper()
	publish := at["publish "+topic][0]
	if !bytes.Equal(publish.GetParentSpanId(), client) {
		t.Errorf("publish is a child of %x, want the client's span %x", publish.GetParentSpanId(), client)
	}
	var outbound [][]byte
	for _, s := range at["outbound "+topic] {
		outbound = append(outbound, s.GetSpanId())
	}
	for name, spans := range at {
		for _, s := range spans {
			under := [][]byte{publish.GetSpanId()}
			switch name {
			case "publish " + topic:
				continue
			case "link city-b":
				under = outbound
			}
			if !slices.ContainsFunc(under, func(id []byte) bool { return bytes.Equal(id, s.GetParentSpanId()) }) {
				t.Errorf("%s of %s is a child of %x, want one of %x", name, s.node, s.GetParentSpanId(), under)
			}
			if s.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR || s.GetEndTimeUnixNano() < s.GetStartTimeUnixNano() {
				t.Errorf("%s of %s: status %v, %d ns", name, s.node, s.GetStatus(), int64(s.GetEndTimeUnixNano()-s.GetStartTimeUnixNano()))
			}
		}
	}
}

// TestNoCollectorChangesNothing: every message traced, and nobody takes the
// spans. Messages cross, and nodes stop in time.
func TestNoCollectorChangesNothing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := drawCluster(t, true)
	c.args = func(*clusterNode) []string {
		return []string{"--trace-endpoint", "http://" + l.Addr().String(), "--trace-ratio", "1"}
	}
	c.upAll()
	for range 20 {
		c.sendTraced("transfer", "", map[string]string{"userId": "7"})
	}
	for range 20 {
		if got := c.receiveTraced("rz-b-1", "transfer", "credit"); got == "" {
			t.Error("a message came without the trace that its publish began")
		}
	}
	for _, name := range []string{"rz-a-1", "cache-a", "rt-b1"} {
		c.nodes[name].running.stop(t, 30*time.Second)
	}
}
