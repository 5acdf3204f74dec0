package filter

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// viewOf makes the record of a message with the properties; TAGS becomes its tag.
func viewOf(tb testing.TB, props map[string]string) record.View {
	tb.Helper()
	r := record.Record{Identity: record.Identity{Group: "g"}, Type: record.TypeMessage, Topic: "t", Kind: zone.KindNormal, MessageID: "id",
		Born: time.Unix(1, 0), Stored: time.Unix(1, 0), Shard: record.NoShard}
	for k, v := range props {
		if k == tagName {
			r.Tag = v
			continue
		}
		r.Properties = append(r.Properties, record.Property{Key: k, Value: v})
	}
	b, err := record.AppendRecord(nil, &r)
	if err != nil {
		tb.Fatal(err)
	}
	v, err := record.Parse(b)
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

// props reads "a=1 b=x c=": values without spaces, and a value of "" for "c=".
func props(text string) map[string]string {
	m := map[string]string{}
	for _, pair := range strings.Fields(text) {
		k, v, _ := strings.Cut(pair, "=")
		m[k] = v
	}
	return m
}

// TestExpressionsMeanWhatRocketMQSays holds the table of RocketMQ's semantics: what
// the operators accept, three-valued logic, text that meets numbers, and missing
// properties.
func TestExpressionsMeanWhatRocketMQSays(t *testing.T) {
	for _, c := range []struct {
		expression string
		yes, no    []string // properties of messages that match, and that do not
	}{
		{"a=3 and b<>4 And c>5 AND d<=4", []string{"a=3 b=5 c=6 d=1"}, []string{"a=4 b=5 c=6 d=1", "a=3 b=4 c=6 d=1", "a=3 b=5 c=5 d=1", "a=3 b=5 c=6 d=5", ""}},
		{"a=3 or b<>4 Or c>5 OR d<=4", []string{"a=3", "a=4 b=5", "a=4 b=4 c=6", "a=4 b=4 c=3 d=2"}, []string{"a=4 b=4 c=3 d=10"}},
		{"a IN ('3', '4', '5')", []string{"a=3", "a=5"}, []string{"a=8", "", "a=3.0"}},
		{"a NOT IN ('3', '4')", []string{"a=8", "a="}, []string{"a=3", ""}},
		{"NOT (a IN ('3'))", []string{"a=8"}, []string{"a=3", ""}},
		{"a BETWEEN 2 AND 10", []string{"a=2", "a=10", "a=3", "a=9.5"}, []string{"a=1", "a=11", "", "a=abc"}},
		{"a NOT BETWEEN 2 AND 10", []string{"a=1", "a=11"}, []string{"a=2", "a=10", "a=3", "", "a=abc"}},
		{"a BETWEEN -3 AND +3", []string{"a=-3", "a=0"}, []string{"a=-4"}},
		{"a BETWEEN low AND high", []string{"a=2 low=1 high=3"}, []string{"a=2 low=1", "a=2 low=x high=3", "a=2 low=3 high=1"}},
		{"a IS NULL", []string{"", "b=1"}, []string{"a=1", "a="}},
		{"a IS NOT NULL", []string{"a=1", "a="}, []string{"", "b=1"}},
		{"a IS NOT NULL AND a='hello'", []string{"a=hello"}, []string{"", "a=Hello"}},
		{"a IS NULL OR a='hello'", []string{"", "a=hello"}, []string{"a=abc"}},
		{"a=TRUE OR b=FALSE", []string{"a=true", "a=TRUE", "a=no b=false", "a=no b=anything"}, []string{"a=false b=true", "", "a=no"}},
		{"a <> TRUE", []string{"a=false", "a=x"}, []string{"a=true", ""}},
		{"TRUE = a", []string{"a=true"}, []string{"a=x", ""}},
		{"TRUE", []string{""}, nil},
		{"FALSE OR NULL", nil, []string{""}},
		{"NOT FALSE", []string{""}, nil},
		{"NOT NULL", nil, []string{""}},

		// A property alone, or under NOT.
		{"a", nil, []string{"a=true", "a=1", ""}},
		{"NOT a", []string{"a=true", "a="}, []string{""}},

		// Missing properties.
		{"a = b", []string{"", "a=x b=x"}, []string{"a=x", "b=x", "a=1 b=1.0"}},
		{"a <> b", []string{"a=x b=y", "a=x"}, []string{"", "b=x", "a=x b=x"}},
		{"a <> 'x'", []string{"a=y"}, []string{"", "a=x"}},
		{"'x' <> a", []string{"a=y", ""}, []string{"a=x"}},
		{"NOT (a = 'x')", []string{"a=y"}, []string{"", "a=x"}},
		{"a > 3 OR b = 'x'", []string{"a=4", "b=x"}, []string{"a=3", ""}},
		{"NOT (a > 3 AND b = 'x')", []string{"a=3", "b=y"}, []string{"a=4 b=x", "a=4", ""}},
		{"(a = 'x') IS NULL", []string{""}, []string{"a=x", "a=y"}},

		// Numbers.
		{"a = 3", []string{"a=3", "a=3.0", "a=+3", "a=03", "a=3e0"}, []string{"a=3x", "a=", "", "a=4"}},
		{"3 = a", []string{"a=3"}, []string{"a=x"}},
		{"a > 3", []string{"a=3.5", "a=3000000000", "a=9223372036854775808"}, []string{"a=3", "a=-4", "a=0x10", "a=Infinity", "a=NaN", "a=1_0"}},
		{"a >= 9007199254740993", []string{"a=9007199254740993"}, []string{"a=9007199254740992"}},
		{"a < -1.5e1 OR a >= .5", []string{"a=-16", "a=0.5", "a=5E-1"}, []string{"a=-15", "a=0.4"}},
		{"a > 3.", []string{"a=3.1"}, []string{"a=3"}},
		{"a = 5L", []string{"a=5"}, nil},
		{"a > b", []string{"a=10 b=9", "a=1e1 b=9.5"}, []string{"a=9 b=10", "a=x b=1", "a=1"}},
		{"a = -b", nil, []string{"a=3 b=-3"}},
		{"a > - 3", []string{"a=-2"}, []string{"a=-3"}},
		{"a = -9223372036854775807", []string{"a=-9223372036854775807"}, []string{"a=-9223372036854775806"}},

		// What is no number fails the whole, unless it is decided before.
		{"NOT (a = 3)", []string{"a=4"}, []string{"a=x"}},
		{"a = 3 OR b = 'x'", []string{"a=3", "a=4 b=x", "b=x"}, []string{"a=y b=x"}},
		{"b = 'x' OR a = 3", []string{"a=y b=x"}, []string{"a=y"}},
		{"a <> 3", []string{"a=4"}, []string{"a=x", ""}},
		{"(a = 3) IS NULL", []string{""}, []string{"a=x"}},

		// Text.
		{"a = 'it''s'", []string{"a=it's"}, []string{"a=its"}},
		{"TAGS IS NOT NULL AND TAGS='''''tag'''''", []string{"TAGS=''tag''"}, []string{"TAGS=tag", "tags=''tag''"}},
		{"TAGS = 'x' AND a = '1'", []string{"TAGS=x a=1"}, []string{"TAGS=y a=1", "TAGS=x", "a=1"}},
		{"a = '键'", []string{"a=键"}, []string{"a=值"}},
		{"a CONTAINS 'ell'", []string{"a=hello"}, []string{"a=world", "", "a=HELLO"}},
		{"a NOT CONTAINS 'ell'", []string{"a=world"}, []string{"a=hello", ""}},
		{"NOT (a CONTAINS 'ell')", []string{"a=world", ""}, []string{"a=hello"}},
		{"a CONTAINS ''", nil, []string{"a=x", ""}},
		{"a NOT CONTAINS ''", nil, []string{"a=x", ""}},
		{"a StartsWith 'he' and a EndsWith 'lo'", []string{"a=hello", "a=helo"}, []string{"a=hell", "a=jello"}},
		{"a NOT STARTSWITH 'he' AND a NOT ENDSWITH 'lo'", []string{"a=x"}, []string{"a=hex", "a=xlo", ""}},

		// Names and layout.
		{"a=1 AND A=2", []string{"a=1 A=2"}, []string{"a=2 A=1"}},
		{"$x_1 = 'y' AND NOTE = 'z'", []string{"$x_1=y NOTE=z"}, nil},
		{"a -- the first\n = /* * the ** value */ 1", []string{"a=1"}, nil},
		{"((a)) = ((1))", []string{"a=1"}, nil},
		{"a=1 OR b=1 AND c=1", []string{"a=1", "b=1 c=1"}, []string{"b=1"}},
		{"(a=1 OR b=1) AND c=1", []string{"a=1 c=1"}, []string{"a=1"}},
		{"(a > 1) = TRUE", []string{"a=2"}, []string{"a=1"}},
		{"NOT (a=1) AND b=1", []string{"a=2 b=1"}, []string{"a=1 b=1"}},
		{"NOT NOT (a=1)", []string{"a=1"}, []string{"a=2"}},
	} {
		e, err := Compile(c.expression)
		if err != nil {
			t.Errorf("%s: %v", c.expression, err)
			continue
		}
		for want, list := range map[bool][]string{true: c.yes, false: c.no} {
			for _, m := range list {
				v := viewOf(t, props(m))
				if got := e.Match(&v); got != want {
					t.Errorf("%s with {%s}: %v, want %v", c.expression, m, got, want)
				}
			}
		}
	}
}

// TestFaultsSayWhereAndWhatToDo holds the text of errors, which people see at the
// start of their consumer.
func TestFaultsSayWhereAndWhatToDo(t *testing.T) {
	for _, c := range []struct {
		expression string
		column     int
		text       string // part of the error
	}{
		{"", 1, "empty"},
		{"  ", 1, "empty"},
		{"a >", 4, "something is missing"},
		{"a = 3 garbage", 7, `"garbage" is not expected`},
		{"a = 3 AND", 10, "missing"},
		{"(a = 3", 7, "missing"},
		{"a = 3)", 6, `")" is not expected`},
		{"a LIKE 'x%'", 3, "use CONTAINS"},
		{"a == 3", 4, "write ="},
		{"a != 3", 3, "write <>"},
		{"a = 'x", 5, "closing quote"},
		{`a = "x"`, 5, "single quotes"},
		{"a + 1 > 3", 3, "arithmetic"},
		{"a = 1 /* and", 7, "has no end"},
		{"a = 1 */ and", 7, "did not begin"},
		{"a * 2 > 3", 3, "arithmetic"},
		{"a.b = 3", 2, "letters, digits"},
		{"a-b = 3", 2, "arithmetic"},
		{"a = 1 && b = 2", 7, "write AND"},
		{"键 = 1", 1, "not expected"},
		{"a = '键' AND", 12, "missing"},
		{"a > 'x'", 5, "numbers only"},
		{"a > TRUE", 5, "numbers only"},
		{"a BETWEEN 5 AND 2", 11, "exchange"},
		{"a BETWEEN 'a' AND 'b'", 11, "numbers only"},
		{"a = NULL", 5, "IS NULL"},
		{"NULL <> a", 1, "IS NULL"},
		{"3", 1, "no condition"},
		{"a = 1 AND 'x'", 11, "no condition"},
		{"-a", 1, "no condition"},
		{"NOT a = 3", 1, "write NOT ("},
		{"NOT a IS NULL", 1, "write NOT ("},
		{"NOT a IN ('x')", 1, "write NOT ("},
		{"a = NOT b", 5, "write NOT ("},
		{"TRUE = 3", 6, "TRUE and FALSE"},
		{"3 IN ('3')", 1, "property"},
		{"a IN (3)", 7, "not expected"},
		{"a IN ()", 7, "not expected"},
		{"a > 3 > 2", 1, "condition"},
		{"a = 99999999999999999999", 5, "decimal point"},
		{"a = 007", 6, "not expected"},
		{"a = 1e999", 5, "too large"},
		{"-(a = 1)", 2, "sign"},
		{strings.Repeat("(", 33) + "a" + strings.Repeat(")", 33), 33, "nested deeper than 32"},
		{strings.Repeat("NOT ", 33) + "a", 129, "nested deeper than 32"},
		{"a = 1" + strings.Repeat(" OR a=1", 300), 1795, "more than 1024"},
		{"a = '" + strings.Repeat("x", MaxLength) + "'", MaxLength + 1, "4102 bytes"},
		{manyNames(33), 279, "more than 32 properties"},
		{"a CONTAINS 'x'" + strings.Repeat(" OR a CONTAINS 'x'", 32), 579, "more than 32 CONTAINS"},
	} {
		_, err := Compile(c.expression)
		var fault *Error
		if !errors.As(err, &fault) {
			t.Errorf("%.60s: no fault: %v", c.expression, err)
			continue
		}
		if fault.Column != c.column || !strings.Contains(fault.Error(), c.text) {
			t.Errorf("%.60s: %v; want character %d and %q", c.expression, fault, c.column, c.text)
		}
	}
}

func manyNames(n int) string {
	var terms []string
	for i := range n {
		terms = append(terms, fmt.Sprintf("p%d=1", i))
	}
	return strings.Join(terms, " OR ")
}

func TestMatchDoesNotAllocate(t *testing.T) {
	e, err := Compile("TAGS = 'vip' AND amount BETWEEN 10 AND 5000.5 AND region IN ('east','west') AND name CONTAINS 'x' AND NOT (old IS NULL OR n <> 7)")
	if err != nil {
		t.Fatal(err)
	}
	v := viewOf(t, props("TAGS=vip amount=100 region=west name=axb old=1 n=7 other=thing"))
	if !e.Match(&v) {
		t.Fatal("no match")
	}
	if n := testing.AllocsPerRun(100, func() { e.Match(&v) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestPropertiesNamesWhatIsAskedFor(t *testing.T) {
	e, err := Compile("TAGS = 'x' OR a = b OR a = 1")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for n := range e.Properties {
		names = append(names, n)
	}
	if got := strings.Join(names, " "); got != "TAGS a b" {
		t.Errorf("got %q", got)
	}
}

func BenchmarkMatch(b *testing.B) {
	e, err := Compile("TAGS = 'vip' AND amount BETWEEN 10 AND 5000.5 AND region IN ('east','west')")
	if err != nil {
		b.Fatal(err)
	}
	v := viewOf(b, props("TAGS=vip amount=100 region=west name=axb old=1 n=7 other=thing"))
	b.ReportAllocs()
	for b.Loop() {
		e.Match(&v)
	}
}

func BenchmarkCompileLongest(b *testing.B) {
	text := "a IN ('x'" + strings.Repeat(",'x'", 400) + ")"
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Compile(text); err != nil {
			b.Fatal(err)
		}
	}
}
