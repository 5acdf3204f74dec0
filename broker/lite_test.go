package broker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/zone"
)

const chatters = zone.ConsumerGroup("chatters")

// liteTopology is the sample with the topic chat of kind lite, of at most 50 lite
// topics that live for an hour, and three groups that read it in the three modes.
func liteTopology(t testing.TB, edits ...string) *zone.Topology {
	return sample(t, append([]string{
		"  - name: orders\n    route: local\n",
		"  - name: orders\n    route: local\n  - name: chat\n    kind: lite\n    route: local\n    lite: {topics: 50, ttl: 1h, subscriptions: 20}\n",
		"consumer_groups:\n", "consumer_groups:\n  - {name: chatters, topics: [chat], max_attempts: 3}\n" +
			"  - {name: chat-exclusive, topics: [chat], lite: exclusive}\n  - {name: chat-all, topics: [chat], lite: all}\n",
	}, edits...)...)
}

func (s *station) lite(name string, n int) Message {
	m := s.message("chat", fmt.Sprintf("%s-%d", name, n))
	m.MessageGroup = name
	return m
}

// chat publishes n messages of each lite topic, one round after the other.
func (s *station) chat(n int, names ...string) {
	s.t.Helper()
	for i := range n {
		for _, name := range names {
			s.publish(s.lite(name, i))
		}
	}
}

func (s *station) sync(g zone.ConsumerGroup, client string, a LiteAction, names ...string) {
	s.t.Helper()
	s.syncFrom(g, client, LiteRequest{Action: a, Names: names})
}

func (s *station) syncFrom(g zone.ConsumerGroup, client string, r LiteRequest) {
	s.t.Helper()
	r.Group, r.Topic, r.ClientID = g, "chat", client
	if err := s.SyncLite(s.t.Context(), r); err != nil {
		s.t.Fatal(err)
	}
}

func (s *station) hear(g zone.ConsumerGroup, client string, n int) []Delivery {
	s.t.Helper()
	list, err := s.Receive(s.t.Context(), ReceiveRequest{Group: g, Topic: "chat", Filter: Filter{All: true}, Max: n, Invisible: time.Minute, ClientID: client})
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

// hearAll receives and acknowledges until nothing comes, and returns the ids, those of
// each lite topic in the order in which they came.
func (s *station) hearAll(g zone.ConsumerGroup, client string) string {
	s.t.Helper()
	var got []string
	for {
		list := s.hear(g, client, 32)
		if len(list) == 0 {
			name := func(id string) string { return id[:strings.LastIndexByte(id, '-')] }
			slices.SortStableFunc(got, func(a, b string) int { return strings.Compare(name(a), name(b)) })
			return strings.Join(got, " ")
		}
		for _, d := range list {
			got = append(got, string(d.Record.MessageID()))
		}
		s.ack(g, list...)
	}
}

func (s *station) lag(g zone.ConsumerGroup) uint64 {
	for _, gs := range s.Status().Groups {
		if gs.Group == g && gs.Topic == "chat" {
			return gs.Lag
		}
	}
	return 0
}

func (s *station) liteTopics() int {
	for _, ts := range s.Status().Topics {
		if ts.Topic == "chat" {
			return ts.Lite.Topics
		}
	}
	return -1
}

func wantText(t testing.TB, got, want string) {
	t.Helper()
	if got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}

func TestLiteConsumerGetsWhatItNamedInOrder(t *testing.T) {
	s := open(t, disk.NewMem(), "rz05-a-1", liteTopology(t), testLimits())
	s.chat(2, "a", "b", "c")
	s.sync(chatters, "one", LiteAdd, "a")
	first := wantIDs(t, s.hear(chatters, "one", 32), "a-0") // one of a lite topic at a time
	wantIDs(t, s.hear(chatters, "one", 32), "")
	s.ack(chatters, first...)
	wantIDs(t, s.hear(chatters, "one", 32), "a-1")
	wantText(t, s.hearAll(chatters, "two"), "")
	s.sync(chatters, "two", LiteReplace, "b", "d")
	s.chat(1, "d") // it springs into being after it was named
	wantText(t, s.hearAll(chatters, "two"), "b-0 b-1 d-0")
	s.sync(chatters, "two", LiteRemove, "b")
	s.publish(s.lite("b", 2))
	wantText(t, s.hearAll(chatters, "two"), "")
	s.sync(chatters, "two", LiteLeave)
	s.publish(s.lite("d", 1))
	wantText(t, s.hearAll(chatters, "two"), "")
	s.sync(chatters, "two", LiteAdd, "b", "c", "d")
	wantText(t, s.hearAll(chatters, "two"), "b-2 c-0 c-1 d-1")
	s.restart() // which logs what was settled
	if lag := s.lag(chatters); lag != 1 {
		t.Errorf("the lag is %d, want that of a-1", lag)
	}
}

func TestLiteProgressSurvivesARestart(t *testing.T) {
	s := open(t, disk.NewMem(), "rz05-a-1", liteTopology(t), testLimits())
	s.chat(3, "a", "b")
	s.sync(chatters, "one", LiteAdd, "a", "b")
	for _, d := range s.hear(chatters, "one", 32) {
		if string(d.Record.MessageGroup()) == "a" {
			s.ack(chatters, d)
		}
	}
	s.restart()
	if n := s.liteTopics(); n != 2 {
		t.Fatalf("%d lite topics, want 2", n)
	}
	wantText(t, s.hearAll(chatters, "one"), "") // clients tell what they want anew
	s.sync(chatters, "one", LiteReplace, "a", "b")
	wantText(t, s.hearAll(chatters, "one"), "a-1 a-2") // b-0 is in hands until its time is over
	wantText(t, s.hearAll("chat-all", "x"), "a-0 a-1 a-2 b-0 b-1 b-2")
}

func TestExclusiveLiteTopicGoesToWhoNamedItLast(t *testing.T) {
	s := open(t, disk.NewMem(), "rz05-a-1", liteTopology(t), testLimits())
	var told []string
	s.SetLiteNotify(func(client string, topic zone.Topic, name string) {
		told = append(told, client+" "+string(topic)+" "+name)
	})
	const g = "chat-exclusive"
	s.sync(g, "one", LiteAdd, "a", "b")
	s.sync(g, "two", LiteAdd, "a")
	s.chat(1, "a", "b")
	wantText(t, s.hearAll(g, "one"), "b-0")
	wantText(t, s.hearAll(g, "two"), "a-0")
	wantText(t, strings.Join(told, ", "), "one chat a")
	s.sync(g, "one", LiteReplace, "a", "b") // it has not heard
	wantText(t, strings.Join(told, ", "), "one chat a, one chat a")
	s.publish(s.lite("a", 1))
	wantText(t, s.hearAll(g, "one"), "")
	wantText(t, s.hearAll(g, "two"), "a-1")
	s.sync(g, "two", LiteLeave)
	s.sync(g, "one", LiteReplace, "a", "b")
	s.publish(s.lite("a", 2))
	wantText(t, s.hearAll(g, "one"), "a-2")
}

func TestLiteTopicsAndSubscriptionsAreBounded(t *testing.T) {
	s := open(t, disk.NewMem(), "rz05-a-1", liteTopology(t), testLimits())
	for i := range 50 {
		s.publish(s.lite(fmt.Sprint("t", i), 0))
	}
	out := make([]PublishResult, 2)
	if err := s.Publish(t.Context(), []Message{s.lite("new", 0), s.lite("t7", 1)}, out); err != nil {
		t.Fatal(err)
	}
	if KindOf(out[0].Err) != KindLiteTopics || out[1].Err != nil {
		t.Errorf("the 51st lite topic: %v, a message of one that lives: %v", out[0].Err, out[1].Err)
	}
	var many []string
	for i := range 21 {
		many = append(many, fmt.Sprint("t", i))
	}
	r := LiteRequest{Group: chatters, Topic: "chat", ClientID: "one", Action: LiteReplace, Names: many}
	if err := s.SyncLite(t.Context(), r); KindOf(err) != KindLiteSubscriptions {
		t.Errorf("21 subscriptions: %v", err)
	}
	r.Names = many[:20]
	if err := s.SyncLite(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	r.Action, r.Names = LiteAdd, many[20:]
	if err := s.SyncLite(t.Context(), r); KindOf(err) != KindLiteSubscriptions {
		t.Errorf("the 21st subscription: %v", err)
	}
	r.Action, r.Names = LiteRemove, many[:1]
	if err := s.SyncLite(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", " ", "a b", strings.Repeat("x", 65), "ü"} {
		r.Action, r.Names = LiteAdd, []string{name}
		if err := s.SyncLite(t.Context(), r); KindOf(err) != KindLiteName {
			t.Errorf("the name %q: %v", name, err)
		}
		m := s.lite(name, 0)
		if err := s.Publish(t.Context(), []Message{m}, out); err != nil || KindOf(out[0].Err) != KindLiteName {
			t.Errorf("a message of %q: %v, %v", name, err, out[0].Err)
		}
	}
	r.Topic, r.Names = "orders", []string{"a"}
	r.Group = "orders-worker"
	if err := s.SyncLite(t.Context(), r); err == nil {
		t.Error("a topic without lite topics took a subscription")
	}
}

func TestUnusedLiteTopicsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, disk.NewMem(), "rz05-a-1", liteTopology(t), testLimits())
		defer s.Close()
		s.chat(3, "read", "left", "used")
		s.sync(chatters, "one", LiteAdd, "read")
		wantText(t, s.hearAll(chatters, "one"), "read-0 read-1 read-2")
		time.Sleep(50 * time.Minute)
		s.publish(s.lite("used", 3))
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		if n := s.liteTopics(); n != 1 {
			t.Fatalf("%d lite topics live, want used alone", n)
		}
		if lag := s.lag(chatters); lag != 4 {
			t.Errorf("the lag is %d, want the four messages of used", lag)
		}
		s.publish(s.lite("left", 3)) // it springs into being anew
		s.sync(chatters, "one", LiteReplace, "read", "left", "used")
		wantText(t, s.hearAll(chatters, "one"), "left-3 used-0 used-1 used-2 used-3")
		if c := s.Status().Counts; c.LiteForgotten != 2 {
			t.Errorf("%d were forgotten, want 2", c.LiteForgotten)
		}
		s.restart()
		s.publish(s.lite("left", 4))
		s.sync(chatters, "one", LiteReplace, "left", "used")
		wantText(t, s.hearAll(chatters, "one"), "left-4")
		wantText(t, s.hearAll("chat-all", "x"), "left-3 left-4 used-0 used-1 used-2 used-3")
	})
}

func TestLiteSubscriptionGoesOnWhereItAsks(t *testing.T) {
	s := open(t, disk.NewMem(), "rz05-a-1", liteTopology(t), testLimits())
	s.chat(4, "a", "b")
	from := func(client string, f LiteFrom, n int64, name string) {
		t.Helper()
		s.syncFrom(chatters, client, LiteRequest{Action: LiteRemove, Names: []string{name}})
		s.syncFrom(chatters, client, LiteRequest{Action: LiteAdd, Names: []string{name}, From: f, N: n})
	}
	s.sync(chatters, "one", LiteAdd, "a")
	wantText(t, s.hearAll(chatters, "one"), "a-0 a-1 a-2 a-3")
	from("one", LiteFromLast, 0, "a")
	wantText(t, s.hearAll(chatters, "one"), "")
	from("one", LiteFromMin, 0, "a")
	held := wantIDs(t, s.hear(chatters, "one", 1), "a-0")
	from("one", LiteFromTail, 2, "a") // what is in hands counts no more
	wantText(t, s.hearAll(chatters, "one"), "a-2 a-3")
	s.ack(chatters, held...)
	from("one", LiteFromOffset, 1, "a")
	s.restart()
	s.sync(chatters, "one", LiteReplace, "a")
	wantText(t, s.hearAll(chatters, "one"), "a-1 a-2 a-3")
	from("one", LiteFromMax, 0, "b") // nothing of b was looked at yet
	wantText(t, s.hearAll(chatters, "one"), "")
	s.publish(s.lite("b", 4))
	wantText(t, s.hearAll(chatters, "one"), "b-4")
	from("one", LiteFromTime, 0, "b")
	wantText(t, s.hearAll(chatters, "one"), "b-0 b-1 b-2 b-3 b-4")
	from("one", LiteFromTime, time.Now().Add(time.Hour).UnixMilli(), "b")
	wantText(t, s.hearAll(chatters, "one"), "")
	from("one", LiteFromMin, 0, "never") // without a message there is nothing to go on in
	if lag := s.lag(chatters); lag != 0 {
		t.Errorf("the lag is %d", lag)
	}
}

func TestLiteMessagesWakeWhoNamedThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, disk.NewMem(), "rz05-a-1", liteTopology(t), testLimits())
		defer s.Close()
		var mu sync.Mutex
		got := map[string]string{}
		var wg sync.WaitGroup
		for _, client := range []string{"one", "two", "none"} {
			s.sync(chatters, client, LiteAdd, "of-"+client)
			wg.Go(func() {
				list, err := s.Receive(context.Background(), ReceiveRequest{Group: chatters, Topic: "chat", Filter: Filter{All: true}, Max: 8,
					Invisible: time.Minute, Wait: 10 * time.Second, ClientID: client})
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				got[client] = ids(list)
			})
		}
		synctest.Wait()
		began := time.Now()
		s.publish(s.lite("of-two", 0))
		s.publish(s.lite("of-nobody", 0), s.lite("of-one", 0))
		synctest.Wait()
		mu.Lock()
		if got["one"] != "of-one-0" || got["two"] != "of-two-0" || time.Since(began) > 0 {
			t.Errorf("after %v: %v", time.Since(began), got)
		}
		mu.Unlock()
		wg.Wait()
		if got["none"] != "" || time.Since(began) != 10*time.Second {
			t.Errorf("after %v: %v", time.Since(began), got)
		}
	})
}

func TestSilentLiteClientsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, disk.NewMem(), "rz05-a-1", liteTopology(t), testLimits())
		defer s.Close()
		s.sync("chat-exclusive", "one", LiteAdd, "a")
		s.sync("chat-exclusive", "two", LiteAdd, "b")
		for range 12 {
			time.Sleep(10 * time.Second)
			s.hear("chat-exclusive", "two", 1)
		}
		synctest.Wait()
		for _, g := range s.Status().Groups {
			if g.Group == "chat-exclusive" && (g.Lite.Clients != 1 || g.Lite.Named != 1) {
				t.Errorf("%+v, want two alone", g.Lite)
			}
		}
	})
}

// TestOlderSetDoesNotUndoAnAddition has a client's whole set, put together before it
// added a lite topic, arrive after that, as that of the Node.js client does at its start.
func TestOlderSetDoesNotUndoAnAddition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, disk.NewMem(), "rz05-a-1", liteTopology(t), testLimits())
		defer s.Close()
		s.chat(1, "a")
		s.sync(chatters, "one", LiteAdd, "a")
		s.sync(chatters, "one", LiteReplace)
		wantText(t, s.hearAll(chatters, "one"), "a-0")
		time.Sleep(liteGrace)
		s.sync(chatters, "one", LiteReplace)
		s.publish(s.lite("a", 1))
		wantText(t, s.hearAll(chatters, "one"), "")
	})
}

// TestLiteTopicsDoNotHoldUpOneAnother has a lite topic that nobody wants, and one whose
// consumer is slow, beside one that is consumed.
func TestLiteTopicsDoNotHoldUpOneAnother(t *testing.T) {
	limits := testLimits()
	limits.MaxInFlight = 4
	s := open(t, disk.NewMem(), "rz05-a-1", liteTopology(t), limits)
	s.chat(300, "unwanted", "slow", "wanted")
	s.sync(chatters, "one", LiteAdd, "slow", "wanted")
	wantIDs(t, s.hear(chatters, "one", 1), "slow-0")
	for i := range 300 {
		s.ack(chatters, wantIDs(t, s.hear(chatters, "one", 4), fmt.Sprint("wanted-", i))...)
	}
	s.restart() // which logs what was settled
	if lag := s.lag(chatters); lag != 600 {
		t.Errorf("the lag is %d", lag)
	}
}

// TestKindOfATopicWithMessagesDoesNotBecomeLite refuses what would take the readers
// from messages.
func TestKindOfATopicWithMessagesDoesNotBecomeLite(t *testing.T) {
	s := open(t, disk.NewMem(), "rz05-a-1", liteTopology(t), testLimits())
	s.chat(1, "a")
	e := epoch(2)
	next := sample(t, "  - name: orders\n    route: local\n", "  - name: orders\n    route: local\n  - name: chat\n    kind: fifo\n    route: local\n", e[0], e[1])
	if err := s.ApplyTopology(t.Context(), next); KindOf(err) != KindUnsupported || !strings.Contains(err.Error(), "chat") {
		t.Errorf("the topic becomes FIFO: %v", err)
	}
	next = liteTopology(t, "{topics: 50, ttl: 1h", "{topics: 60, ttl: 2h", "lite: exclusive", "lite: all", "max_attempts: 3}", "max_attempts: 3, lite: exclusive}", e[0], e[1])
	s.sync(chatters, "one", LiteAdd, "a", "b")
	if err := s.ApplyTopology(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	s.sync(chatters, "two", LiteAdd, "a")
	wantText(t, s.hearAll(chatters, "two"), "a-0")
}

// TestLiteTopicHasItsHome has brokers of one zone pass on messages and subscriptions to
// the group that owns the lite topic's slot.
func TestLiteTopicHasItsHome(t *testing.T) {
	topo := liteTopology(t)
	a, b := open(t, disk.NewMem(), "rz01-a-1", topo, testLimits()), open(t, disk.NewMem(), "rz01-b-1", topo, testLimits())
	a.SetCaller(zoneOf{"rz01-b": b.Broker})
	b.SetCaller(zoneOf{"rz01-a": a.Broker})
	list := []*station{a, b}
	names := []string{}
	for i := range 12 {
		names = append(names, fmt.Sprint("t", i))
		list[i%len(list)].publish(list[i%len(list)].lite(names[i], 0), list[i%len(list)].lite(names[i], 1))
	}
	list[0].sync(chatters, "one", LiteReplace, names...)
	var all []string
	for _, s := range list {
		got := strings.Fields(s.hearAll(chatters, "one"))
		if len(got) == 0 {
			t.Error("a group has no lite topic at all")
		}
		all = append(all, got...)
	}
	slices.Sort(all)
	if len(all) != 2*len(names) || len(slices.Compact(all)) != 2*len(names) {
		t.Errorf("received %v", all)
	}
}

// TestLiteFoldIsDeterministic compares what a log folds to at once with what it folds
// to in pieces, through snapshots.
func TestLiteFoldIsDeterministic(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 1))
		fs := disk.NewMem()
		s := open(t, fs, "rz05-a-1", liteTopology(t), testLimits())
		for i := range 60 {
			name := fmt.Sprint("t", rng.IntN(12))
			s.publish(s.lite(name, i))
			switch rng.IntN(6) {
			case 0:
				s.syncFrom(chatters, "one", LiteRequest{Action: LiteAdd, Names: []string{name}, From: LiteFrom(rng.IntN(5)), N: int64(rng.IntN(4))})
			case 1:
				s.ack(chatters, s.hear(chatters, "one", 3)...)
			case 2:
				if rng.IntN(3) == 0 {
					s.restart()
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s.start()
		s.mu.RLock()
		want := s.state.encode()
		s.mu.RUnlock()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		names, err := s.snapshotNames()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.removeSnapshots(names); err != nil {
			t.Fatal(err)
		}
		s.start()
		s.mu.RLock()
		got := s.state.encode()
		s.mu.RUnlock()
		wantText(t, textOf(t, got, s), textOf(t, want, s))
	}
}

// liteText describes the lite topics and the progress in them.
func liteText(st *state) string {
	var b strings.Builder
	tp := st.topics["chat"]
	for l := tp.lite.oldest; l != nil; l = l.newer {
		fmt.Fprintf(&b, "%d %s %d-%d %d\n", l.id, l.name, l.first, l.last, l.count)
	}
	q, _ := st.progress.QueueState(chatters, "chat", 0)
	fmt.Fprintf(&b, "%d %v", q.Floor, q.Acked)
	return b.String()
}

// textOf is liteText of a snapshot.
func textOf(t *testing.T, data []byte, s *station) string {
	t.Helper()
	st := s.emptyState()
	if _, err := st.decode("snapshot", data); err != nil {
		t.Fatal(err)
	}
	return liteText(st)
}
