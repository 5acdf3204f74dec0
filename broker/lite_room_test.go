package broker

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// wantLites checks that lite topics are within their limit, and none is on its way.
func (s *station) wantLites(want int) {
	s.t.Helper()
	s.lites.mu.Lock()
	arriving := len(s.lites.names)
	s.lites.mu.Unlock()
	if n, c := s.liteTopics(), s.Status().Counts; n != want || arriving != 0 || c.LiteEvicted != 0 {
		s.t.Errorf("%d lite topics live, want %d; %d topics have some on their way, %d made room", n, want, arriving, c.LiteEvicted)
	}
}

func TestNewLiteTopicsOfABatchCount(t *testing.T) {
	s := open(t, disk.NewMem(), "rz05-a-1", liteTopology(t, "topics: 50", "topics: 2"), testLimits())
	var batch []Message
	for _, name := range []string{"a", "b", "c", "d", "e", "a", "b"} {
		batch = append(batch, s.lite(name, len(batch)))
	}
	out := make([]PublishResult, len(batch))
	if err := s.Publish(t.Context(), batch, out); err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, r := range out {
		if r.Err == nil {
			kinds = append(kinds, "ok")
		} else {
			kinds = append(kinds, fmt.Sprint(KindOf(r.Err) == KindLiteTopics))
		}
	}
	wantText(t, strings.Join(kinds, " "), "ok ok true true true ok ok")
	s.wantLites(2)
	wantText(t, s.hearAll("chat-all", "x"), "a-0 a-5 b-1 b-6")
	if err := s.Publish(t.Context(), batch[2:4], out); err != nil || KindOf(out[0].Err) != KindLiteTopics {
		t.Fatal(err, out[0].Err) // nothing of it is stored
	}
	s.wantLites(2)
}

func TestNewLiteTopicsOfManyClientsCount(t *testing.T) {
	s := open(t, disk.NewMem(), "rz05-a-1", liteTopology(t), testLimits())
	var wg sync.WaitGroup
	var mu sync.Mutex
	stored := 0 // guarded by mu
	for i := range 200 {
		m := s.lite(fmt.Sprint("t", i), 0)
		wg.Go(func() {
			var out [1]PublishResult
			err := s.Publish(t.Context(), []Message{m}, out[:])
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && out[0].Err == nil:
				stored++
			case err != nil || KindOf(out[0].Err) != KindLiteTopics:
				t.Error(err, out[0].Err)
			}
		})
	}
	wg.Wait()
	if stored != 50 {
		t.Errorf("%d messages were stored, want those of 50 lite topics", stored)
	}
	s.wantLites(50)
}

func TestNewLiteTopicsOfALandingCount(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", liteTopology(t, "topics: 50", "topics: 2"), testLimits())
	var records []*record.Record
	for i, name := range []string{"a", "b", "c", "a"} {
		records = append(records, incoming(fmt.Sprint(name, i), func(r *record.Record) {
			r.Topic, r.Kind, r.MessageGroup, r.GroupHash = "chat", zone.KindLite, name, 1
		}))
	}
	l := landing(t, 1, records...)
	if err := land(t, s, l); err != nil {
		t.Fatal(err)
	}
	s.wantLites(2)
	if list := s.Sink().Resume(l.Flow).Outcomes; len(list) != 1 || list[0].Reason != record.ReasonQuota || list[0].First != 3 {
		t.Errorf("parked were %v, want 3 alone", list)
	}
}

// A lower limit makes nobody go.
func TestLowerLimitKeepsLiteTopics(t *testing.T) {
	s := open(t, disk.NewMem(), "rz05-a-1", liteTopology(t), testLimits())
	for i := range 20 {
		s.publish(s.lite(fmt.Sprint("t", i), 0))
	}
	s.mu.Lock()
	s.state.topics["chat"].lite.limit = 2 // as a topology declares it
	s.state.topics["chat"].lite.touch([]byte("new"), 20, 1, &s.state.counts)
	s.mu.Unlock()
	s.wantLites(21)
}

func TestFarTooManyLiteTopicsMakeRoom(t *testing.T) {
	table, c := newLiteTable(2), &counts{}
	table.far = 3
	for i, name := range []string{"a", "b", "c", "a", "d"} {
		table.touch([]byte(name), uint64(i), int64(i), c)
	}
	if len(table.byName) != 3 || table.byName["b"] != nil || c.LiteEvicted != 1 || len(table.evicted) != 1 {
		t.Errorf("%d live, %d made room; want b to have gone", len(table.byName), c.LiteEvicted)
	}
}
