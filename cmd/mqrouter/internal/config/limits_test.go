package config

import (
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/broker"
)

func TestLimitsComeFromFlagsAndAreChecked(t *testing.T) {
	path := file(t, "max-delayed: 500\nmax-undecided: 50000\n")
	t.Setenv("MQROUTER_MAX_IDS", "4000")
	n, err := load(t, "broker", "--config", path, "--max-topic-ids", "3000")
	if err != nil {
		t.Fatal(err)
	}
	want := Limits{Delayed: 500, Undecided: 50000, TopicUndecided: broker.DefaultMaxTopicHalves, IDs: 4000, TopicIDs: 3000}
	if n.Limits != want || n.Limits.validate() != nil {
		t.Errorf("limits %+v, %v; want %+v", n.Limits, n.Limits.validate(), want)
	}
	set := broker.Limits{MaxTimers: 7}
	n.Limits.Set(&set)
	if set.MaxTimers != 7 || set.MaxHalves != 50000 || set.MaxIDs != 4000 || set.MaxTopicIDs != 3000 || set.MaxTopicHalves != broker.DefaultMaxTopicHalves {
		t.Errorf("the broker gets %+v", set)
	}
	for name, c := range map[string]struct {
		l    Limits
		says []string // "" in no order
	}{
		"nothing set":      {Limits{}, nil},
		"negative":         {Limits{Delayed: -1, IDs: -5}, []string{"max-delayed -1: write a number from 1 to 100000000", "max-ids -5"}},
		"too many":         {Limits{Undecided: 1 << 30}, []string{"max-undecided 1073741824"}},
		"topic above all":  {Limits{Undecided: 5, TopicUndecided: 6, IDs: 5, TopicIDs: 6}, []string{"max-topic-undecided 6 is more than max-undecided 5", "max-topic-ids 6"}},
		"default above it": {Limits{Undecided: 5, TopicUndecided: broker.DefaultMaxTopicHalves}, nil},
	} {
		err := c.l.validate()
		if (err == nil) != (c.says == nil) {
			t.Errorf("%s: %v", name, err)
		}
		for _, text := range c.says {
			if err != nil && !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v, want %q", name, err, text)
			}
		}
	}
	if _, err := load(t, "broker", "--config", file(t, "max-delayed: many\n")); err == nil || !strings.Contains(err.Error(), "max-delayed") {
		t.Errorf("a word for a number: %v", err)
	}
}
