package rocketmq

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/broker"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// produce opens a stream of a producer of the topic tx.
func (r *registry) produce(id string) *session {
	s := newSession()
	r.attach(id, s)
	r.settings(id, s, clientInfo{kind: pb.ClientType_PRODUCER, topics: declared{"tx": res("tx")}})
	return s
}

// TestAnotherStreamOfTheClientIsAsked: a client has a stream over each node of a group.
// When the one over which it is asked breaks, as its node dies, another one takes over.
func TestAnotherStreamOfTheClientIsAsked(t *testing.T) {
	r := newRegistry(10)
	var came []zone.Topic
	r.came = func(t zone.Topic) { came = append(came, t) }
	first, second := r.produce("p"), r.produce("p")
	unsettled := newSession()
	r.attach("p", unsettled)
	ask := func(want *session) {
		t.Helper()
		if got := r.ask(&broker.CheckBack{Topic: "tx"}); got != broker.CheckQueued || len(want.checks) != 1 {
			t.Fatalf("outcome %v, %d wait for the stream", got, len(want.checks))
		}
		<-want.checks
	}
	ask(second)
	r.detach("p", second)
	ask(first)
	r.detach("p", unsettled)
	ask(first)
	if fmt.Sprint(came) != "[tx tx tx]" {
		t.Errorf("it was told of producers of %v; want one for each Settings, and one for the stream that took over", came)
	}
	r.detach("p", first)
	if got := r.ask(&broker.CheckBack{Topic: "tx"}); got != broker.CheckNobody {
		t.Errorf("without a stream: %v", got)
	}
}

// TestAProducerThatAnswersNothingIsAskedLess: it has a stream and sends heartbeats, and
// answers no question, as a client does that hangs. Half messages are not used up on it.
func TestAProducerThatAnswersNothingIsAskedLess(t *testing.T) {
	r := newRegistry(10)
	hangs, lives := r.produce("hangs"), r.produce("lives")
	count := map[*session]int{}
	ask := func(n int, answers bool) {
		t.Helper()
		for range n {
			if got := r.ask(&broker.CheckBack{Topic: "tx"}); got != broker.CheckQueued {
				t.Fatal(got)
			}
			for _, s := range []*session{hangs, lives} {
				for len(s.checks) > 0 {
					<-s.checks
					count[s]++
					r.wrote(s, nil)
				}
			}
			if answers {
				r.answered("lives")
			}
		}
	}
	ask(20, true)
	if count[hangs] > 1 || count[lives] < 19 {
		t.Errorf("who hangs was asked %d times, who answers %d times", count[hangs], count[lives])
	}
	clear(count)
	ask(21, false) // nor does the other one any more: it is asked first until it has as many
	if count[hangs] != 10 || count[lives] != 11 {
		t.Errorf("of two that answer nothing one was asked %d times, the other %d times", count[hangs], count[lives])
	}
}

// TestWhoConnectsIsAskedAboutWhatWaits: a half message whose time came while no producer
// was connected does not wait for the next interval.
func TestWhoConnectsIsAskedAboutWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeld(t)
		h.clients.came = h.core.ProducerCame
		h.core.SetProducers(h.CheckBack)
		msgs := []broker.Message{{Topic: h.core.Topology().FindTopic("tx"), ID: "H", Born: time.Now(), Queue: broker.AnyQueue, Kind: zone.KindTransaction, Recovery: time.Second}}
		if err := h.core.Publish(t.Context(), msgs, make([]broker.PublishResult, 1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		s := h.clients.produce("p")
		synctest.Wait()
		if len(s.checks) != 1 {
			t.Errorf("%d questions wait for the producer that came", len(s.checks))
		}
	})
}
