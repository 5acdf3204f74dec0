package broker

import (
	"slices"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
)

func TestDeadLettersAreSelectedByWhatMessagesCarry(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	for _, m := range []struct {
		id, tag string
		keys    []string
		pairs   []string
	}{
		{"a", "red", []string{"k1", "k2"}, []string{"currency", "EUR", "n", "1"}},
		{"b", "red", []string{"k2"}, []string{"currency", "CNY", "n", "1"}},
		{"c", "blue", nil, []string{"currency", "EUR"}},
		{"d", "", nil, nil},
	} {
		msg := s.message("orders", m.id, m.pairs...)
		msg.Tag, msg.Keys = m.tag, m.keys
		s.publish(msg)
		for _, d := range s.receive(billing, "orders", 1, time.Hour) {
			if err := s.DeadLetter(t.Context(), billing, "orders", d.Handle); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		q    DeadLetterQuery
		want []string
	}{
		"all":            {DeadLetterQuery{}, []string{"a", "b", "c", "d"}},
		"tag":            {DeadLetterQuery{Tag: "red"}, []string{"a", "b"}},
		"key":            {DeadLetterQuery{Key: "k2"}, []string{"a", "b"}},
		"first key":      {DeadLetterQuery{Key: "k1"}, []string{"a"}},
		"property":       {DeadLetterQuery{Properties: []record.Property{{Key: "currency", Value: "EUR"}}}, []string{"a", "c"}},
		"two properties": {DeadLetterQuery{Properties: []record.Property{{Key: "currency", Value: "EUR"}, {Key: "n", Value: "1"}}}, []string{"a"}},
		"tag and key":    {DeadLetterQuery{Tag: "blue", Key: "k2"}, nil},
	} {
		c.q.Topic = DeadLetterTopic(billing)
		list, _, err := s.DeadLetters(t.Context(), c.q)
		var got []string
		for _, d := range list {
			got = append(got, string(d.Record.MessageID()))
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, c.want)
		}
	}
}
