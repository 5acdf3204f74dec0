package commitlog

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
)

// lineageBodyLen is the length of a TypeLineageStart record's body: epoch, id,
// first position, each a little-endian u64. A longer body is of a newer version;
// what follows is ignored.
const lineageBodyLen = 24

var errLineageBody = errors.New("commitlog: body of a lineage start is cut short")

// ParseLineageStart reads the body of a TypeLineageStart record.
func ParseLineageStart(body []byte) (LineageStart, error) {
	if len(body) < lineageBodyLen {
		return LineageStart{}, errLineageBody
	}
	le := binary.LittleEndian
	return LineageStart{
		Epoch: le.Uint64(body),
		ID:    record.LineageID(le.Uint64(body[8:])),
		First: record.Position(le.Uint64(body[16:])),
	}, nil
}

// startBatch makes the log's own first batch of a lineage.
func (l *Log) startBatch() (*Batch, error) {
	le := binary.LittleEndian
	body := le.AppendUint64(nil, l.lineage.Epoch)
	body = le.AppendUint64(body, uint64(l.lineage.ID))
	body = le.AppendUint64(body, uint64(l.lineage.First))
	b, err := record.AppendRecord(nil, &record.Record{
		Type:     record.TypeLineageStart,
		Identity: record.Identity{Group: l.options.Group},
		Shard:    record.NoShard,
		Stored:   time.Now(),
		Body:     body,
	})
	if err != nil {
		return nil, err
	}
	batch := &Batch{Entries: []Entry{{Kind: KindOwn, Record: b}}, Reserved: true}
	batch.size, err = batchSize(batch)
	return batch, err
}
