package broker

import (
	"testing"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// TestRecordsAreCountedByTopic counts what was published between two positions, and
// says when not all of it could be counted.
func TestRecordsAreCountedByTopic(t *testing.T) {
	s := open(t, disk.NewMem(), "rz03-a-1", sample(t), testLimits())
	from := s.log.Committed()
	s.publishN("orders", "o", 7)
	to := s.log.Committed()
	s.publishN("orders", "p", 2)
	x, err := s.CountRecords(t.Context(), from, to)
	if err != nil || x.Partial || x.Records < 7 || len(x.Topics) != 1 || x.Topics[0] != (TopicRecords{"orders", 7}) || x.To != to {
		t.Errorf("%+v, %v", x, err)
	}
	if x, err := s.CountRecords(t.Context(), from, to+1<<30); err != nil || !x.Partial || x.Topics[0].Messages != 9 {
		t.Errorf("beyond the end: %+v, %v", x, err)
	}
	if x, err := s.CountRecords(t.Context(), to+1<<30, to+2<<30); err != nil || !x.Partial || x.Records != 0 {
		t.Errorf("behind the end: %+v, %v", x, err)
	}
	if x, err := s.CountRecords(t.Context(), to, from); err != nil || x.Partial || x.Records != 0 {
		t.Errorf("nothing: %+v, %v", x, err)
	}
	if _, err := s.CountRecords(t.Context(), from+1, to); err == nil {
		t.Error("a position inside a record was taken")
	}
}
