package broker

import "testing"

// TestAnOfferOvertakesNothingOfItsMessageGroup: what follows a refused message in its
// message group is refused with it, and comes in order once that one can be offered.
// Other groups do not wait.
func TestAnOfferOvertakesNothingOfItsMessageGroup(t *testing.T) {
	p := partFrom(t, lostTopology(t), func(*memberNode) {}, func(a *memberNode) {
		for i := range 3 {
			a.publish(a.step("acct", i))
		}
		a.publish(a.step("other", 0))
	})
	all, _ := offers(t, p.store)
	var list []Offered
	for _, x := range all {
		if string(x.Record.Topic()) == "steps" {
			list = append(list, x)
		}
	}
	if len(list) != 4 {
		t.Fatalf("%d steps are offered", len(list))
	}
	spoilt := list[0]
	spoilt.Again.Position++ // where its record does not stand
	results, err := p.b.OfferTail(t.Context(), append([]Offered{spoilt}, list[1:]...), OfferOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []OfferOutcome{OfferRefused, OfferRefused, OfferRefused, OfferStored} {
		if results[i].Outcome != want || i > 0 && want == OfferRefused && results[i].Text != OfferBehind {
			t.Errorf("step %d is %v: %s; want %v", i, results[i].Outcome, results[i].Text, want)
		}
	}
	wantOffered(t, "the whole tail", p.b.offer(list, OfferOptions{}), map[OfferOutcome]int{OfferStored: 3, OfferAgain: 1})
}
