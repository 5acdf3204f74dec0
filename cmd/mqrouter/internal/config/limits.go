package config

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/mqrouter/mqrouter/broker"
)

// Limits bounds what a broker holds for its clients; beyond them it refuses. 0 stands
// for the default of package broker.
type Limits struct {
	Delayed        int `mapstructure:"max-delayed"`         // delayed messages that wait
	Undecided      int `mapstructure:"max-undecided"`       // half messages that wait
	TopicUndecided int `mapstructure:"max-topic-undecided"` // of these: of one topic
	IDs            int `mapstructure:"max-ids"`             // message ids that idempotent topics remember
	TopicIDs       int `mapstructure:"max-topic-ids"`       // of these: of one topic
}

// limit is one of Limits as a flag. The most is what a broker with 32 GiB of memory, or
// with a disk of 4 TB, can hold.
type limit struct {
	key       string
	def, most int
	help      string
	of        func(*Limits) *int
}

var limits = []limit{
	{"max-delayed", broker.DefaultMaxTimers, 100_000_000, "delayed messages that may wait at this broker, 20 bytes of index and their log each", func(l *Limits) *int { return &l.Delayed }},
	{"max-undecided", broker.DefaultMaxHalves, 10_000_000, "half messages that may wait for decisions, some 250 bytes of memory each", func(l *Limits) *int { return &l.Undecided }},
	{"max-topic-undecided", broker.DefaultMaxTopicHalves, 10_000_000, "half messages of one topic that may wait for decisions", func(l *Limits) *int { return &l.TopicUndecided }},
	{"max-ids", broker.DefaultMaxIDs, 100_000_000, "message ids that idempotent topics may remember, about 100 bytes of memory each", func(l *Limits) *int { return &l.IDs }},
	{"max-topic-ids", broker.DefaultMaxTopicIDs, 100_000_000, "message ids that one idempotent topic may remember", func(l *Limits) *int { return &l.TopicIDs }},
}

// limitFlags declares the flags of the limits.
func limitFlags(fs *pflag.FlagSet) {
	for _, l := range limits {
		fs.Int(l.key, l.def, l.help)
	}
}

// validate reports every fault.
func (l Limits) validate() error {
	var errs []error
	for _, x := range limits {
		if v := *x.of(&l); v < 0 || v > x.most {
			errs = append(errs, fmt.Errorf("config: %s %d: write a number from 1 to %d; 0 stands for %d", x.key, v, x.most, x.def))
		}
	}
	// A default that is too much for the other limit is as much as that.
	if l.TopicUndecided > l.Undecided && l.Undecided > 0 && l.TopicUndecided != broker.DefaultMaxTopicHalves {
		errs = append(errs, fmt.Errorf("config: max-topic-undecided %d is more than max-undecided %d, which holds for all topics together", l.TopicUndecided, l.Undecided))
	}
	if l.TopicIDs > l.IDs && l.IDs > 0 && l.TopicIDs != broker.DefaultMaxTopicIDs {
		errs = append(errs, fmt.Errorf("config: max-topic-ids %d is more than max-ids %d, which holds for all topics together", l.TopicIDs, l.IDs))
	}
	return errors.Join(errs...)
}

// Set sets those of a broker's limits that are not set yet.
func (l Limits) Set(b *broker.Limits) {
	for _, x := range []struct {
		to   *int
		from int
	}{{&b.MaxTimers, l.Delayed}, {&b.MaxHalves, l.Undecided}, {&b.MaxTopicHalves, l.TopicUndecided}, {&b.MaxIDs, l.IDs}, {&b.MaxTopicIDs, l.TopicIDs}} {
		if *x.to == 0 {
			*x.to = x.from
		}
	}
}
