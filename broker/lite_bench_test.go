package broker

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/zone"
)

// BenchmarkLiteTopics has b.N lite topics live, with a message each, which one group has
// named and one has not, and reports the live heap of each lite topic, without the log
// and the index of its message, and how long choosing and consuming them takes.
func BenchmarkLiteTopics(b *testing.B) {
	topo := sample(b, "  - name: orders\n    route: local\n",
		"  - name: orders\n    route: local\n  - name: chat\n    kind: lite\n    route: local\n    lite: {topics: 1000000, subscriptions: 10000}\n",
		"consumer_groups:\n", "consumer_groups:\n  - {name: chatters, topics: [chat]}\n  - {name: idle, topics: [chat]}\n")
	limits := testLimits()
	limits.TailBytes = 1 << 20
	s := open(b, disk.NewMem(), "rz05-a-1", topo, limits)
	info := s.Topology().FindTopic("chat")
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	publish := func(prefix string, names int) {
		out := make([]PublishResult, 1000)
		for at := 0; at < b.N; at += 1000 {
			var msgs []Message
			for i := at; i < min(at+1000, b.N); i++ {
				msgs = append(msgs, Message{Topic: info, ID: fmt.Sprint(prefix, i), Queue: AnyQueue, Body: []byte("hello"),
					MessageGroup: fmt.Sprintf("session-%08d", i%names)})
			}
			if err := s.Publish(b.Context(), msgs, out); err != nil || out[0].Err != nil {
				b.Fatal(err, out[0].Err)
			}
		}
	}
	publish("warm", 1) // what the log and the index of as many messages take
	before := heap()
	publish("m", b.N)
	lives := heap()
	publish("n", b.N)
	again := heap() // as many messages, of lite topics that live
	for at := 0; at < b.N; at += 5000 {
		r := LiteRequest{Group: chatters, Topic: "chat", ClientID: fmt.Sprint("c", at), Action: LiteReplace}
		for i := at; i < min(at+5000, b.N); i++ {
			r.Names = append(r.Names, fmt.Sprintf("session-%08d", i))
		}
		if err := s.SyncLite(b.Context(), r); err != nil {
			b.Fatal(err)
		}
	}
	chosen := heap()
	b.ResetTimer()
	got := 0
	for at := 0; at < b.N; at += 5000 {
		for {
			list, err := s.Receive(b.Context(), ReceiveRequest{Group: chatters, Topic: "chat", Filter: Filter{All: true}, Max: 32,
				Invisible: time.Minute, ClientID: fmt.Sprint("c", at)})
			if err != nil {
				b.Fatal(err)
			}
			if len(list) == 0 {
				break
			}
			for _, d := range list {
				if err := s.Ack(b.Context(), chatters, zone.Topic("chat"), d.Handle); err != nil {
					b.Fatal(err)
				}
			}
			got += len(list)
		}
	}
	b.StopTimer()
	b.ReportMetric((float64(lives-before)-float64(again-lives))/float64(b.N), "B/topic")
	b.ReportMetric(float64(chosen-again)/float64(b.N), "B/subscription")
	b.ReportMetric(float64(got)/b.Elapsed().Seconds(), "msgs/s")
}

// BenchmarkLiteShared has a thousand clients that share a lite topic wait for messages,
// which come one after the other: each is published when the one before is acknowledged.
func BenchmarkLiteShared(b *testing.B) {
	topo := sample(b, "  - name: orders\n    route: local\n",
		"  - name: orders\n    route: local\n  - name: chat\n    kind: lite\n    route: local\n    lite: {topics: 1000, subscriptions: 10000}\n",
		"consumer_groups:\n", "consumer_groups:\n  - {name: chatters, topics: [chat]}\n")
	s := open(b, disk.NewMem(), "rz05-a-1", topo, testLimits())
	ctx, cancel := context.WithCancel(b.Context())
	var clients sync.WaitGroup
	done := make(chan struct{})
	for i := range 1000 {
		name := fmt.Sprint("c", i)
		if err := s.SyncLite(ctx, LiteRequest{Group: chatters, Topic: "chat", ClientID: name, Action: LiteReplace, Names: []string{"room"}}); err != nil {
			b.Fatal(err)
		}
		clients.Go(func() {
			for ctx.Err() == nil {
				list, _ := s.Receive(ctx, ReceiveRequest{Group: chatters, Topic: "chat", Filter: Filter{All: true}, Max: 32, Wait: time.Hour, Invisible: time.Minute, ClientID: name})
				for _, d := range list {
					if s.Ack(ctx, chatters, "chat", d.Handle) == nil {
						done <- struct{}{}
					}
				}
			}
		})
	}
	out := make([]PublishResult, 1)
	for b.Loop() {
		if err := s.Publish(ctx, []Message{{Topic: s.Topology().FindTopic("chat"), ID: "m", Queue: AnyQueue, Body: []byte("hello"), MessageGroup: "room"}}, out); err != nil || out[0].Err != nil {
			b.Fatal(err, out[0].Err)
		}
		<-done
	}
	cancel()
	clients.Wait()
}
