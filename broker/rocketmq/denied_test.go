package rocketmq

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// lockedBuffer is written by the server's goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// TestRefusedConsumersAreTold: a push consumer that asks for what it cannot have
// starts and gets nothing, and only the server's log says why: a few times, however
// often it asks.
func TestRefusedConsumersAreTold(t *testing.T) {
	for _, tt := range []struct {
		name, group, topic, filter, want string
		assignment                       bool
	}{
		{"unknown group", "nobody", "t", "*", "does not declare the consumer group nobody", true},
		{"group without the topic", "watch", "t", "*", "does not subscribe to the topic t", true},
		{"topic that lands elsewhere", "watch", "member", "*", "does not land in the zone z1", true},
		{"filter", "g", "t", "a||\x01", "control characters", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out := new(lockedBuffer)
			c := start(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(out, nil)) }).dial(t, nil)
			for range 2 * deniedLines {
				if tt.assignment {
					if _, err := c.QueryAssignment(as(t, "who@host"), &pb.QueryAssignmentRequest{Group: res(tt.group), Topic: res(tt.topic)}); err != nil {
						t.Fatal(err)
					}
					continue
				}
				req := withTag(push(tt.group, tt.topic, time.Millisecond), tt.filter)
				if _, err := tryPull(as(t, "who@host"), c, req); err != nil {
					t.Fatal(err)
				}
			}
			text := out.String()
			if n := strings.Count(text, "consumer refused"); n != deniedLines {
				t.Errorf("%d lines, want %d", n, deniedLines)
			}
			for _, part := range []string{tt.want, "group=" + tt.group, "topic=" + tt.topic, "peer=who@host"} {
				if !strings.Contains(text, part) {
					t.Errorf("the log does not say %q:\n%s", part, text)
				}
			}
		})
	}
}

// Nothing is told of what goes right, or comes right by waiting.
func TestNothingIsToldOfGoodConsumers(t *testing.T) {
	out := new(lockedBuffer)
	c := start(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(out, nil)) }).dial(t, nil)
	deliver(t, c, "M")
	pull(t, c, simple("g", "t", 1))
	short := simple("g", "t", 1)
	short.InvisibleDuration = durationpb.New(time.Millisecond) // its caller hears of it
	pull(t, c, short)
	if out.String() != "" {
		t.Errorf("log:\n%s", out)
	}
}
