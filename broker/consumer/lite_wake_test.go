package consumer

import (
	"errors"
	"testing"
	"time"
)

func newChosen(first uint64, p *Progress) *Dispatcher {
	return NewDispatcher(Options{Group: "g", Topic: "t", MaxAttempts: 10, FirstDelivery: first, InOrder: true, Chosen: true}, p.State("g", "t"), 1, time.Unix(1e6, 0))
}

// However many message groups with old messages are chosen one after the other, what is
// new of each comes after two readings of the index at most.
func TestChoosingDoesNotKeepOthersAsleep(t *testing.T) {
	const groups, messages, chosen = 1000, 100_000, 500
	p := NewProgress()
	p.Create("g", "t", liteQueue, 0)
	d := newChosen(0, p)
	d.Advance(liteQueue, messages)
	r := TakeRequest{Now: 1, Max: 1, Client: "first", Invisible: time.Minute, Key: func(_ uint16, o uint64) (uint64, Verdict) {
		if key := o % groups; key != chosen || o == chosen || o > messages {
			return key, Deliver
		}
		return groups, Deliver
	}}
	for d.Sort(r) {
	}
	const looks = 2 * (messages/maxExamined + 2)
	d.Choose("first", chosen)
	d.Advance(liteQueue, messages+2*chosen) // with one of it
	for want, i := uint64(chosen), uint64(1); ; i++ {
		d.Choose("others", chosen-i) // begins before the one that is being woken
		got, _ := d.Take(r, nil)
		if len(got) > 1 || len(got) == 1 && got[0].Offset != want {
			t.Fatalf("got %v, want %d", got, want)
		}
		if len(got) == 1 {
			if err := d.Ack(1, liteQueue, want, got[0].Delivery); err != nil {
				t.Fatal(err)
			}
			if want != chosen {
				break
			}
			want = messages + chosen
		}
		if i == looks {
			t.Fatalf("%d did not come in %d looks at the index", want, looks)
		}
	}
}

// An acknowledgement by a handle of an earlier process, of a message that sleeps, is
// either kept, or refused.
func TestAcknowledgementOfWhatSleepsIsNotForgotten(t *testing.T) {
	p := NewProgress()
	p.Create("g", "t", liteQueue, 0)
	d := newChosen(1<<40, p)
	d.Advance(liteQueue, 4)
	r := TakeRequest{Now: 1, Max: 4, Client: "c", Invisible: time.Minute, Key: func(uint16, uint64) (uint64, Verdict) { return 7, Deliver }}
	for d.Sort(r) {
	}
	var refused *HandleError
	if err := d.Ack(1, liteQueue, 1, 5); !errors.As(err, &refused) || refused.Reason != ReasonExpired {
		t.Errorf("of the second: %v", err)
	}
	if err := d.Ack(1, liteQueue, 0, 5); err != nil {
		t.Errorf("of the first: %v", err)
	}
	if err := d.Ack(1, liteQueue, 0, 5); err != nil {
		t.Errorf("of the first, again: %v", err)
	}
	d.Choose("c", 7)
	for want := uint64(1); want < 4; want++ {
		got, _ := d.Take(r, nil)
		if len(got) != 1 || got[0].Offset != want {
			t.Fatalf("got %v, want %d", got, want)
		}
		if err := d.Ack(1, liteQueue, want, got[0].Delivery); err != nil {
			t.Fatal(err)
		}
	}
}
