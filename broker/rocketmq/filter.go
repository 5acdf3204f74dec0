package rocketmq

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mqrouter/mqrouter/broker"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// parseFilter reads a tag expression: "*" or nothing for all, else tags between
// double vertical bars, trimmed and compared exactly.
func parseFilter(f *pb.FilterExpression) (broker.Filter, *pb.Status) {
	switch t := f.GetType(); t {
	case pb.FilterType_TAG, pb.FilterType_FILTER_TYPE_UNSPECIFIED:
	case pb.FilterType_SQL:
		return broker.Filter{}, refuse(pb.Code_ILLEGAL_FILTER_EXPRESSION, "SQL filters are not supported, filter by tag")
	default:
		return broker.Filter{}, refuse(pb.Code_ILLEGAL_FILTER_EXPRESSION, "the filter type "+t.String()+" is not known")
	}
	expr := strings.TrimSpace(f.GetExpression())
	switch {
	case expr == "" || expr == "*":
		return broker.Filter{All: true}, nil
	case len(expr) > maxFilter:
		return broker.Filter{}, refuse(pb.Code_ILLEGAL_FILTER_EXPRESSION, fmt.Sprintf("the filter expression has %d bytes, the limit is %d", len(expr), maxFilter))
	}
	var tags []string
	for part := range strings.SplitSeq(expr, "||") {
		tag := strings.TrimSpace(part)
		if tag == "" || slices.Contains(tags, tag) {
			continue
		}
		if st := checkTag(tag); st != nil {
			return broker.Filter{}, refuse(pb.Code_ILLEGAL_FILTER_EXPRESSION, st.GetMessage())
		}
		if len(tags) == maxFilterTags {
			return broker.Filter{}, refuse(pb.Code_ILLEGAL_FILTER_EXPRESSION, fmt.Sprintf("the filter has more than %d tags", maxFilterTags))
		}
		tags = append(tags, tag)
	}
	if len(tags) == 0 {
		return broker.Filter{}, refuse(pb.Code_ILLEGAL_FILTER_EXPRESSION, "the filter has no tag")
	}
	return broker.Filter{Tags: tags}, nil
}
