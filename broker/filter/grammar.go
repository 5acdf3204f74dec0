package filter

import (
	"strings"

	"github.com/alecthomas/participle/v2"
	"github.com/alecthomas/participle/v2/lexer"
)

// The grammar; the package comment has it as a whole. Each struct is a rule, its
// tags say what it reads.
type (
	orRule struct {
		Terms []*andRule `parser:"@@ ( 'OR' @@ )*"`
	}
	andRule struct {
		Terms []*equalityRule `parser:"@@ ( 'AND' @@ )*"`
	}
	equalityRule struct {
		Left  *comparisonRule `parser:"@@"`
		Tails []*equalityTail `parser:"@@*"`
	}
	equalityTail struct {
		Pos   lexer.Position
		Op    string          `parser:"( @( '=' | '<>' )"`
		Right *comparisonRule `parser:"  @@"`
		Not   bool            `parser:"| 'IS' @'NOT'? 'NULL' )"`
	}
	comparisonRule struct {
		Left  *unaryRule        `parser:"@@"`
		Tails []*comparisonTail `parser:"@@*"`
	}
	comparisonTail struct {
		Pos    lexer.Position
		Op     string     `parser:"( @( '<=' | '>=' | '<' | '>' )"`
		Right  *unaryRule `parser:"  @@"`
		Not    bool       `parser:"| @'NOT'?"`
		Search string     `parser:"  ( @( 'CONTAINS' | 'STARTSWITH' | 'ENDSWITH' )"`
		Text   string     `parser:"    @Text"`
		Low    *unaryRule `parser:"  | 'BETWEEN' @@"`
		High   *unaryRule `parser:"    'AND' @@"`
		In     []string   `parser:"  | 'IN' '(' @Text ( ',' @Text )* ')' ) )"`
	}
	unaryRule struct {
		Pos     lexer.Position
		Signs   []string     `parser:"@( '+' | '-' | 'NOT' )*"`
		Primary *primaryRule `parser:"@@"`
	}
	primaryRule struct {
		Pos     lexer.Position
		Integer *string `parser:"  @Integer"`
		Float   *string `parser:"| @Float"`
		Text    *string `parser:"| @Text"`
		Const   string  `parser:"| @( 'TRUE' | 'FALSE' | 'NULL' )"`
		Name    string  `parser:"| @Name"`
		Group   *orRule `parser:"| '(' @@ ')'"`
	}
)

// words cannot be names of properties.
var words = func() map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields("NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH") {
		set[w] = true
	}
	return set
}()

var tokens = lexer.MustSimple([]lexer.SimpleRule{
	{Name: "Space", Pattern: `[ \t\n\r\f]+|--[^\n\r]*|/\*[^*]*\*+(?:[^*/][^*]*\*+)*/`},
	{Name: "Float", Pattern: `(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+`},
	{Name: "Integer", Pattern: `(?:0|[1-9][0-9]*[lL]?)`},
	{Name: "Text", Pattern: `'(?:[^']|'')*'`},
	{Name: "Name", Pattern: `[a-zA-Z_$][a-zA-Z0-9_$]*`},
	{Name: "Sign", Pattern: `<>|>=|<=|[=<>(),+-]`},
	{Name: "Word", Pattern: `NOT`}, // never read as such: names that are words are given it
})

var (
	nameToken  = tokens.Symbols()["Name"]
	wordToken  = tokens.Symbols()["Word"]
	spaceToken = tokens.Symbols()["Space"]
)

var parser = participle.MustBuild[orRule](
	participle.Lexer(tokens),
	participle.Elide("Space"),
	participle.Map(classify, "Name"),
)

// classify makes a word of a name that is one.
func classify(t lexer.Token) (lexer.Token, error) {
	if upper := strings.ToUpper(t.Value); words[upper] {
		t.Type, t.Value = wordToken, upper
	}
	return t, nil
}

// unquote returns what stands between the quotes.
func unquote(text string) string {
	return strings.ReplaceAll(text[1:len(text)-1], "''", "'")
}
