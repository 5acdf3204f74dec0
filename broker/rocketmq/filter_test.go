package rocketmq

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

func withSQL(r *pb.ReceiveMessageRequest, expression string) *pb.ReceiveMessageRequest {
	r.FilterExpression = &pb.FilterExpression{Type: pb.FilterType_SQL, Expression: expression}
	return r
}

// TestSQLFilterOnBothStores: properties and tag as sent are what the expression sees.
func TestSQLFilterOnBothStores(t *testing.T) {
	for name, begin := range map[string]func(*testing.T) *bench{
		"memory": func(t *testing.T) *bench { return start(t, nil) },
		"broker": func(t *testing.T) *bench { return startReal(t) },
	} {
		t.Run(name, func(t *testing.T) {
			c := begin(t).dial(t, nil)
			for i := range 6 {
				mustSend(t, c, msg("t", fmt.Sprint("M", i), func(m *pb.Message) {
					m.UserProperties = map[string]string{"amount": fmt.Sprint(i), "region": "e'st"}
					if i < 5 {
						m.SystemProperties.Tag = str("vip")
					}
				}))
			}
			got := pull(t, c, withSQL(simple("g", "t", 32), "amount between 2 and 5 and TAGS = 'vip' and region='e''st' and old is null"))
			if len(got.msgs) != 3 || got.msgs[0].GetSystemProperties().GetMessageId() != "M2" {
				t.Fatalf("got %v", got.msgs)
			}
			want(t, pull(t, c, withSQL(simple("g", "t", 32), "TRUE")).status, pb.Code_MESSAGE_NOT_FOUND)
			if all := pull(t, c, withSQL(simple("steps", "t", 32), "TRUE")); len(all.msgs) != 6 {
				t.Errorf("the other group got %d messages, want 6", len(all.msgs))
			}
		})
	}
}

// TestBadSQLFilterFailsTheStart: the error comes with the settings, with the place
// in the expression; a filter of a newer kind fails only where it would be used.
func TestBadSQLFilterFailsTheStart(t *testing.T) {
	c := start(t, nil).dial(t, nil)
	for expression, text := range map[string]string{"a LIKE 'x'": "character 3", "KEYS = 'x'": "KEYS belongs to the system", "": "empty"} {
		s := consumerSettings(pb.ClientType_SIMPLE_CONSUMER, pb.Language_JAVA, "g")
		s.GetSubscription().Subscriptions[0].Expression = &pb.FilterExpression{Type: pb.FilterType_SQL, Expression: expression}
		err := refusal(t, stream(t, c, "c", s))
		st := status.Convert(err)
		if st.Code() != codes.InvalidArgument || !strings.HasPrefix(st.Message(), "ILLEGAL_FILTER_EXPRESSION: topic t: ") || !strings.Contains(st.Message(), text) {
			t.Errorf("%q: got %v, want ILLEGAL_FILTER_EXPRESSION with %q", expression, err, text)
		}
	}
	good := consumerSettings(pb.ClientType_SIMPLE_CONSUMER, pb.Language_JAVA, "g")
	good.GetSubscription().Subscriptions[0].Expression = &pb.FilterExpression{Type: pb.FilterType_SQL, Expression: "a > 3"}
	reply(t, stream(t, c, "c", good))
	newer := consumerSettings(pb.ClientType_SIMPLE_CONSUMER, pb.Language_JAVA, "g")
	newer.GetSubscription().Subscriptions[0].Expression = &pb.FilterExpression{Type: 77, Expression: "?"}
	reply(t, stream(t, c, "c", newer))
	many := consumerSettings(pb.ClientType_SIMPLE_CONSUMER, pb.Language_JAVA, "g")
	for range maxSubscriptions {
		many.GetSubscription().Subscriptions = append(many.GetSubscription().Subscriptions, &pb.SubscriptionEntry{Topic: res("t")})
	}
	if err := refusal(t, stream(t, c, "c", many)); status.Code(err) != codes.InvalidArgument {
		t.Errorf("%d subscriptions: %v", maxSubscriptions+1, err)
	}
}

// TestCompiledFiltersAreKeptAndBounded: the same expression is the same filter, and
// whoever asks for ever new ones pushes others out and no more.
func TestCompiledFiltersAreKeptAndBounded(t *testing.T) {
	c, err := newFilters()
	if err != nil {
		t.Fatal(err)
	}
	a, st := c.sql("a = 1")
	b, _ := c.sql("a = 1")
	if st != nil || a.SQL == nil || a.SQL != b.SQL {
		t.Fatalf("compiled twice: %v", st)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = c.sql("a = 1") }); n != 0 {
		t.Errorf("%v allocations for a filter that is kept", n)
	}
	for i := range 3 * maxFilters {
		if _, st := c.sql(fmt.Sprintf("a = %d OR", i)); st.GetCode() != pb.Code_ILLEGAL_FILTER_EXPRESSION {
			t.Fatal(st)
		}
	}
	if n := c.kept.Len(); n != maxFilters {
		t.Errorf("%d are kept, want %d", n, maxFilters)
	}
	if d, st := c.sql("a = 1"); st != nil || d.SQL == a.SQL {
		t.Errorf("it was pushed out and is compiled again: %v", st)
	}
}
