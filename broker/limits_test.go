package broker

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/zone"
)

// TestLimitsAreOfTheAdmissionOnly: what is taken in under wide limits is folded under
// narrow ones to the same state, goes on working, and is told with use and limit; only
// new messages are refused.
func TestLimitsAreOfTheAdmissionOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topo := sample(t, "topics:\n", zoneTopics, "consumer_groups:\n", zoneGroups)
		mem := disk.NewMem()
		s := open(t, mem, "rz01-b-1", topo, testLimits())
		one := func(topic zone.Topic, id string) Kind {
			m := s.message(topic, id)
			if topic == kindDelay {
				m.DeliverAt = time.Now().Add(time.Hour)
			}
			return KindOf(s.send(m).Err)
		}
		const n = 20
		for _, topic := range []zone.Topic{kindDelay, kindTx} {
			for i, taken := 0, 0; taken < n; i++ {
				switch k := one(topic, fmt.Sprint(topic, i)); k {
				case 0:
					taken++
				case KindUnavailable: // its home is the other group
				default:
					t.Fatal(k)
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		kept := mem.Crash(rand.New(rand.NewPCG(1, 1)))
		removeSnapshots(t, kept)
		s.start()
		want := scrub(t, s, nil)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		limits := testLimits()
		limits.MaxTimers, limits.MaxHalves, limits.MaxTopicHalves, limits.MaxIDs, limits.MaxTopicIDs = 5, 6, 7, 8, 9
		s = open(t, kept, "rz01-b-1", topo, limits)
		defer s.Close()
		if got := scrub(t, s, nil); !bytes.Equal(got, want) {
			t.Error("the fold depends on limits")
		}
		got := map[LimitStatus]bool{}
		for _, l := range s.Status().Limits {
			l.Refused = 0
			got[l] = true
		}
		for _, l := range []LimitStatus{
			{What: "delayed messages", Used: n, Limit: 5}, {What: "half messages", Used: n, Limit: 6}, {What: "half messages", Topic: kindTx, Used: n, Limit: 6},
			{What: "message ids", Used: 2 * n, Limit: 8}, {What: "message ids", Topic: kindDelay, Used: n, Limit: 8}, {What: "message ids", Topic: kindTx, Used: n, Limit: 8},
		} {
			if !got[l] {
				t.Errorf("status does not say %+v: %+v", l, s.Status().Limits)
			}
		}
		refused := 0
		for i := range 100 {
			if k := one(kindDelay, fmt.Sprint("more", i)); k == KindBusy {
				refused++
			} else if k != KindUnavailable {
				t.Errorf("beyond the limit: %s", k)
			}
		}
		if refused == 0 {
			t.Error("no message was refused")
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if got := s.arrived(kindDelay); len(got) != n {
			t.Errorf("%d messages arrived, want the %d that were taken in", len(got), n)
		}
	})
}
