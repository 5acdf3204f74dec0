package sim

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/md5"
	"crypto/sha1"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// oddMessage is one that clients may send and seldom do.
type oddMessage struct {
	name   string
	id     string // empty: the name
	change func(*pb.Message)
	digest string // that consumers get; empty: the MD5 of the body
}

// textOf is n bytes that do not compress to nothing.
func textOf(n int) []byte {
	b := make([]byte, n)
	for i, x := 0, uint32(1); i < n; i++ {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

func upperMD5(b []byte) string { return fmt.Sprintf("%X", md5.Sum(b)) }

// oddMessages lists them.
func oddMessages() []oddMessage {
	body := func(b []byte) func(*pb.Message) { return func(m *pb.Message) { m.Body = b } }
	property := func(k, v string) func(*pb.Message) { return func(m *pb.Message) { m.UserProperties[k] = v } }
	digest := func(t pb.DigestType, sum string) func(*pb.Message) {
		return func(m *pb.Message) {
			m.Body, m.SystemProperties.BodyDigest = []byte("body"), &pb.Digest{Type: t, Checksum: sum}
		}
	}
	encoding := func(e pb.Encoding, b []byte) func(*pb.Message) {
		return func(m *pb.Message) { m.Body, m.SystemProperties.BodyEncoding = b, e }
	}
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, _ = w.Write(textOf(10_000)) // memory takes it all
	_ = w.Close()
	sha, crc := fmt.Sprintf("%X", sha1.Sum([]byte("body"))), crc32.ChecksumIEEE([]byte("body"))
	return []oddMessage{
		{name: "body of one byte", change: body([]byte{0})},
		{name: "body of zeros", change: body(make([]byte, 1000))},
		{name: "body of 4 MiB", change: body(textOf(4 << 20))},
		{name: "body of 4 MiB with 64 KiB of properties", change: func(m *pb.Message) {
			m.Body = textOf(4 << 20)
			m.UserProperties["big"] = strings.Repeat("v", 64<<10-3-len("to")-len(m.UserProperties["to"]))
		}},
		{name: "127 properties of 500 bytes", change: func(m *pb.Message) {
			for i := range 127 {
				m.UserProperties[fmt.Sprintf("k%03d", i)] = strings.Repeat("v", 496)
			}
		}},
		{name: "property without a value", change: property("k", "")},
		{name: "property in Chinese", change: property("键", "值 的 值")},
		{name: "property in Arabic", change: property("مفتاح", "قيمة")},
		{name: "property in pictures", change: property("🔑👨‍👩‍👧", "🧨\u200d\ufe0f")},
		{name: "property with combining marks", change: property("e\u0301", "é")},
		{name: "property with line breaks in its value", change: property("k", "a\r\nb\x00c\x01d\x02e")},
		{name: "property of RocketMQ's separators", change: property("a=b;c", "x\u0001y\u0002z")},
		{name: "tag and keys in Chinese", change: func(m *pb.Message) {
			m.SystemProperties.Tag, m.SystemProperties.Keys = proto.String("标签"), []string{"键一", "键 二", "🔑"}
		}},
		{name: "500 keys", change: func(m *pb.Message) {
			for i := range 500 {
				m.SystemProperties.Keys = append(m.SystemProperties.Keys, fmt.Sprint("key-", i))
			}
		}},
		{name: "id of one character", id: "x"},
		{name: "id of 128 bytes", id: strings.Repeat("A", 128)},
		{name: "id with blanks, quotes and slashes", id: ` a "b" 'c' /d\e %00 ; --`},
		{name: "id in Chinese", id: "消息-1"},
		{name: "id of a path", id: "../../etc/passwd"},
		{name: "digest MD5", change: digest(pb.DigestType_MD5, upperMD5([]byte("body")))},
		{name: "digest MD5 in lower case", change: digest(pb.DigestType_MD5, strings.ToLower(upperMD5([]byte("body"))))},
		{name: "digest SHA-1", change: digest(pb.DigestType_SHA1, sha), digest: sha},
		{name: "digest CRC32", change: digest(pb.DigestType_CRC32, fmt.Sprintf("%X", crc))},
		{name: "digest CRC32 in decimal", change: digest(pb.DigestType_CRC32, fmt.Sprint(crc))},
		{name: "digest of a newer client", change: digest(99, "?")},
		{name: "no encoding", change: encoding(0, []byte("plain"))},
		{name: "encoding gzip", change: encoding(pb.Encoding_GZIP, zipped.Bytes())},
		{name: "encoding gzip that is none", change: encoding(pb.Encoding_GZIP, []byte("not zipped"))},
		{name: "encoding of a newer client", change: encoding(200, []byte("opaque"))},
		{name: "no type", change: func(m *pb.Message) { m.SystemProperties.MessageType = 0 }},
		{name: "born long ago", change: func(m *pb.Message) { m.SystemProperties.BornTimestamp = timestamppb.New(time.Unix(1, 1)) }},
		{name: "trace context of no form", change: func(m *pb.Message) { m.SystemProperties.TraceContext = proto.String("whatever 痕迹") }},
	}
}

func (o *oddMessage) message(to zone.Zone) *pb.Message {
	id := o.id
	if id == "" {
		id = o.name
	}
	m := &pb.Message{Topic: &pb.Resource{Name: "orders"}, Body: []byte("body"), UserProperties: map[string]string{"to": string(to)}, SystemProperties: &pb.SystemProperties{
		MessageId: id, MessageType: pb.MessageType_NORMAL, BodyEncoding: pb.Encoding_IDENTITY, BornTimestamp: timestamppb.Now(), BornHost: "here",
	}}
	if o.change != nil {
		o.change(m)
	}
	return m
}

// stub is a client of the zone without any library between.
func (w *world) stub(z zone.Zone) pb.MessagingServiceClient {
	return w.stubOf(w.top.FindZone(z).Groups[0].Nodes[0])
}

// stubOf is stub for a broker.
func (w *world) stubOf(n *zone.NodeInfo) pb.MessagingServiceClient {
	conn, err := grpc.NewClient("passthrough:///"+n.Client, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(w.client(n.Zone.Name).Dial),
		grpc.WithDisableServiceConfig(), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(8<<20)))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return pb.NewMessagingServiceClient(conn)
}

// take receives one batch of the topic orders and acknowledges it.
func (w *world) take(ctx context.Context, c pb.MessagingServiceClient) []*pb.Message {
	return w.takeFrom(ctx, c, "orders", "orders-pack")
}

func (w *world) takeFrom(ctx context.Context, c pb.MessagingServiceClient, topic, group string) []*pb.Message {
	stream, err := c.ReceiveMessage(ctx, &pb.ReceiveMessageRequest{Group: &pb.Resource{Name: group}, MessageQueue: &pb.MessageQueue{Topic: &pb.Resource{Name: topic}},
		BatchSize: 32, InvisibleDuration: durationpb.New(time.Minute), LongPollingTimeout: durationpb.New(5 * time.Second)})
	if err != nil {
		w.t.Fatal(err)
	}
	var got []*pb.Message
	ack := &pb.AckMessageRequest{Group: &pb.Resource{Name: group}, Topic: &pb.Resource{Name: topic}}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			w.t.Fatal(err)
		}
		if m := resp.GetMessage(); m != nil {
			got = append(got, m)
			ack.Entries = append(ack.Entries, &pb.AckMessageEntry{MessageId: m.GetSystemProperties().GetMessageId(), ReceiptHandle: m.GetSystemProperties().GetReceiptHandle()})
		}
	}
	if len(got) > 0 {
		if resp, err := c.AckMessage(ctx, ack); err != nil || resp.GetStatus().GetCode() != pb.Code_OK {
			w.t.Fatalf("acknowledge: %v, %v", resp, err)
		}
	}
	return got
}

// TestOddMessagesArriveAsSent: whatever clients may send arrives to the byte, in the
// zone where it was sent and in another city, and 32 messages in one request do.
func TestOddMessagesArriveAsSent(t *testing.T) {
	for _, to := range []zone.Zone{"rz1", "rz2"} {
		t.Run(string(to), func(t *testing.T) {
			t.Parallel()
			bubble(t, 10, oneZoneEach(), func(t *testing.T, w *world) {
				ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(w.ctx, "x-mq-client-id", "odd"), 10*time.Minute)
				defer cancel()
				time.Sleep(settleIn)
				from, at := w.stub("rz1"), w.stub(to)
				w.take(ctx, at) // subscribes
				for _, o := range oddMessages() {
					oneOdd(ctx, w, from, at, &o, to)
				}
				batch := &pb.SendMessageRequest{}
				want := map[string]bool{}
				for i := range 32 {
					o := oddMessage{name: fmt.Sprint("batch ", i), change: func(m *pb.Message) { m.Body = textOf(100 * (i + 1)) }}
					batch.Messages = append(batch.Messages, o.message(to))
					want[o.name] = true
				}
				resp, err := from.SendMessage(ctx, batch)
				if err != nil || resp.GetStatus().GetCode() != pb.Code_OK || len(resp.GetEntries()) != 32 {
					t.Fatalf("batch: %v, %v", resp.GetStatus(), err)
				}
				for range 10 {
					for _, m := range w.take(ctx, at) {
						delete(want, m.GetSystemProperties().GetMessageId())
					}
				}
				if len(want) > 0 {
					t.Errorf("of the batch did not come: %v", slices.Sorted(maps.Keys(want)))
				}
			})
		})
	}
}

// TestLargestBodyCrosses: a topic may have bodies of up to 7 MiB, with 64 KiB of
// properties, where its cities pass them on.
func TestLargestBodyCrosses(t *testing.T) {
	p := oneZoneEach()
	for i := range p.cities {
		p.cities[i].body = "7MiB"
	}
	p.topics = []string{"{name: large, queues: 1, budget: 64MiB, max_body: 7MiB, route: {explicit: {property: to}}}"}
	p.groups = []string{"{name: large-read, topics: [large], zones: [rz1, rz2, rz3, cz-east, cz-west, cz-north], max_attempts: 3, retry: {steps: [1s]}}"}
	bubble(t, 10, p, func(t *testing.T, w *world) {
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(w.ctx, "x-mq-client-id", "odd"), 10*time.Minute)
		defer cancel()
		time.Sleep(settleIn)
		from, at := w.stub("rz1"), w.stub("rz2")
		largest := oddMessage{name: "largest", change: func(m *pb.Message) {
			m.Topic.Name, m.Body = "large", textOf(7<<20)
			m.UserProperties["big"] = strings.Repeat("v", 64<<10-8)
		}}
		w.takeFrom(ctx, at, "large", "large-read") // subscribes
		for range 3 {
			sent := largest.message("rz2")
			resp, err := from.SendMessage(ctx, &pb.SendMessageRequest{Messages: []*pb.Message{sent}})
			if err != nil || resp.GetStatus().GetCode() != pb.Code_OK {
				t.Fatalf("send: %v, %v", resp.GetStatus(), err)
			}
			var got []*pb.Message
			for n := 0; len(got) == 0 && n < 5; n++ {
				got = w.takeFrom(ctx, at, "large", "large-read")
			}
			if len(got) != 1 || !bytes.Equal(got[0].GetBody(), sent.GetBody()) || !maps.Equal(got[0].GetUserProperties(), sent.GetUserProperties()) {
				t.Fatalf("%d messages came, or not as sent", len(got))
			}
		}
		sent := largest.message("rz2")
		sent.Body = append(sent.Body, 0)
		resp, err := from.SendMessage(ctx, &pb.SendMessageRequest{Messages: []*pb.Message{sent}})
		if err != nil || resp.GetStatus().GetCode() != pb.Code_MESSAGE_BODY_TOO_LARGE || !strings.Contains(resp.GetStatus().GetMessage(), "7340032") {
			t.Errorf("one byte more: %v, %v", resp.GetStatus(), err)
		}
	})
}

// oneOdd sends a message and compares what comes.
func oneOdd(ctx context.Context, w *world, from, at pb.MessagingServiceClient, o *oddMessage, to zone.Zone) {
	w.t.Helper()
	sent := o.message(to)
	resp, err := from.SendMessage(ctx, &pb.SendMessageRequest{Messages: []*pb.Message{sent}})
	if err != nil || resp.GetStatus().GetCode() != pb.Code_OK {
		w.t.Errorf("%s: send: %v, %v", o.name, resp.GetStatus(), err)
		return
	}
	var got []*pb.Message
	for range 3 {
		if got = w.take(ctx, at); len(got) > 0 {
			break
		}
	}
	if len(got) != 1 {
		w.t.Errorf("%s: %d messages came", o.name, len(got))
		return
	}
	s, g := sent.GetSystemProperties(), got[0].GetSystemProperties()
	encoding, digest := s.GetBodyEncoding(), o.digest
	if encoding == 0 {
		encoding = pb.Encoding_IDENTITY
	}
	if digest == "" {
		digest = upperMD5(sent.GetBody())
	}
	for what, same := range map[string]bool{
		"body":       bytes.Equal(got[0].GetBody(), sent.GetBody()),
		"properties": maps.Equal(got[0].GetUserProperties(), sent.GetUserProperties()),
		"id":         g.GetMessageId() == s.GetMessageId(),
		"tag":        g.GetTag() == s.GetTag(),
		"keys":       slices.Equal(g.GetKeys(), s.GetKeys()),
		"encoding":   g.GetBodyEncoding() == encoding,
		"digest":     g.GetBodyDigest().GetChecksum() == digest,
		"born":       g.GetBornTimestamp().AsTime().Equal(s.GetBornTimestamp().AsTime().Truncate(time.Microsecond)), // as records keep it
		"trace":      g.GetTraceContext() == s.GetTraceContext(),
		"attempt":    g.GetDeliveryAttempt() == 1,
	} {
		if !same {
			w.t.Errorf("%s: the %s came otherwise: sent %.300v, got %.300v", o.name, what, s, g)
		}
	}
}
