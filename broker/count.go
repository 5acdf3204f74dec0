package broker

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// maxCounted is how much of the log one count reads, in bytes: about a second of a
// slow disk.
const maxCounted = record.Position(64 << 20)

// RecordCount says what is in a part of the log.
type RecordCount struct {
	From, To record.Position // what was counted
	Records  int
	Partial  bool // less was counted than was asked for
	Topics   []TopicRecords
}

// TopicRecords is how many messages of a topic are in a part of the log.
type TopicRecords struct {
	Topic    zone.Topic
	Messages int
}

// errCounted ends the scan of a count.
var errCounted = errors.New("broker: enough was counted")

// CountRecords counts what is committed between two positions, where records begin or
// end, for people: of a replica as well. It reads at most 64 MiB of the log, and says
// Partial when there is more, or when less is committed.
//
// Errors: those of commitlog.Log.Scan, and the context's.
func (b *Broker) CountRecords(ctx context.Context, from, to record.Position) (RecordCount, error) {
	x := RecordCount{From: from, To: from}
	if to <= from {
		return x, nil
	}
	stop := min(to, b.log.Committed())
	if from >= stop { // nothing of it counts yet
		x.Partial = true
		return x, nil
	}
	counts := map[zone.Topic]int{}
	err := b.log.Scan(ctx, from, stop, func(e commitlog.Entry) error {
		x.To = e.Position + record.Position(e.Size)
		x.Records++
		if len(e.Record) > 0 {
			v, err := record.Parse(e.Record)
			if err != nil {
				return err
			}
			if t := v.Topic(); v.Type() == record.TypeMessage && len(t) > 0 {
				counts[zone.Topic(t)]++
			}
		}
		if x.To-from >= maxCounted {
			return errCounted
		}
		return nil
	})
	switch {
	case errors.Is(err, errCounted):
	case err != nil:
		return x, &Error{Op: "count", Kind: kindOfLog(err), Err: err}
	default:
		x.To = stop // marks behind the last record
	}
	x.Partial = x.To < to
	for t, n := range counts {
		x.Topics = append(x.Topics, TopicRecords{t, n})
	}
	slices.SortFunc(x.Topics, func(a, b TopicRecords) int { return cmp.Compare(a.Topic, b.Topic) })
	return x, nil
}
