package filter

import (
	"errors"
	"testing"
)

// FuzzCompile: any text compiles or is a fault inside the text; what compiles does
// so again from its own source, and matches without a panic.
func FuzzCompile(f *testing.F) {
	for _, s := range []string{
		"a=3 and b<>4 OR NOT (c IS NULL)", "TAGS IN ('x','it''s') AND a NOT BETWEEN -1 AND 2.5e3", "a STARTSWITH '键' -- x\n", "((((a))))=1L", "a = = b", "'", "/*",
	} {
		f.Add(s, "3", "x")
	}
	f.Fuzz(func(t *testing.T, expression, a, tag string) {
		e, err := Compile(expression)
		if err != nil {
			var fault *Error
			if !errors.As(err, &fault) {
				t.Fatalf("not a fault: %v", err)
			}
			if fault.Offset < 0 || fault.Offset > len(expression) || fault.Column < 1 || fault.Text == "" {
				t.Fatalf("%q: a fault outside: %+v", expression, fault)
			}
			return
		}
		if len(a) > 1000 || len(tag) > 1000 {
			return
		}
		v := viewOf(t, map[string]string{"a": a, "b": tag, tagName: tag})
		got := e.Match(&v)
		again, err := Compile(e.String())
		if err != nil || again.Match(&v) != got {
			t.Fatalf("%q: a second time: %v", expression, err)
		}
	})
}

// FuzzParseNumber: whatever is a number is ordered.
func FuzzParseNumber(f *testing.F) {
	for _, s := range []string{"3", "-3.5e+7", "0x10", "NaN", ".", "e", "+", "9223372036854775808", "1e999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, ok := parseNumber([]byte(s))
		if !ok {
			return
		}
		if n.compare(n) != 0 || n.negate().negate().compare(n) != 0 {
			t.Fatalf("%q: %+v", s, n)
		}
	})
}
