package broker

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
)

// asker stands for the front end: it notes who was asked about what, and when.
type asker struct {
	s     *station
	began time.Time

	mu      sync.Mutex
	outcome CheckOutcome // of the next checks; CheckQueued: their command is written at once
	asked   []string     // "message id at seconds", of commands written
	ids     map[string]string
	counts  map[string]int
	queued  []*CheckBack // kept instead of written, when hold
	hold    bool
	lose    int // so many of the next checks are written to streams that end unread
}

// producers connects the station with an asker. The checks are answered outside the
// broker's call, as the front end does.
func (s *station) producers() *asker {
	a := &asker{s: s, began: time.Now(), outcome: CheckQueued, ids: map[string]string{}, counts: map[string]int{}}
	a.connect()
	return a
}

func (a *asker) connect() {
	work := make(chan *CheckBack, 1000)
	a.s.SetProducers(func(c *CheckBack) CheckOutcome {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.outcome == CheckQueued {
			work <- c
		}
		return a.outcome
	})
	go func() {
		for c := range work {
			a.write(c)
		}
	}()
	a.s.t.Cleanup(func() { close(work) })
}

func (a *asker) write(c *CheckBack) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.hold {
		a.queued = append(a.queued, c)
		return
	}
	half, ok := c.Load()
	if !ok {
		return
	}
	id := string(half.Record.MessageID())
	a.ids[id] = half.TransactionID
	a.counts[id]++
	a.asked = append(a.asked, fmt.Sprintf("%s at %v", id, time.Since(a.began)))
	c.Sent()
	if a.lose > 0 {
		a.lose--
		c.Lost(true)
	}
}

// answer sets what becomes of the next checks.
func (a *asker) answer(outcome CheckOutcome, hold bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.outcome, a.hold = outcome, hold
}

// soFar returns the checks that were made.
func (a *asker) soFar() []string {
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.asked)
}

// want fails unless these checks were made.
func (a *asker) want(list ...string) {
	a.s.t.Helper()
	if got := a.soFar(); fmt.Sprint(got) != fmt.Sprint(list) {
		a.s.t.Errorf("checks %v, want %v", got, list)
	}
}

// count returns how often the producers were asked about a message.
func (a *asker) count(id string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.counts[id]
}

// known returns the transaction ids that producers were told.
func (a *asker) known() map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.ids)
}

// inBubble runs a test on simulated time with a broker whose producers can be asked.
func inBubble(t *testing.T, test func(t *testing.T, s *station, a *asker)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := open(t, disk.NewMem(), "rz02-a-1", txSample(t, quickTerms), testLimits())
		a := s.producers()
		test(t, s, a)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// The immunity time is no check; then a check comes each interval, as many as the
// topic says, and an interval after the last one the message is parked, where
// operators see it and may commit it.
func TestChecksAndThenParked(t *testing.T) {
	inBubble(t, func(t *testing.T, s *station, a *asker) {
		id := s.half("pay", "m")
		time.Sleep(6*time.Second - time.Millisecond)
		a.want()
		time.Sleep(10 * time.Minute)
		a.want("m at 6s", "m at 36s", "m at 1m6s")
		st := s.Status()
		if len(st.Transactions) != 0 || st.Decided.Parked != 1 {
			t.Errorf("status %+v, %+v", st.Transactions, st.Decided)
		}
		if got := s.drain(billing, "pay"); len(got) != 0 {
			t.Errorf("delivered %v", got)
		}
		for _, r := range []Resolution{ResolutionCommit, ResolutionRollback} {
			wantKind(t, "a decision that comes too late", s.end("pay", id, r), KindDecided)
		}
		queues, err := s.DeadLetterQueues(t.Context())
		if err != nil || len(queues) != 1 || queues[0].Topic != UndecidedTopic || queues[0].Group != "" || queues[0].Pending != 1 || queues[0].Reasons["undecided"] != 1 {
			t.Fatalf("dead letters %+v, %v", queues, err)
		}
		letters, _, err := s.DeadLetters(t.Context(), DeadLetterQuery{Topic: UndecidedTopic})
		if err != nil || len(letters) != 1 || letters[0].Cause.Attempts != 3 || letters[0].Cause.Topic != "pay" || string(letters[0].Record.Body()) != "body of m" {
			t.Fatalf("letters %+v, %v", letters, err)
		}
		if _, err := s.Receive(t.Context(), ReceiveRequest{Group: billing, Topic: UndecidedTopic, Filter: Filter{All: true}}); KindOf(err) != KindTopicUnknown {
			t.Errorf("a consumer may receive what nobody decided: %v", err)
		}
		for _, outcome := range []ReplayOutcome{Replayed, ReplayedYet} {
			res, err := s.Replay(t.Context(), ReplayRequest{Topic: UndecidedTopic, Offsets: []uint64{0}})
			if err != nil || len(res) != 1 || res[0].Outcome != outcome {
				t.Fatalf("replay %+v, %v", res, err)
			}
		}
		wantOnce(t, s.drain(billing, "pay"), []string{"m"})
	})
}

// A message may bring its own immunity time, of an hour at most.
func TestMessageBringsItsImmunity(t *testing.T) {
	inBubble(t, func(t *testing.T, s *station, a *asker) {
		for id, d := range map[string]time.Duration{"short": 50 * time.Millisecond, "long": 100 * time.Hour} {
			m := s.message("pay", id)
			m.Recovery = d
			s.publish(m)
		}
		time.Sleep(59 * time.Minute)
		a.want("short at 50ms", "short at 30.05s", "short at 1m0.05s")
		time.Sleep(time.Minute)
		a.want("short at 50ms", "short at 30.05s", "short at 1m0.05s", "long at 1h0m0s")
	})
}

// The number of checks survives a restart, and so does the present wait; a power cut
// repeats the last few checks at most. Nothing is asked early.
func TestChecksAreCountedOverRestarts(t *testing.T) {
	outlived(t, func(t *testing.T, again func(*station)) {
		s := open(t, disk.NewMem(), "rz02-a-1", txSample(t, quickTerms), testLimits())
		a := s.producers()
		s.half("pay", "m")
		time.Sleep(2 * time.Second) // in its immunity time
		again(s)
		a.connect()
		time.Sleep(38 * time.Second) // two checks, and the time to log them
		again(s)
		a.connect()
		time.Sleep(10 * time.Minute)
		a.want("m at 6.001s", "m at 36.001s", "m at 1m6.052s") // by times in the log, rounded up
		if d := s.Status().Decided; d.Parked != 1 {
			t.Errorf("decided %+v", d)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// outlived restarts a station in each way.
func outlived(t *testing.T, test func(t *testing.T, again func(*station))) {
	for name, again := range map[string]func(*station){
		"restart": (*station).restart,
		"from a snapshot": func(s *station) {
			if err := s.snapshot(s.t.Context()); err != nil {
				s.t.Fatal(err)
			}
			s.restart()
		},
		"power cut": func(s *station) {
			kept := s.fs.(*disk.Mem).Crash(rng(9))
			if err := s.Close(); err != nil {
				s.t.Fatal(err)
			}
			s.fs = kept
			s.start()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, again) })
		})
	}
}

// Checks that nobody can have read park no half message, whatever restarts: here all of
// a topic's are lost, and then its producer is asked as often as the topic says.
func TestForgivenChecksAreForgivenOverRestarts(t *testing.T) {
	outlived(t, func(t *testing.T, again func(*station)) {
		s := open(t, disk.NewMem(), "rz02-a-1", txSample(t, quickTerms), testLimits())
		a := s.producers()
		a.lose = 3
		s.half("pay", "m")
		time.Sleep(8500 * time.Millisecond) // checks at 6, 7 and 8 s
		if got := a.soFar(); len(got) != 3 {
			t.Fatalf("checks %v", got)
		}
		again(s)
		a.connect()
		time.Sleep(time.Hour)
		if got := a.soFar(); len(got) != 6 || s.Status().Decided.Parked != 1 {
			t.Errorf("checks %v, decided %+v; want three that were lost, three that were not, and the message parked", got, s.Status().Decided)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// Whether the last check of a broker that was stopped was read, nobody knows: one more
// is asked, and no more than a topic's checks are forgiven so, however often it restarts.
func TestNoHalfMessageIsParkedWithoutAQuestion(t *testing.T) {
	outlived(t, func(t *testing.T, again func(*station)) {
		s := open(t, disk.NewMem(), "rz02-a-1", txSample(t, quickTerms), testLimits())
		a := s.producers()
		s.half("pay", "m")
		time.Sleep(70 * time.Second) // all three checks
		for n := 3; n <= 6; n++ {
			if got := a.soFar(); len(got) != n || s.Status().Decided.Parked != 0 {
				t.Fatalf("after %d restarts: checks %v, decided %+v", n-3, got, s.Status().Decided)
			}
			again(s)
			a.connect()
			time.Sleep(31 * time.Second) // the rest of the wait, and the check
		}
		if got := a.soFar(); len(got) != 6 || s.Status().Decided.Parked != 1 {
			t.Errorf("checks %v, decided %+v; want it parked after three that were forgiven", got, s.Status().Decided)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// A check for which no producer is connected counts for nothing, however long it
// lasts, and is told.
func TestNobodyToAsk(t *testing.T) {
	inBubble(t, func(t *testing.T, s *station, a *asker) {
		a.answer(CheckNobody, false)
		s.half("pay", "m")
		time.Sleep(24 * time.Hour)
		a.want()
		if st := s.Status().Transactions; len(st) != 1 || !st[0].Alone || st[0].Pending != 1 || st[0].Checked != 0 || st[0].Oldest < 23*time.Hour {
			t.Errorf("status %+v", st)
		}
		a.answer(CheckFull, false)
		time.Sleep(time.Hour)
		a.want()
		a.answer(CheckQueued, false)
		time.Sleep(time.Second)
		if got := a.soFar(); len(got) != 1 {
			t.Errorf("checks %v, want one as soon as there is room", got)
		}
		if st := s.Status().Transactions; len(st) != 1 || st[0].Alone || st[0].Checked != 1 {
			t.Errorf("status %+v", st)
		}
	})
}

// A stream that breaks before a check is written to it costs a delay, and no check.
func TestChecksThatAreNotWrittenDoNotCount(t *testing.T) {
	inBubble(t, func(t *testing.T, s *station, a *asker) {
		a.answer(CheckQueued, true)
		s.half("pay", "m")
		time.Sleep(40 * time.Minute)
		a.want()
		if len(a.queued) < 70 {
			t.Errorf("%d checks were queued", len(a.queued))
		}
		a.answer(CheckQueued, false)
		time.Sleep(10 * time.Minute)
		if got := a.soFar(); len(got) != 3 || s.Status().Decided.Parked != 1 {
			t.Errorf("checks %v, decided %+v", got, s.Status().Decided)
		}
		for _, c := range a.queued { // late: the message is decided
			if _, ok := c.Load(); ok {
				t.Error("a check of a decided message was written")
			}
		}
	})
}

// Half messages of a topic that the topology has no more are parked, with the reason.
func TestTopicOfHalfMessagesIsGone(t *testing.T) {
	inBubble(t, func(t *testing.T, s *station, a *asker) {
		s.half("pay", "m")
		edit := epoch(2)
		gone := txSample(t, quickTerms, "  - name: pay\n", "  - name: paid\n", "topics: [orders, pay]", "topics: [orders]", edit[0], edit[1])
		if err := s.ApplyTopology(t.Context(), gone); err != nil {
			t.Fatal(err)
		}
		time.Sleep(7 * time.Second)
		a.want()
		letters, _, err := s.DeadLetters(t.Context(), DeadLetterQuery{Topic: UndecidedTopic})
		if err != nil || len(letters) != 1 || letters[0].Cause.Reason != record.ReasonUnknownTopic || letters[0].Cause.Word() != "unknown-topic" {
			t.Errorf("letters %+v, %v", letters, err)
		}
	})
}

// A full disk keeps a half message from being parked; it is parked when there is room.
func TestParkingWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := disk.NewMem()
		s := open(t, mem, "rz02-a-1", txSample(t, quickTerms), testLimits())
		defer s.Close()
		a := s.producers()
		id := s.half("pay", "m")
		time.Sleep(100 * time.Second) // after the last check
		mem.SetLimit(1)
		time.Sleep(5 * time.Minute)
		a.want("m at 6s", "m at 36s", "m at 1m6s")
		if st := s.Status(); len(st.Transactions)+int(st.Decided.Parked) != 1 {
			t.Errorf("status %+v", st)
		}
		mem.SetLimit(0)
		time.Sleep(2 * time.Minute)
		if st := s.Status(); st.Decided.Parked != 1 {
			t.Errorf("decided %+v", st.Decided)
		}
		wantKind(t, "commit", s.end("pay", id, ResolutionCommit), KindDecided)
	})
}

// Producers answer commit while power fails, at whatever moment: a decision that was
// answered is final. The producers are never asked about it again, and it is
// delivered exactly once, after any number of restarts.
func TestQ6_NoCheckAfterADecisionWasAccepted(t *testing.T) {
	for seed := range uint64(6) {
		synctest.Test(t, func(t *testing.T) {
			rng := rng(seed)
			mem := disk.NewMem()
			topo := txSample(t, "{immunity: 1s, interval: 1s, checks: 15}")
			s := open(t, mem, "rz02-a-1", topo, testLimits())
			a := s.producers()
			accepted := map[string]int{} // message id -> checks before the answer
			sent := 0
			for range 40 {
				for range 5 {
					s.half("pay", fmt.Sprint(sent))
					sent++
				}
				time.Sleep(time.Duration(rng.IntN(2500)) * time.Millisecond)
				synctest.Wait()
				for id, tx := range a.known() {
					if rng.IntN(3) > 0 || accepted[id] > 0 {
						continue
					}
					if s.end("pay", tx, ResolutionCommit) == 0 {
						accepted[id] = a.count(id)
					}
				}
				if rng.IntN(4) == 0 {
					kept := mem.Crash(rng)
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					mem, s.fs = kept, kept
					s.start()
					a.connect()
				}
			}
			time.Sleep(5 * time.Second)
			synctest.Wait()
			var ids []string
			for id, before := range accepted {
				ids = append(ids, id)
				if after := a.count(id); after != before {
					t.Errorf("seed %d: message %s was asked about %d times, %d of them before its commit", seed, id, after, before)
				}
			}
			wantOnce(t, s.drain(billing, "pay"), ids)
			if len(ids) < 20 {
				t.Errorf("seed %d: only %d of %d messages were committed", seed, len(ids), sent)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A thousand half messages that fall due at once are asked about, all of them, as
// fast as the streams take them.
func TestManyChecksAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, s *station, a *asker) {
		for i := range 1000 {
			s.half("pay", fmt.Sprint(i))
		}
		time.Sleep(6500 * time.Millisecond)
		if got := a.soFar(); len(got) != 1000 || len(a.known()) != 1000 {
			t.Errorf("%d checks about %d messages", len(got), len(a.known()))
		}
	})
}

// rng is a source of random numbers for a seed.
func rng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 11)) }

// TestWhoComesIsAskedAtOnce: a half message whose time comes while no producer of its
// topic is connected is asked about as soon as one is, and not an interval later; a
// producer of another topic changes nothing, and one that comes while nothing is due
// neither.
func TestWhoComesIsAskedAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, s *station, a *asker) {
		a.answer(CheckNobody, false)
		s.half("pay", "m")
		s.half("pay", "decided")
		time.Sleep(time.Hour + 10*time.Second) // in the middle of an interval
		a.want()
		a.answer(CheckQueued, false)
		s.ProducerCame("orders")
		synctest.Wait()
		a.want()
		asked := time.Since(a.began)
		s.ProducerCame("pay")
		if got := a.soFar(); len(got) != 2 || got[0] != fmt.Sprintf("m at %v", asked) {
			t.Errorf("checks %v, want one of each at %v", got, asked)
		}
		s.ProducerCame("pay")
		if got := a.soFar(); len(got) != 2 {
			t.Errorf("checks %v, want no other before the interval is over", got)
		}
	})
}
