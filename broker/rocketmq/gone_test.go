package rocketmq

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/internal/disk"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// held is a broker with a front end that nobody is connected to but by its registry,
// for stories in simulated time.
type held struct {
	*testing.T
	*Server
	core *broker.Broker
}

func newHeld(t *testing.T) *held {
	topo, err := zone.Parse(fmt.Appendf(nil, topologyText, 1), "test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	core, err := broker.Open(t.Context(), broker.Options{FS: disk.NewMem(), Dir: "data", Node: topo.FindNode("bc1"), Topology: topo})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{Store: core, Zone: "c1", Group: "gc1"})
	if err != nil {
		t.Fatal(err)
	}
	core.SetLiveness(s.Alive)
	var loops sync.WaitGroup
	loops.Go(s.goneLoop)
	loops.Go(s.expireLoop)
	t.Cleanup(func() {
		s.stop()
		loops.Wait()
		if err := core.Close(); err != nil {
			t.Error(err)
		}
	})
	return &held{t, s, core}
}

func (h *held) send(topic zone.Topic, ids ...string) {
	h.Helper()
	info := h.core.Topology().FindTopic(topic)
	var msgs []broker.Message
	for _, id := range ids {
		m := broker.Message{Topic: info, ID: id, Born: time.Now(), Queue: broker.AnyQueue}
		if info.Kind == zone.KindFIFO {
			m.MessageGroup = "account"
		}
		msgs = append(msgs, m)
	}
	if err := h.core.Publish(h.Context(), msgs, make([]broker.PublishResult, len(msgs))); err != nil {
		h.Fatal(err)
	}
}

// get receives what is there now, as a push consumer does.
func (h *held) get(client string, group zone.ConsumerGroup, topic zone.Topic) []broker.Delivery {
	h.Helper()
	h.clients.see(h.Context(), client, pb.ClientType_PUSH_CONSUMER)
	got, err := h.core.Receive(h.Context(), broker.ReceiveRequest{Group: group, Topic: topic, Filter: broker.Filter{All: true}, Max: 1, Invisible: renewInvisible, Renew: true, ClientID: client})
	if err != nil {
		h.Fatal(err)
	}
	return got
}

// connect opens a stream of a client of that language.
func (h *held) connect(id string, l pb.Language) *session {
	s := newSession()
	h.clients.attach(id, s)
	h.clients.settings(id, s, clientInfo{kind: pb.ClientType_PUSH_CONSUMER, language: l})
	return s
}

// heartbeats are sent as often as clients do, for a while.
func (h *held) heartbeats(id string, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(10 * time.Second)
		h.clients.see(h.Context(), id, pb.ClientType_PUSH_CONSUMER)
	}
}

// TestWhatAClientHeldComesBackOnlyWhenItIsGone: a push consumer holds the first message
// of a group, for long enough to be renewed twice. When it is gone the next consumer
// has that message within seconds; when it is slow, silent or reconnects, never.
func TestWhatAClientHeldComesBackOnlyWhenItIsGone(t *testing.T) {
	for _, tt := range []struct {
		name  string
		lang  pb.Language
		then  func(h *held, s *session)
		after time.Duration // no sooner
		until time.Duration // and then; 0 = it does not come back
	}{
		{"killed java", pb.Language_JAVA, func(h *held, s *session) { h.clients.detach("c", s) }, 5 * time.Second, 8 * time.Second},
		{"killed node", pb.Language_NODE_JS, func(h *held, s *session) { h.clients.detach("c", s) }, 5 * time.Second, 8 * time.Second},
		{"killed python", pb.Language_PYTHON, func(h *held, s *session) { h.clients.detach("c", s) }, 15 * time.Second, 18 * time.Second},
		{"killed rust", pb.Language_RUST, func(h *held, s *session) { h.clients.detach("c", s) }, aliveTTL, aliveTTL + 3*time.Second},
		{"goodbye", pb.Language_JAVA, func(h *held, s *session) { h.clients.drop("c"); h.clients.detach("c", s) }, time.Second, 3 * time.Second},
		{"back at last, and killed", pb.Language_JAVA, func(h *held, s *session) {
			h.clients.detach("c", s)
			time.Sleep(4 * time.Second)
			s = h.connect("c", pb.Language_JAVA)
			h.heartbeats("c", 10*time.Minute)
			h.clients.detach("c", s)
		}, 5 * time.Second, 8 * time.Second},
		{"no stream after a restart here, then silent", pb.Language_GOLANG, func(h *held, s *session) {
			h.clients.detach("c", s)
			h.heartbeats("c", 10*time.Minute)
		}, aliveTTL, aliveTTL + 3*time.Second},
		{"slow", pb.Language_JAVA, func(h *held, s *session) { h.heartbeats("c", time.Hour) }, 30 * time.Second, 0},
		{"silent for a while with its stream open", pb.Language_JAVA, func(*held, *session) { time.Sleep(time.Minute) }, 30 * time.Second, 0},
		{"silent for good with its stream open", pb.Language_JAVA, func(*held, *session) {}, clientTTL, clientTTL + 15*time.Second},
		{"reconnects", pb.Language_JAVA, func(h *held, s *session) {
			for range 100 {
				h.clients.detach("c", s)
				time.Sleep(4 * time.Second)
				s = h.connect("c", pb.Language_JAVA)
				h.heartbeats("c", time.Minute)
			}
		}, 30 * time.Second, 0},
		{"overlapping streams", pb.Language_JAVA, func(h *held, s *session) {
			for range 100 {
				next := h.connect("c", pb.Language_JAVA)
				h.clients.detach("c", s)
				s = next
				h.heartbeats("c", time.Minute)
			}
		}, 30 * time.Second, 0},
		{"heartbeats alone", pb.Language_GOLANG, func(h *held, s *session) {
			h.clients.detach("c", s)
			h.heartbeats("c", time.Hour)
		}, 30 * time.Second, 0},
	} {
		for topic, group := range map[zone.Topic]zone.ConsumerGroup{"ordered": "fifos", "t": "g"} {
			t.Run(tt.name+" "+string(topic), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := newHeld(t)
					s := h.connect("c", tt.lang)
					h.send(topic, "0", "1")
					mine := h.get("c", group, topic)
					h.heartbeats("c", 100*time.Second)
					tt.then(h, s)
					began := time.Now()
					if topic == "t" { // the other message is anybody's
						h.get("other", group, topic)
					}
					var got []broker.Delivery
					for len(got) == 0 && time.Since(began) < tt.after {
						got = h.get("other", group, topic)
						time.Sleep(time.Second)
					}
					if len(got) > 0 {
						t.Fatalf("%s came after %v, want no sooner than %v", got[0].Record.MessageID(), time.Since(began), tt.after)
					}
					if tt.until == 0 {
						return
					}
					time.Sleep(tt.until - tt.after)
					if got = h.get("other", group, topic); len(got) != 1 || !bytes.Equal(got[0].Record.MessageID(), mine[0].Record.MessageID()) || got[0].Attempt != 2 {
						t.Fatalf("after %v came %v, want %s again", time.Since(began), got, mine[0].Record.MessageID())
					}
					if err := h.core.Ack(t.Context(), group, topic, mine[0].Handle); broker.KindOf(err) != broker.KindHandle {
						t.Errorf("the dead client's acknowledgement: %v", err)
					}
					if err := h.core.Ack(t.Context(), group, topic, got[0].Handle); err != nil {
						t.Error(err)
					}
					if next := h.get("other", group, topic); topic == "ordered" && (len(next) != 1 || string(next[0].Record.MessageID()) != "1") {
						t.Errorf("then came %v, want message 1", next)
					}
				})
			})
		}
	}
}

// TestLateAcknowledgementOfAGoneClientCounts: what was given back and nobody has
// received yet is settled by the handle of before.
func TestLateAcknowledgementOfAGoneClientCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeld(t)
		s := h.connect("c", pb.Language_JAVA)
		h.send("ordered", "0", "1")
		mine := h.get("c", "fifos", "ordered")
		h.clients.detach("c", s)
		time.Sleep(time.Minute)
		if err := h.core.Ack(t.Context(), "fifos", "ordered", mine[0].Handle); err != nil {
			t.Error(err)
		}
		if got := h.get("other", "fifos", "ordered"); len(got) != 1 || string(got[0].Record.MessageID()) != "1" {
			t.Errorf("then came %v, want message 1", got)
		}
	})
}

// TestAnAnswerThatBrokeOffIsRenewedNoMore: its client lives and has it again under the
// attempt id at once; if it does not ask so, others have it when its time is over.
func TestAnAnswerThatBrokeOffIsRenewedNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeld(t)
		h.connect("c", pb.Language_JAVA)
		h.send("ordered", "0", "1")
		r := broker.ReceiveRequest{Group: "fifos", Topic: "ordered", Filter: broker.Filter{All: true}, Max: 1, Invisible: renewInvisible, Renew: true, ClientID: "c", AttemptID: "a"}
		receive := func() []broker.Delivery {
			got, err := h.core.Receive(t.Context(), r)
			if err != nil || len(got) != 1 || string(got[0].Record.MessageID()) != "0" || got[0].Attempt != 1 {
				t.Fatalf("%v, %v, want message 0", got, err)
			}
			return got
		}
		h.giveBack(&r, receive(), 1)
		h.giveBack(&r, receive(), 1)
		time.Sleep(renewInvisible - time.Second)
		if got := h.get("other", "fifos", "ordered"); len(got) != 0 {
			t.Errorf("%v came before its time was over", got)
		}
		time.Sleep(2 * time.Second)
		if got := h.get("other", "fifos", "ordered"); len(got) != 1 || got[0].Attempt != 2 {
			t.Errorf("then came %v, want message 0 again", got)
		}
	})
}

// TestGoneClientsAreToldOnce: however long they stay away, and again after they came
// back; clients that hold nothing are not told of.
func TestGoneClientsAreToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry(10)
		told := func(want ...string) {
			t.Helper()
			got := r.takeGone()
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("gone are %v, want %v", got, want)
			}
		}
		r.see(t.Context(), "silent", pb.ClientType_PUSH_CONSUMER)
		r.see(t.Context(), "producer", pb.ClientType_PRODUCER)
		r.see(t.Context(), "leaver", pb.ClientType_PUSH_CONSUMER)
		r.drop("leaver")
		told("leaver")
		time.Sleep(aliveTTL)
		told("silent")
		time.Sleep(time.Second)
		told()
		r.see(t.Context(), "silent", 0)
		told()
		time.Sleep(aliveTTL)
		told("silent")
		time.Sleep(clientTTL)
		r.expire()
		told("silent") // it is forgotten; nobody else will tell
		told()
		if len(r.away) != 0 {
			t.Errorf("%d clients are away that are forgotten", len(r.away))
		}
	})
}
