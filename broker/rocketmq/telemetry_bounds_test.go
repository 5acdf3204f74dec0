package rocketmq

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// TestStreamsWithoutSettingsEnd: they hold no place of a client for long.
func TestStreamsWithoutSettingsEnd(t *testing.T) {
	b := start(t, nil)
	b.silence = time.Millisecond
	c := b.dial(t, nil)
	st, err := c.Telemetry(as(t, "silent"))
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Send(&pb.TelemetryCommand{Status: statusOK}); err != nil { // an answer to nothing
		t.Fatal(err)
	}
	if _, err := st.Recv(); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("%v, want DEADLINE_EXCEEDED", err)
	}
	await(t, "its place is free", func() bool {
		b.clients.mu.RLock()
		defer b.clients.mu.RUnlock()
		return b.clients.streams == 0
	})
}

// TestTelemetryStreamsOfAConnectionAreBounded: by their number; others have theirs.
func TestTelemetryStreamsOfAConnectionAreBounded(t *testing.T) {
	b := start(t, nil)
	b.silence = enough
	c := b.dial(t, nil)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	open := func(i int) pb.MessagingService_TelemetryClient {
		st, err := c.Telemetry(metadata.AppendToOutgoingContext(ctx, "x-mq-client-id", fmt.Sprint("c", i)))
		if err != nil {
			t.Fatal(err)
		}
		if err := st.Send(command(producerSettings("t"))); err != nil && i < maxTelemetry {
			t.Fatal(err)
		}
		return st
	}
	var all []pb.MessagingService_TelemetryClient
	for i := range maxTelemetry {
		all = append(all, open(i))
	}
	for _, st := range all {
		reply(t, st)
	}
	if _, err := open(maxTelemetry).Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v, want RESOURCE_EXHAUSTED", err)
	}
	reply(t, stream(t, b.dial(t, nil), "other", producerSettings("t")))
	leave()
	await(t, "all are forgotten", func() bool {
		b.clients.mu.RLock()
		defer b.clients.mu.RUnlock()
		return b.clients.streams <= 1
	})
}

// TestSettingsThatNobodyReadsEndTheStream: a client sends Settings on and on and reads
// no answer. What is held for it counts, and its stream ends, though not its connection:
// the client does not see that, for it is told behind what it does not read.
func TestSettingsThatNobodyReadsEndTheStream(t *testing.T) {
	b := start(t, nil)
	b.sendTime = 50 * time.Millisecond
	conn := b.dialSlow(t)
	st, err := pb.NewMessagingServiceClient(conn).Telemetry(as(t, "deaf"))
	if err != nil {
		t.Fatal(err)
	}
	var topics []string
	for i := range 1000 {
		topics = append(topics, fmt.Sprint("topic-", i))
	}
	settings := command(producerSettings(topics...))
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for st.Send(settings) == nil { // until the connection is closed
		}
	}()
	await(t, "answers are held", func() bool { return b.answers.used.Load() > heldBack })
	await(t, "the stream is ended", func() bool {
		b.clients.mu.RLock()
		defer b.clients.mu.RUnlock()
		return b.clients.streams == 0
	})
	b.answers.mu.Lock()
	links := len(b.answers.links)
	b.answers.mu.Unlock()
	if u := b.answers.used.Load(); links != 1 || u == 0 || u > 1<<20 {
		t.Errorf("%d connections, %d bytes are held", links, u)
	}
	conn.Close()
	<-sent
	await(t, "all is given back", func() bool { return b.answers.used.Load() == 0 })
}
