// Package filter compiles and evaluates SQL92 filter expressions as RocketMQ 5
// has them: conditions over the user properties of a message, and over its tag
// under the name TAGS.
//
// It is pure: no clock, no goroutines, no state. A compiled [Expr] is immutable
// and safe for concurrent use; evaluating it does not allocate, but for numbers
// that are longer than any sensible one.
//
// # Language
//
//	condition  = and { OR and }
//	and        = equality { AND equality }
//	equality   = comparison { ("=" | "<>") comparison | IS [NOT] NULL }
//	comparison = unary { (">" | ">=" | "<" | "<=") unary
//	           | [NOT] BETWEEN unary AND unary
//	           | [NOT] IN "(" text { "," text } ")"
//	           | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) text }
//	unary      = { "+" | "-" | NOT } primary
//	primary    = number | text | TRUE | FALSE | NULL | property | "(" condition ")"
//
// Keywords are read in any case; names of properties are looked up as written and
// have letters, digits, _ and $. Text stands in single quotes, a quote in it is
// doubled. Numbers are decimal: 64-bit integers, with or without an L behind, or
// floating-point. Comments are -- to the end of the line and /* */. There is no
// LIKE and no arithmetic but signs, as in RocketMQ.
//
// # Meaning
//
// All properties are text. Logic has three values, and a message matches only when
// the whole is true; a missing property makes a comparison unknown. What RocketMQ
// does beyond the textbook is kept:
//
//   - Text that meets a number is read as a number. If it is none, the comparison
//     fails, and with it the whole expression: the message does not match,
//     whatever NOT or OR stand around it, unless what stands before has decided.
//   - Two properties under >, >=, < or <= are compared as numbers, under = as text.
//   - Text that meets TRUE or FALSE is true when it spells "true" in any case, else
//     false.
//   - A = B is true when both are missing, unknown when only A is, false when only
//     B is.
//   - CONTAINS, STARTSWITH, ENDSWITH and their NOT forms are false for a missing
//     property, and for an empty text to look for.
//   - A property by itself is no condition that can be true.
//
// Held against rocketmq-filter 5.5.0 row by row of the package's table of tests.
// Different from it, on purpose:
//
//   - A number is compared by its value: the value 3.5 under "a > 3" is greater,
//     where RocketMQ reads it in the type of the constant, fails and drops the
//     message. So is 3000000000, and TRUE = a is read like a = TRUE.
//   - Text behind a complete expression is an error; RocketMQ ignores it.
//   - NOT in front of a comparison without parentheses is an error: NOT a = 3 means
//     (NOT a) = 3 in RocketMQ, which is never true, and NOT (a = 3) in SQL.
//   - What can never be true is an error when the expression is compiled, such as a
//     number in place of a condition.
//
// # Bounds
//
// An expression has at most [MaxLength] bytes, maxTokens tokens, maxDepth levels of
// parentheses and signs, maxNames different properties and maxSearches text
// searches; compiling is linear in its length, evaluating in the size of the
// message's properties times the searches.
//
// The parser is built by github.com/alecthomas/participle from the structs of
// grammar.go: the grammar stands there once, positions and errors come with it, and
// there is no generated code to keep in step. Depth is counted before it begins,
// since it descends recursively.
package filter
