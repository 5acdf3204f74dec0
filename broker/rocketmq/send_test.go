package rocketmq

import (
	"bytes"
	"crypto/md5"
	"crypto/sha1"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/mqrouter/mqrouter/broker"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

func TestQ5_SendIsTheVeryFirstCall(t *testing.T) {
	c := start(t, nil).dial(t, nil)
	resp := send(t, c, msg("t", "M1", nil))
	want(t, resp.GetStatus(), pb.Code_OK)
	e := resp.GetEntries()[0]
	if e.GetMessageId() != "M1" || e.GetOffset() != 0 || e.GetStatus().GetMessage() != "level=stored zone=z1" {
		t.Errorf("entry %v", e)
	}
}

func TestSendSeveralKeepsOrderAndIds(t *testing.T) {
	b := start(t, nil)
	c := b.dial(t, nil)
	var ms []*pb.Message
	for i := range 10 {
		ms = append(ms, msg("t", fmt.Sprint("M", i), nil))
	}
	resp := send(t, c, ms...)
	want(t, resp.GetStatus(), pb.Code_OK)
	for i, e := range resp.GetEntries() {
		if e.GetMessageId() != fmt.Sprint("M", i) || e.GetOffset() != int64(i) {
			t.Errorf("entry %d: %v", i, e)
		}
	}
	got := pull(t, c, simple("g", "t", 32))
	for i, m := range got.msgs {
		if m.GetSystemProperties().GetMessageId() != fmt.Sprint("M", i) {
			t.Errorf("message %d is %s", i, m.GetSystemProperties().GetMessageId())
		}
	}
}

func TestSendReportsEachMessageOfAMixedResult(t *testing.T) {
	c := start(t, nil).dial(t, nil)
	user := func(id string) func(*pb.Message) {
		return func(m *pb.Message) { m.UserProperties = map[string]string{"user": id} }
	}
	resp := send(t, c, msg("byuser", "A", user("101")), msg("byuser", "B", nil), msg("byuser", "C", user("107")))
	want(t, resp.GetStatus(), pb.Code_MULTIPLE_RESULTS)
	want(t, resp.GetEntries()[0].GetStatus(), pb.Code_OK)
	want(t, resp.GetEntries()[1].GetStatus(), pb.Code_BAD_REQUEST)
	want(t, resp.GetEntries()[2].GetStatus(), pb.Code_OK)
	if text := resp.GetEntries()[2].GetStatus().GetMessage(); !strings.Contains(text, "zone=z2") {
		t.Errorf("the entry does not name the destination: %q", text)
	}
	all := send(t, c, msg("byuser", "D", nil))
	want(t, all.GetStatus(), pb.Code_BAD_REQUEST)
	if len(all.GetEntries()) != 1 {
		t.Error("no entry for the refused message")
	}
}

// TestSendLimits has one line for each limit: the first value beyond is refused
// with the limit's code and a text that names it, the last one inside is stored.
func TestSendLimits(t *testing.T) {
	sp := func(f func(*pb.SystemProperties)) func(*pb.Message) {
		return func(m *pb.Message) { f(m.GetSystemProperties()) }
	}
	body := func(n int) func(*pb.Message) { return func(m *pb.Message) { m.Body = bytes.Repeat([]byte{'x'}, n) } }
	tests := []struct {
		name   string
		topic  string
		change func(*pb.Message)
		code   pb.Code
		text   string // must be in the status text
	}{
		{"topic empty", "", nil, pb.Code_ILLEGAL_TOPIC, "empty"},
		{"topic alphabet", "a.b", nil, pb.Code_ILLEGAL_TOPIC, "characters"},
		{"topic 128", strings.Repeat("a", 128), nil, pb.Code_ILLEGAL_TOPIC, "127"},
		{"topic 127", strings.Repeat("a", 127), nil, pb.Code_TOPIC_NOT_FOUND, "declare"},
		{"topic of the system", "%DLQ%g", nil, pb.Code_ILLEGAL_TOPIC, "system"},
		{"body empty", "t", body(0), pb.Code_MESSAGE_BODY_EMPTY, "1 byte"},
		{"body 1", "t", body(1), pb.Code_OK, ""},
		{"body 4 MiB", "t", body(4 << 20), pb.Code_OK, ""},
		{"body 4 MiB + 1", "t", body(4<<20 + 1), pb.Code_MESSAGE_BODY_TOO_LARGE, "4194304"},
		{"body at the topic's limit", "small", body(1024), pb.Code_OK, ""},
		{"body above the topic's limit", "small", body(1025), pb.Code_MESSAGE_BODY_TOO_LARGE, "1024"},
		{"128 properties", "t", props(128, 1), pb.Code_OK, ""},
		{"129 properties", "t", props(129, 1), pb.Code_MESSAGE_PROPERTIES_TOO_LARGE, "128"},
		{"properties 64 KiB", "t", props(1, 65536-2), pb.Code_OK, ""},
		{"properties 64 KiB + 1", "t", props(1, 65536-1), pb.Code_MESSAGE_PROPERTIES_TOO_LARGE, "65536"},
		{"properties with tag and keys", "t", func(m *pb.Message) {
			props(1, 65200)(m)
			m.GetSystemProperties().Tag = str(strings.Repeat("t", 200))
			m.GetSystemProperties().Keys = []string{strings.Repeat("k", 200)}
		}, pb.Code_MESSAGE_PROPERTIES_TOO_LARGE, "65536"},
		{"reserved property", "t", func(m *pb.Message) { m.UserProperties = map[string]string{"POP_CK": "1"} }, pb.Code_ILLEGAL_MESSAGE_PROPERTY_KEY, "POP_CK"},
		{"blank property", "t", func(m *pb.Message) { m.UserProperties = map[string]string{" ": "1"} }, pb.Code_ILLEGAL_MESSAGE_PROPERTY_KEY, "blank"},
		{"tag blank", "t", sp(func(p *pb.SystemProperties) { p.Tag = str("  ") }), pb.Code_ILLEGAL_MESSAGE_TAG, "blank"},
		{"tag with bar", "t", sp(func(p *pb.SystemProperties) { p.Tag = str("a|b") }), pb.Code_ILLEGAL_MESSAGE_TAG, "|"},
		{"tag with control", "t", sp(func(p *pb.SystemProperties) { p.Tag = str("a\n") }), pb.Code_ILLEGAL_MESSAGE_TAG, "control"},
		{"tag with C1 control", "t", sp(func(p *pb.SystemProperties) { p.Tag = str("a\u0085b") }), pb.Code_ILLEGAL_MESSAGE_TAG, "control"},
		{"tag in Chinese", "t", sp(func(p *pb.SystemProperties) { p.Tag = str("标签") }), pb.Code_OK, ""},
		{"key blank", "t", sp(func(p *pb.SystemProperties) { p.Keys = []string{""} }), pb.Code_ILLEGAL_MESSAGE_KEY, "blank"},
		{"id blank", "t", sp(func(p *pb.SystemProperties) { p.MessageId = " " }), pb.Code_ILLEGAL_MESSAGE_ID, "blank"},
		{"id 128", "t", sp(func(p *pb.SystemProperties) { p.MessageId = strings.Repeat("A", 128) }), pb.Code_OK, ""},
		{"id 129", "t", sp(func(p *pb.SystemProperties) { p.MessageId = strings.Repeat("A", 129) }), pb.Code_ILLEGAL_MESSAGE_ID, "128"},
		{"group on a NORMAL message", "t", sp(func(p *pb.SystemProperties) { p.MessageGroup = str("u1") }), pb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "message group"},
		{"group 63", "ordered", fifo(strings.Repeat("1", 63)), pb.Code_OK, ""},
		{"group 64", "ordered", fifo(strings.Repeat("1", 64)), pb.Code_ILLEGAL_MESSAGE_GROUP, "63"},
		{"group blank", "ordered", fifo(" "), pb.Code_ILLEGAL_MESSAGE_GROUP, "blank"},
		{"born host", "t", sp(func(p *pb.SystemProperties) { p.BornHost = strings.Repeat("h", 256) }), pb.Code_BAD_REQUEST, "255"},
		{"trace context", "t", sp(func(p *pb.SystemProperties) { p.TraceContext = str(strings.Repeat("0", 513)) }), pb.Code_BAD_REQUEST, "512"},
		{"born timestamp", "t", sp(func(p *pb.SystemProperties) { p.BornTimestamp = &timestamppb.Timestamp{Seconds: 1 << 60} }), pb.Code_BAD_REQUEST, "range"},
		{"born timestamp missing", "t", sp(func(p *pb.SystemProperties) { p.BornTimestamp = nil }), pb.Code_OK, ""},
		{"encoding of a newer client", "t", sp(func(p *pb.SystemProperties) { p.BodyEncoding = 255 }), pb.Code_OK, ""},
		{"encoding 256", "t", sp(func(p *pb.SystemProperties) { p.BodyEncoding = 256 }), pb.Code_BAD_REQUEST, "255"},
		{"encoding -1", "t", sp(func(p *pb.SystemProperties) { p.BodyEncoding = -1 }), pb.Code_BAD_REQUEST, "255"},
		{"encoding gzip", "t", sp(func(p *pb.SystemProperties) { p.BodyEncoding = pb.Encoding_GZIP }), pb.Code_OK, ""},
		{"type missing", "t", sp(func(p *pb.SystemProperties) { p.MessageType = 0 }), pb.Code_OK, ""},
		{"type unknown", "t", sp(func(p *pb.SystemProperties) { p.MessageType = 99 }), pb.Code_UNSUPPORTED, "99"},
		{"FIFO on a NORMAL topic", "t", fifo("u1"), pb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "takes NORMAL"},
		{"FIFO without group", "ordered", sp(func(p *pb.SystemProperties) { p.MessageType = pb.MessageType_FIFO }), pb.Code_ILLEGAL_MESSAGE_GROUP, "needs a message group"},
		{"FIFO with delivery time", "ordered", func(m *pb.Message) { fifo("u1")(m); m.SystemProperties.DeliveryTimestamp = timestamppb.Now() }, pb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "delivery"},
		{"DELAY", "t", sp(func(p *pb.SystemProperties) { p.MessageType = pb.MessageType_DELAY }), pb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "NORMAL"},
		{"TRANSACTION", "t", sp(func(p *pb.SystemProperties) { p.MessageType = pb.MessageType_TRANSACTION }), pb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "NORMAL"},
		{"PRIORITY on a NORMAL topic", "t", sp(func(p *pb.SystemProperties) { p.MessageType = pb.MessageType_PRIORITY }), pb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "takes NORMAL"},
		{"PRIORITY", "urgent", priority(7), pb.Code_OK, ""},
		{"PRIORITY negative", "urgent", priority(-1), pb.Code_BAD_REQUEST, "-1"},
		{"PRIORITY missing", "urgent", sp(func(p *pb.SystemProperties) { p.MessageType = pb.MessageType_PRIORITY }), pb.Code_OK, ""},
		{"PRIORITY with group", "urgent", func(m *pb.Message) { priority(7)(m); m.SystemProperties.MessageGroup = str("u1") }, pb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "message group"},
		{"NORMAL on a PRIORITY topic", "urgent", nil, pb.Code_OK, ""},
		{"FIFO on a PRIORITY topic", "urgent", fifo("u1"), pb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "takes PRIORITY"},
		{"LITE", "t", sp(func(p *pb.SystemProperties) { p.MessageType = pb.MessageType_LITE }), pb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "LITE"},
		{"NORMAL on a FIFO topic", "ordered", nil, pb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "takes FIFO"},
		{"delivery time", "t", sp(func(p *pb.SystemProperties) { p.DeliveryTimestamp = timestamppb.Now() }), pb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "delivery"},
		{"priority", "t", sp(func(p *pb.SystemProperties) { p.Priority = proto.Int32(1) }), pb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "priority"},
		{"lite topic", "t", sp(func(p *pb.SystemProperties) { p.LiteTopic = str("l") }), pb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "lite"},
	}
	c := start(t, nil).dial(t, nil)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			st := send(t, c, msg(tt.topic, "M", tt.change)).GetStatus()
			want(t, st, tt.code)
			if !strings.Contains(st.GetMessage(), tt.text) {
				t.Errorf("the text %q does not name %q", st.GetMessage(), tt.text)
			}
		})
	}
}

// fifo makes the message one of a message group.
func fifo(group string) func(*pb.Message) {
	return func(m *pb.Message) {
		m.SystemProperties.MessageType, m.SystemProperties.MessageGroup = pb.MessageType_FIFO, str(group)
	}
}

// priority gives the message a priority.
func priority(n int32) func(*pb.Message) {
	return func(m *pb.Message) {
		m.SystemProperties.MessageType, m.SystemProperties.Priority = pb.MessageType_PRIORITY, proto.Int32(n)
	}
}

// props sets n properties with keys of two bytes and values of size bytes.
func props(n, size int) func(*pb.Message) {
	return func(m *pb.Message) {
		m.UserProperties = map[string]string{}
		for i := range n {
			m.UserProperties[string('À'+rune(i))] = strings.Repeat("v", size)
		}
	}
}

func TestSendBatchLimits(t *testing.T) {
	c := start(t, nil).dial(t, nil)
	want(t, send(t, c).GetStatus(), pb.Code_MESSAGE_CORRUPTED)
	want(t, send(t, c, msg("t", "A", nil), msg("small", "B", nil)).GetStatus(), pb.Code_MESSAGE_CORRUPTED)
	many := make([]*pb.Message, maxBatch+1)
	for i := range many {
		many[i] = msg("t", fmt.Sprint(i), nil)
	}
	want(t, send(t, c, many...).GetStatus(), pb.Code_PAYLOAD_TOO_LARGE)
	want(t, send(t, c, many[1:]...).GetStatus(), pb.Code_OK)

	bad := send(t, c, msg("t", "A", nil), msg("t", "", nil))
	want(t, bad.GetStatus(), pb.Code_ILLEGAL_MESSAGE_ID)
	if !strings.Contains(bad.GetStatus().GetMessage(), "message 2 of 2") {
		t.Errorf("the text does not name the message: %q", bad.GetStatus().GetMessage())
	}
}

// Neither a body nor properties above their limit, nor a request above gRPC's own,
// harm the sends that follow on the connection.
func TestG3_OversizeSendLeavesTheChannelUsable(t *testing.T) {
	c := start(t, nil).dial(t, nil)
	for _, size := range []int{maxBody + 1, maxRequestBytes - 1000, maxRequestBytes + 1} {
		resp, err := c.SendMessage(as(t, "p"), &pb.SendMessageRequest{Messages: []*pb.Message{msg("t", "M", func(m *pb.Message) { m.Body = make([]byte, size) })}})
		if size <= maxRequestBytes {
			if err != nil {
				t.Fatalf("%d bytes: gRPC error %v", size, err)
			}
			want(t, resp.GetStatus(), pb.Code_MESSAGE_BODY_TOO_LARGE)
		} else if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%d bytes: %v", size, err)
		}
		mustSend(t, c, msg("t", "N", nil))
	}
	heavy := msg("t", "M", func(m *pb.Message) {
		m.Body = make([]byte, maxBody)
		m.UserProperties = map[string]string{"k": strings.Repeat("v", maxPropertyText)}
	})
	want(t, send(t, c, heavy).GetStatus(), pb.Code_MESSAGE_PROPERTIES_TOO_LARGE)
	mustSend(t, c, msg("t", "N", nil))
	heavy.UserProperties["k"] = heavy.UserProperties["k"][1:]
	mustSend(t, c, heavy) // each at its limit is good together
}

func TestSendVerifiesDigests(t *testing.T) {
	body := []byte("checked body")
	crc := crc32.ChecksumIEEE(body)
	sha := fmt.Sprintf("%X", sha1.Sum(body))
	tests := []struct {
		name string
		d    *pb.Digest
		code pb.Code
		back string // checksum that a consumer gets
	}{
		{"none", nil, pb.Code_OK, fmt.Sprintf("%X", md5.Sum(body))},
		{"MD5", &pb.Digest{Type: pb.DigestType_MD5, Checksum: fmt.Sprintf("%X", md5.Sum(body))}, pb.Code_OK, fmt.Sprintf("%X", md5.Sum(body))},
		{"MD5 in lower case", &pb.Digest{Type: pb.DigestType_MD5, Checksum: fmt.Sprintf("%x", md5.Sum(body))}, pb.Code_OK, fmt.Sprintf("%X", md5.Sum(body))},
		{"SHA-1", &pb.Digest{Type: pb.DigestType_SHA1, Checksum: sha}, pb.Code_OK, sha},
		{"CRC32 in hex", &pb.Digest{Type: pb.DigestType_CRC32, Checksum: fmt.Sprintf("%08X", crc)}, pb.Code_OK, fmt.Sprintf("%X", md5.Sum(body))},
		{"CRC32 in decimal", &pb.Digest{Type: pb.DigestType_CRC32, Checksum: fmt.Sprint(crc)}, pb.Code_OK, fmt.Sprintf("%X", md5.Sum(body))},
		{"wrong MD5", &pb.Digest{Type: pb.DigestType_MD5, Checksum: fmt.Sprintf("%X", md5.Sum([]byte("other")))}, pb.Code_MESSAGE_CORRUPTED, ""},
		{"wrong SHA-1", &pb.Digest{Type: pb.DigestType_SHA1, Checksum: "00"}, pb.Code_MESSAGE_CORRUPTED, ""},
		{"wrong CRC32", &pb.Digest{Type: pb.DigestType_CRC32, Checksum: "zz"}, pb.Code_MESSAGE_CORRUPTED, ""},
		{"type of a newer client", &pb.Digest{Type: 77, Checksum: "1"}, pb.Code_OK, fmt.Sprintf("%X", md5.Sum(body))},
		{"type that a byte would make MD5", &pb.Digest{Type: 256 + 2, Checksum: strings.Repeat("0", 32)}, pb.Code_OK, fmt.Sprintf("%X", md5.Sum(body))},
		{"endless", &pb.Digest{Type: pb.DigestType_MD5, Checksum: strings.Repeat("0", 129)}, pb.Code_BAD_REQUEST, ""},
	}
	c := start(t, nil).dial(t, nil)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want(t, send(t, c, msg("t", "M", func(m *pb.Message) {
				m.Body, m.SystemProperties.BodyDigest = body, tt.d
			})).GetStatus(), tt.code)
			if tt.back == "" {
				return
			}
			got := pull(t, c, simple("g", "t", 1))
			if d := got.msgs[0].GetSystemProperties().GetBodyDigest(); d.GetChecksum() != tt.back {
				t.Errorf("delivered digest %v, want %s", d, tt.back)
			}
		})
	}
}

func TestStoreErrorsBecomeStatuses(t *testing.T) {
	for kind, code := range codeOf {
		if got := statusOf(&broker.Error{Op: "x", Kind: kind}); got.GetCode() != code {
			t.Errorf("%v: %v", kind, got)
		}
		settled := settleStatus(&broker.Error{Op: "x", Kind: kind}).GetCode()
		if permanent := code == pb.Code_BAD_REQUEST || code == pb.Code_TOPIC_NOT_FOUND || code == pb.Code_CONSUMER_GROUP_NOT_FOUND; permanent && kind != broker.KindUnroutable && settled != pb.Code_INVALID_RECEIPT_HANDLE {
			t.Errorf("a settlement refused with %v would be repeated for ever", settled)
		}
	}
	want(t, statusOf(&broker.Error{Op: "x", Kind: 200}), pb.Code_INTERNAL_SERVER_ERROR) // of a newer broker
	want(t, statusOf(errors.New("?")), pb.Code_INTERNAL_SERVER_ERROR)

	b := start(t, nil)
	c := b.dial(t, nil)
	b.store.publish = func([]broker.Message, []broker.PublishResult) error {
		return &broker.Error{Op: "publish", Kind: broker.KindDiskFull}
	}
	st := send(t, c, msg("t", "M", nil)).GetStatus()
	want(t, st, pb.Code_TOO_MANY_REQUESTS)
	if !strings.Contains(st.GetMessage(), "disk full") {
		t.Errorf("the text %q hides the reason", st.GetMessage())
	}
}

func TestSendSaysWhatLevelWasReached(t *testing.T) {
	b := start(t, nil)
	c := b.dial(t, nil)
	var next broker.PublishResult
	b.store.publish = func(_ []broker.Message, out []broker.PublishResult) error { out[0] = next; return nil }
	for _, tt := range []struct {
		r    broker.PublishResult
		text string
	}{
		{broker.PublishResult{Level: broker.LevelStored, Destination: zone.Destination{Zone: b.store.topo.FindZone("z1")}}, "level=stored zone=z1"},
		{broker.PublishResult{Level: broker.LevelOrigin, Destination: zone.Destination{Zone: b.store.topo.FindZone("z2")}}, "level=origin zone=z2"},
		{broker.PublishResult{Level: broker.LevelOrigin, Destination: zone.Destination{Channel: &zone.ChannelInfo{Name: "ch"}}}, "level=origin channel=ch"},
		{broker.PublishResult{Level: broker.LevelAccepted}, "level=accepted"},
	} {
		next = tt.r
		if got := send(t, c, msg("t", "M", nil)).GetEntries()[0].GetStatus().GetMessage(); got != tt.text {
			t.Errorf("%q, want %q", got, tt.text)
		}
	}
}

// simple is the receive of a simple consumer with a short poll.
func simple(group, topic string, batch int) *pb.ReceiveMessageRequest {
	return &pb.ReceiveMessageRequest{
		Group: res(group), MessageQueue: &pb.MessageQueue{Topic: res(topic)}, BatchSize: int32(batch),
		InvisibleDuration: durationpb.New(30 * time.Second), LongPollingTimeout: durationpb.New(20 * time.Millisecond),
	}
}

// Every part of a message may be missing: what is left is judged, and the server
// lives on.
func TestSendWithMissingParts(t *testing.T) {
	c := start(t, nil).dial(t, nil)
	for name, m := range map[string]*pb.Message{
		"all":               {},
		"system properties": {Topic: msg("t", "M", nil).GetTopic(), Body: []byte("x")},
		"topic":             {SystemProperties: msg("t", "M", nil).GetSystemProperties(), Body: []byte("x")},
	} {
		resp := send(t, c, m)
		if code := resp.GetStatus().GetCode(); code != pb.Code_ILLEGAL_TOPIC && code != pb.Code_ILLEGAL_MESSAGE_ID {
			t.Errorf("without %s: %v", name, resp.GetStatus())
		}
	}
	want(t, send(t, c, msg("t", "M1", nil)).GetStatus(), pb.Code_OK)
}
