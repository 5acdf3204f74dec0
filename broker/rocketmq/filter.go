package rocketmq

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/broker/filter"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// parse reads a filter. One of a type that is not known cannot be left out, which
// would hand over what was not asked for.
func (c *filters) parse(f *pb.FilterExpression) (broker.Filter, *pb.Status) {
	switch t := f.GetType(); t {
	case pb.FilterType_TAG, pb.FilterType_FILTER_TYPE_UNSPECIFIED:
		return parseTags(f)
	case pb.FilterType_SQL:
		return c.sql(f.GetExpression())
	default:
		return broker.Filter{}, refuse(pb.Code_ILLEGAL_FILTER_EXPRESSION, "the filter type "+t.String()+" is not known")
	}
}

// parseTags reads a tag expression: "*" or nothing for all, else tags between
// double vertical bars, trimmed and compared exactly.
func parseTags(f *pb.FilterExpression) (broker.Filter, *pb.Status) {
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

// maxFilters is how many SQL expressions are kept compiled, the latest that were
// asked for: consumers repeat theirs with every receive. A compiled one has at most
// some 100 KB.
const maxFilters = 256

// filters compiles SQL expressions and keeps them. It is safe for concurrent use.
type filters struct {
	kept *lru.Cache[string, compiled]
	mu   sync.Mutex // one compiles at a time: whoever sends new expressions without end has one processor at most
}

// compiled is an expression, or why it is none: refused consumers repeat theirs too.
type compiled struct {
	expr *filter.Expr
	err  error
}

func newFilters() (*filters, error) {
	kept, err := lru.New[string, compiled](maxFilters)
	if err != nil {
		return nil, fmt.Errorf("rocketmq: filters: %w", err)
	}
	return &filters{kept: kept}, nil
}

// sql returns the filter of an SQL92 expression; package filter has the language.
func (c *filters) sql(expression string) (broker.Filter, *pb.Status) {
	if len(expression) > filter.MaxLength {
		return broker.Filter{}, refuse(pb.Code_ILLEGAL_FILTER_EXPRESSION, fmt.Sprintf("the filter expression has %d bytes, the limit is %d", len(expression), filter.MaxLength))
	}
	k, ok := c.kept.Get(expression)
	if !ok {
		k = c.compile(expression)
	}
	if k.err != nil {
		return broker.Filter{}, refuse(pb.Code_ILLEGAL_FILTER_EXPRESSION, k.err.Error())
	}
	return broker.Filter{SQL: k.expr}, nil
}

func (c *filters) compile(expression string) compiled {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k, ok := c.kept.Get(expression); ok {
		return k
	}
	var k compiled
	if k.expr, k.err = filter.Compile(expression); k.err == nil {
		for name := range k.expr.Properties {
			if reservedProperties[name] && name != "TAGS" {
				k = compiled{err: &reservedError{name}}
				break
			}
		}
	}
	c.kept.Add(expression, k)
	return k
}

// reservedError refuses a filter over a property that no message has here: it would
// match nothing, in silence.
type reservedError struct{ name string }

func (e *reservedError) Error() string {
	return "SQL filter: the property " + e.name + " belongs to the system and is not seen by filters; user properties and TAGS are"
}
