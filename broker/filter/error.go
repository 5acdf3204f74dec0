package filter

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/alecthomas/participle/v2"
	"github.com/alecthomas/participle/v2/lexer"
)

// Error says why an expression is none.
type Error struct {
	Offset int    // byte in the expression, from 0
	Column int    // character in the expression, from 1
	Text   string // what is wrong and what to do
}

// Error puts the place before the text.
func (e *Error) Error() string {
	return fmt.Sprintf("SQL filter, character %d: %s", e.Column, e.Text)
}

// faultAt makes an error at a byte of the expression.
func faultAt(expression string, offset int, format string, args ...any) *Error {
	offset = min(max(offset, 0), len(expression))
	return &Error{Offset: offset, Column: utf8.RuneCountInString(expression[:offset]) + 1, Text: fmt.Sprintf(format, args...)}
}

// advice is for what people write that comes from other languages.
var advice = map[string]string{
	"LIKE": "LIKE is not supported: use CONTAINS, STARTSWITH or ENDSWITH",
	"!":    "write <> for unequal and NOT (...) for the opposite",
	"==":   "write = for equal",
	"&":    "write AND",
	"|":    "write OR",
	"*":    "arithmetic is not supported",
	"/":    "arithmetic is not supported",
	"%":    "arithmetic is not supported",
	`"`:    "text stands in single quotes",
	"'":    "the text that begins here has no closing quote; a quote inside a text is doubled",
	".":    "names of properties have letters, digits, _ and $",
	"+":    "arithmetic is not supported",
	"-":    "arithmetic is not supported, and names of properties have letters, digits, _ and $",
}

// maxShown is how much of an expression an error repeats; bytes.
const maxShown = 32

// parseFault translates an error of the lexer or the parser.
func parseFault(expression string, err error) *Error {
	var at participle.Error
	if !errors.As(err, &at) {
		return faultAt(expression, 0, "it cannot be read: %v", err)
	}
	offset := min(at.Position().Offset, len(expression))
	rest := expression[offset:]
	if rest == "" {
		return faultAt(expression, offset, "the expression ends where something is missing")
	}
	switch {
	case strings.HasPrefix(rest, "/*"):
		return faultAt(expression, offset, "the comment that begins here has no end: write */ behind it")
	case strings.HasPrefix(rest, "*/"):
		return faultAt(expression, offset, "this ends a comment that did not begin")
	}
	word := firstToken(rest)
	if text, ok := advice[strings.ToUpper(word)]; ok {
		if strings.HasPrefix(rest, "==") {
			text = advice["=="]
		}
		return faultAt(expression, offset, "%s", text)
	}
	if word == "=" && offset > 0 && expression[offset-1] == '=' {
		return faultAt(expression, offset, "%s", advice["=="])
	}
	return faultAt(expression, offset, "%q is not expected here: conditions compare a property with a value and are joined by AND and OR", word)
}

// firstToken returns the token, or character, that a text begins with, cut to a
// length that can be shown.
func firstToken(rest string) string {
	word := rest
	if l, err := tokens.LexString("", rest); err == nil {
		if t, err := l.Next(); err == nil && t.Type != lexer.EOF {
			word = t.Value
		} else {
			_, n := utf8.DecodeRuneInString(rest)
			word = rest[:n]
		}
	}
	if len(word) > maxShown {
		word = strings.ToValidUTF8(word[:maxShown], "")
	}
	return word
}
