package once

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

var epoch = time.UnixMilli(1_700_000_000_000)

func send(id int, window time.Duration, content uint64) *record.Once {
	return &record.Once{Window: window, Key: Key(fmt.Sprint(id)), Content: content}
}

// seen is the simple model: everything that ever was stored.
type seen struct {
	at      time.Time
	window  time.Duration
	content uint64
	place   Place
}

// TestTableIsTheRule: random sends of several topics with several windows, clock
// steps in both directions, and snapshots on the way, against a list of everything.
func TestTableIsTheRule(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 7))
		table, model := &Table{}, map[zone.Topic]map[int]seen{"a": {}, "b": {}, "c": {}}
		now, latest, answers := epoch, epoch, [3]int{}
		for step := range 5000 {
			topic := zone.Topic("abc"[rng.IntN(3):][:1])
			id, content := rng.IntN(200), uint64(rng.IntN(20)/19)
			window := time.Duration(1+rng.IntN(3)) * time.Second
			now = now.Add(time.Duration(rng.IntN(14)-3) * time.Millisecond)
			o := send(id, window, content)
			first, known := model[topic][id]
			want := New
			if known && now.Sub(first.at) < first.window {
				want = Repeat
				if first.content != content {
					want = Conflict
				}
			}
			place, got := table.Look(topic, o, now)
			if want != New && got == New && !first.at.Add(first.window).After(latest) {
				want = New // forgotten when its window was over, before the clock stepped back
			}
			if got != want || got != New && place != first.place {
				t.Fatalf("seed %d, step %d: topic %s id %d is %d at %v, want %d at %v", seed, step, topic, id, got, place, want, first.place)
			}
			answers[got]++
			if now.After(latest) {
				latest = now
			}
			if got == New {
				p := Place{Queue: uint16(step), Flags: uint8(step), Offset: uint64(step), Extra: uint64(step) << 20}
				table.Enter(topic, o, now, p, uint64(step))
				model[topic][id] = seen{now, window, content, p}
			}
			if rng.IntN(100) == 0 {
				table = again(t, table)
			}
		}
		if answers[New] < 500 || answers[Repeat] < 500 || answers[Conflict] < 50 {
			t.Errorf("seed %d shows little: %v", seed, answers)
		}
	}
}

// again is the table after a snapshot.
func again(t *testing.T, table *Table) *Table {
	t.Helper()
	b := table.Append(nil)
	back, rest, err := Parse(append(b, "rest"...))
	if err != nil || string(rest) != "rest" || back.Len() != table.Len() {
		t.Fatalf("%d entries became %d, rest %q, %v", table.Len(), back.Len(), rest, err)
	}
	if !bytes.Equal(back.Append(nil), b) {
		t.Fatal("a snapshot of what was restored has other bytes")
	}
	return back
}

// What is over goes, although no record makes more than a few go.
func TestTableForgetsWhatIsOver(t *testing.T) {
	table := &Table{}
	const n = 10_000
	for i := range n {
		table.Enter("flood", send(i, time.Minute, 0), epoch, Place{}, uint64(i))
	}
	if table.Over(epoch.Add(time.Minute-time.Millisecond)) || !table.Over(epoch.Add(time.Minute)) {
		t.Error("the end of the windows is not seen")
	}
	later := epoch.Add(time.Hour)
	for i := range n {
		table.Enter("trickle", send(i, time.Second, 0), later.Add(time.Duration(i)*time.Second), Place{}, uint64(i))
		if i > 2*n/maxForget && table.Len() > 100 {
			t.Fatalf("%d entries after %d sends of another topic", table.Len(), i)
		}
	}
	if names := table.Topics(); len(names) != 1 || names[0] != "trickle" {
		t.Errorf("topics left: %v", names)
	}
}

func TestMalformedSnapshotsAreRefused(t *testing.T) {
	table := &Table{}
	for i := range 3 {
		table.Enter("a", send(i, time.Minute, 0), epoch, Place{}, 0)
		table.Enter("b", send(i, time.Minute, 0), epoch, Place{}, 0)
	}
	b := table.Append(nil)
	for n := range b {
		if _, _, err := Parse(b[:n]); err == nil {
			t.Errorf("%d of %d bytes are accepted", n, len(b))
		}
	}
	endless := binary.AppendUvarint([]byte{1, 1, 'a'}, 1<<60)
	twice := append([]byte{2, 1, 'a', 0}, 1, 'a', 0)
	for _, b := range [][]byte{endless, twice, {0xff}} {
		if _, _, err := Parse(b); err == nil {
			t.Errorf("%x is accepted", b)
		}
	}
}

func TestContentTellsMessagesApart(t *testing.T) {
	base := Content([]string{"tag", "k", "v"}, []byte("body"))
	for _, c := range []struct {
		texts []string
		body  string
	}{{[]string{"tag", "k", "v"}, "body."}, {[]string{"tagk", "", "v"}, "body"}, {[]string{"tag", "k"}, "vbody"}, {nil, "tagkvbody"}} {
		if Content(c.texts, []byte(c.body)) == base {
			t.Errorf("%q %q passes for the other message", c.texts, c.body)
		}
	}
	if Content([]string{"tag", "k", "v"}, []byte("body")) != base || Key("a") == Key("b") {
		t.Error("digests are not of their input")
	}
}

// BenchmarkEnter tells what a message costs, in time and in memory.
func BenchmarkEnter(b *testing.B) {
	const ids = 1 << 20
	keys := make([]*record.Once, ids)
	for i := range keys {
		keys[i] = send(i, 10*time.Minute, uint64(i))
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	table := &Table{}
	for i, o := range keys {
		table.Enter("t", o, epoch, Place{}, uint64(i))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	began := time.Now()
	size, took := len(table.Append(nil)), time.Since(began)
	later := epoch.Add(10 * time.Minute)
	b.ResetTimer()
	for i := range b.N {
		table.Enter("t", keys[i%ids], later.Add(time.Duration(i)*600*time.Millisecond), Place{}, uint64(i))
	}
	b.StopTimer()
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/ids, "B/id")
	b.ReportMetric(float64(size)/ids, "snapshot-B/id")
	b.ReportMetric(float64(took.Milliseconds()), "snapshot-ms")
}
