package rocketmqpb

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// wrapped is the field with the number n that holds b.
func wrapped(n protowire.Number, b []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), b)
}

// bombs are small on the wire and large when they are decoded.
func bombs() map[string]struct {
	into proto.Message
	b    []byte
} {
	const parts = 100_000
	empty := func(n protowire.Number) []byte { return bytes.Repeat(wrapped(n, nil), parts) }
	var properties []byte
	for i := range parts {
		properties = append(properties, wrapped(messageProperties, wrapped(1, []byte(strconv.Itoa(i))))...)
	}
	type bomb = struct {
		into proto.Message
		b    []byte
	}
	return map[string]bomb{
		"messages":      {new(SendMessageRequest), empty(requestMessages)},
		"odd messages":  {new(SendMessageRequest), append(empty(requestMessages), 0x10, 1)}, // not as clients encode them
		"keys":          {new(SendMessageRequest), wrapped(requestMessages, wrapped(messageSystem, empty(systemKeys)))},
		"properties":    {new(SendMessageRequest), wrapped(requestMessages, properties)},
		"entries":       {new(AckMessageRequest), empty(3)},
		"lite topics":   {new(SyncLiteSubscriptionRequest), empty(4)},
		"topics":        {new(TelemetryCommand), wrapped(2, wrapped(5, empty(1)))},
		"subscriptions": {new(TelemetryCommand), wrapped(2, wrapped(6, empty(2)))},
		"addresses":     {new(QueryRouteRequest), wrapped(2, empty(2))},
	}
}

// heap is what is in use. What pools hold is collected by the second run only: between
// two measurements it would be taken for what was freed.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestWeightIsWhatDecodingTakes holds the estimate against what the decoder allocates
// in the end: never much less, or a few bytes would fill the memory, and not so much
// more that honest requests are refused.
func TestWeightIsWhatDecodingTakes(t *testing.T) {
	for name, bomb := range bombs() {
		t.Run(name, func(t *testing.T) {
			weight := weigh(bomb.into, bomb.b)
			before := heap()
			if err := (codec{}).decode(bomb.b, bomb.into); err != nil {
				t.Fatal(err)
			}
			took := heap() - before
			runtime.KeepAlive(bomb.into)
			if weight < took*3/4 || weight > 6*took+int64(len(bomb.b)) {
				t.Errorf("%d bytes weigh %d, and took %d", len(bomb.b), weight, took)
			}
		})
	}
}

// TestOnlyWhatIsAdmittedIsDecoded: the codec asks before it decodes what may be large,
// and says so when the bytes are no message.
func TestOnlyWhatIsAdmittedIsDecoded(t *testing.T) {
	var asked []int64
	room := true
	c := NewCodec(func(_ proto.Message, weight int64) bool {
		asked = append(asked, weight)
		return room
	})
	decode := func(b []byte) (*AckMessageRequest, error) {
		asked = nil
		req := new(AckMessageRequest)
		return req, c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, req)
	}
	entries := func(n int) []byte { return bytes.Repeat(wrapped(3, nil), n) }
	if req, err := decode(entries(100)); err != nil || len(req.GetEntries()) != 100 || asked != nil {
		t.Errorf("a small request: %d entries, %v, asked %v", len(req.GetEntries()), err, asked)
	}
	if req, err := decode(entries(light)); err != nil || len(req.GetEntries()) != light || len(asked) != 1 {
		t.Errorf("a large request: %d entries, %v, asked %v", len(req.GetEntries()), err, asked)
	}
	if _, err := decode(append(entries(light), 0xff)); err == nil || len(asked) != 2 || asked[1] != 0 {
		t.Errorf("a broken request: %v, asked %v", err, asked)
	}
	asked = nil
	for parts, want := range map[int]int{0: 0, 10: 0, 200: 1} { // of 2 bytes each on the wire
		b := wrapped(2, wrapped(4, wrapped(3, bytes.Repeat(wrapped(2, nil), parts))))
		asked = nil
		if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, new(ReceiveMessageRequest)); err != nil || len(asked) != want {
			t.Errorf("%d parts of a receive, which waits: %v, asked %v", parts, err, asked)
		}
	}
	room = false
	if req, err := decode(entries(light)); err != nil || len(req.GetEntries()) != 0 || len(asked) != 1 {
		t.Errorf("one without room: %d entries, %v, asked %v", len(req.GetEntries()), err, asked)
	}
}

// FuzzWeight: any bytes have a weight, which covers at least the bytes.
func FuzzWeight(f *testing.F) {
	for _, bomb := range bombs() {
		f.Add(uint8(0), bomb.b[:min(len(bomb.b), 1000)])
	}
	files, err := filepath.Glob(filepath.Join("testdata", "*", "*"))
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		if b, err := os.ReadFile(file); err == nil {
			f.Add(uint8(1), b[:min(len(b), 64<<10)])
		}
	}
	types := []proto.Message{new(SendMessageRequest), new(AckMessageRequest), new(TelemetryCommand), new(QueryRouteRequest), new(SyncLiteSubscriptionRequest), new(PullMessageRequest)}
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		m := types[int(which)%len(types)]
		if w := weigh(m, b); w < int64(len(b)) {
			t.Errorf("%d bytes weigh %d", len(b), w)
		}
	})
}
