package rocketmqpb

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// sendRequest has n messages as clients send them.
func sendRequest(n int) *SendMessageRequest {
	req := &SendMessageRequest{}
	for i := range n {
		m := &Message{
			Topic:          &Resource{ResourceNamespace: "ns", Name: "orders"},
			UserProperties: map[string]string{"userId": fmt.Sprint(i), "empty": ""},
			SystemProperties: &SystemProperties{
				Tag: proto.String("tag"), Keys: []string{"a", "b"}, MessageId: fmt.Sprintf("01%032X", i),
				BodyDigest: &Digest{Type: DigestType_CRC32, Checksum: "0A1B"}, BodyEncoding: Encoding_IDENTITY,
				MessageType: MessageType_NORMAL, BornTimestamp: &timestamppb.Timestamp{Seconds: 1_790_000_000, Nanos: 5},
				BornHost: "host", QueueId: 3, MessageGroup: proto.String("g"), TraceContext: proto.String("00-1-1-01"),
			},
			Body: bytes.Repeat([]byte{byte(i)}, 1024),
		}
		req.Messages = append(req.Messages, m)
	}
	return req
}

func marshal(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// What clients send takes the short way, and gives what proto.Unmarshal gives.
func TestDecodeSendDecodesWhatClientsSend(t *testing.T) {
	one := func(change func(*Message)) *SendMessageRequest {
		req := sendRequest(1)
		change(req.Messages[0])
		return req
	}
	for name, req := range map[string]*SendMessageRequest{
		"one":          sendRequest(1),
		"many":         sendRequest(33),
		"none":         {},
		"empty":        {Messages: []*Message{{}}},
		"no topic":     one(func(m *Message) { m.Topic = nil }),
		"no text":      one(func(m *Message) { m.SystemProperties = &SystemProperties{} }),
		"empty tag":    one(func(m *Message) { m.SystemProperties.Tag = proto.String("") }),
		"negative":     one(func(m *Message) { m.SystemProperties.QueueId, m.SystemProperties.BornTimestamp.Nanos = -1, -7 }),
		"other topics": {Messages: []*Message{{Topic: &Resource{Name: "a"}}, {Topic: &Resource{Name: "b"}}, {Topic: &Resource{ResourceNamespace: "b"}}}},
	} {
		b := marshal(t, req)
		var got SendMessageRequest
		if !decodeSend(b, &got) {
			t.Errorf("%s: not decoded", name)
		} else if !proto.Equal(&got, req) {
			t.Errorf("%s: got %v, want %v", name, &got, req)
		}
	}
}

// What decodeSend leaves to proto.Unmarshal ends as proto.Unmarshal decides.
func TestUnmarshalOfUnusualRequests(t *testing.T) {
	odd := sendRequest(2)
	odd.Messages[1].SystemProperties.DeliveryTimestamp = timestamppb.Now()
	twice := append(marshal(t, sendRequest(1)), marshal(t, sendRequest(1))...)
	system := marshal(t, &Message{SystemProperties: &SystemProperties{MessageId: "1"}})
	merged := append(bytes.Clone(system), marshal(t, &Message{SystemProperties: &SystemProperties{BornHost: "h"}})...)
	for name, b := range map[string][]byte{
		"unknown to decodeSend": marshal(t, odd),
		"two requests in one":   twice,
		"properties twice":      append([]byte{1<<3 | 2, byte(len(merged))}, merged...),
		"cut":                   twice[:len(twice)-1],
		"bad utf-8":             bytes.Replace(twice, []byte("orders"), []byte("order\xff"), 1),
	} {
		var want, got SendMessageRequest
		wantErr := proto.Unmarshal(b, &want)
		gotErr := Codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, &got)
		if (wantErr == nil) != (gotErr == nil) || (wantErr == nil && !proto.Equal(&want, &got)) {
			t.Errorf("%s: got %v, %v; want %v, %v", name, &got, gotErr, &want, wantErr)
		}
	}
}

func FuzzDecodeSend(f *testing.F) {
	f.Add(marshal(f, sendRequest(1)))
	f.Add(marshal(f, sendRequest(3)))
	f.Add([]byte{1<<3 | 2, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var got, want SendMessageRequest
		if !decodeSend(b, &got) {
			return
		}
		if err := proto.Unmarshal(b, &want); err != nil || !proto.Equal(&got, &want) {
			t.Fatalf("got %v, want %v, %v", &got, &want, err)
		}
	})
}

func TestCodecKeepsEveryByte(t *testing.T) {
	for _, n := range []int{0, 1, 40, 9000} {
		req := sendRequest(n)
		for range 2 { // the second time into used buffers
			data, err := Codec.Marshal(req)
			if err != nil {
				t.Fatal(err)
			}
			var got SendMessageRequest
			if err := Codec.Unmarshal(data, &got); err != nil || !proto.Equal(&got, req) {
				t.Fatalf("%d messages: %v", n, err)
			}
			data.Free()
		}
	}
	status := &Status{Code: Code_OK, Message: strings.Repeat("x", 5000)}
	data, err := Codec.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	var got Status
	if err := Codec.Unmarshal(data, &got); err != nil || !proto.Equal(&got, status) {
		t.Fatal(&got, err)
	}
	if _, err := Codec.Marshal("text"); err == nil {
		t.Error("a string was encoded")
	}
	if err := Codec.Unmarshal(nil, "text"); err == nil {
		t.Error("a string was decoded")
	}
}

func TestBufferPool(t *testing.T) {
	p := new(bufferPool)
	for _, n := range []int{0, 1, 2048, 2049, 1 << 20, 1<<23 + 1} {
		b := p.Get(n)
		if len(*b) != n {
			t.Fatalf("asked for %d bytes, got %d", n, len(*b))
		}
		if n > 2048 && n <= 1<<23 && cap(*b) >= 2*n {
			t.Errorf("asked for %d bytes, got room for %d", n, cap(*b))
		}
		p.Put(b)
		if again := p.Get(n); len(*again) != n {
			t.Fatalf("asked for %d bytes again, got %d", n, len(*again))
		}
	}
	cut := make([]byte, 3000)
	p.Put(&cut) // not one of the pool's: dropped, not handed out too small
	if b := p.Get(4096); len(*b) != 4096 {
		t.Fatal(len(*b))
	}
}

// Each message costs its text, its keys and its map, whatever its body.
func TestDecodeSendAllocatesLittle(t *testing.T) {
	req := sendRequest(32)
	for _, m := range req.Messages {
		m.UserProperties, m.SystemProperties.Keys, m.SystemProperties.BodyDigest = nil, nil, nil
	}
	b := marshal(t, req)
	var got SendMessageRequest
	n := testing.AllocsPerRun(100, func() {
		if !decodeSend(b, &got) {
			t.Fatal("not decoded")
		}
	})
	if limit := float64(32 + 3); n > limit {
		t.Errorf("%v allocations, the limit is %v", n, limit)
	}
}

func BenchmarkUnmarshalSend(b *testing.B) {
	for _, n := range []int{1, 32} {
		data := mem.BufferSlice{mem.SliceBuffer(marshal(b, sendRequest(n)))}
		b.Run(fmt.Sprintf("messages=%d/codec=own", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := Codec.Unmarshal(data, new(SendMessageRequest)); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("messages=%d/codec=proto", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := proto.Unmarshal(data[0].ReadOnlyData(), new(SendMessageRequest)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
