package filter

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/alecthomas/participle/v2/lexer"

	"github.com/mqrouter/mqrouter/replication/record"
)

// Bounds of an expression; the package comment says why each is there.
const (
	MaxLength   = 4 << 10 // bytes, as many as a tag filter may have
	maxTokens   = 1024
	maxDepth    = 32 // parentheses, and signs and NOTs in a row
	maxNames    = 32 // different properties
	maxSearches = 32 // CONTAINS, STARTSWITH and ENDSWITH
)

// tagName stands for the message's tag.
const tagName = "TAGS"

// Expr is a compiled expression: immutable, and safe for concurrent use.
type Expr struct {
	source string
	root   node
	names  []string // of properties, by number
	tag    int      // number of TAGS; -1 = it is not asked for
}

// Compile reads an expression. The error is an *Error that says where and what to
// do.
func Compile(expression string) (*Expr, error) {
	if strings.TrimSpace(expression) == "" {
		return nil, faultAt(expression, 0, "the expression is empty: write a condition such as a > 5 AND TAGS = 'x'")
	}
	if len(expression) > MaxLength {
		return nil, faultAt(expression, MaxLength, "the expression has %d bytes, the limit is %d", len(expression), MaxLength)
	}
	if err := measure(expression); err != nil {
		return nil, err
	}
	tree, err := parser.ParseString("", expression)
	if err != nil {
		return nil, parseFault(expression, err)
	}
	c := compiler{source: expression, tag: -1}
	root := c.condition(c.or(tree))
	if c.err != nil {
		return nil, c.err
	}
	return &Expr{source: expression, root: root.node, names: c.names, tag: c.tag}, nil
}

// measure bounds tokens and depth before the parser descends.
func measure(expression string) error {
	l, err := tokens.LexString("", expression)
	if err != nil {
		return parseFault(expression, err)
	}
	open, row := 0, 0
	for n := 0; ; {
		t, err := l.Next()
		if err != nil {
			return parseFault(expression, err)
		}
		switch {
		case t.Type == lexer.EOF:
			return nil
		case t.Type == spaceToken:
			continue
		case t.Value == "(":
			open++
		case t.Value == ")":
			open = max(open-1, 0)
		case t.Value == "+" || t.Value == "-" || t.Type == nameToken && strings.EqualFold(t.Value, "NOT"):
			row++
		default:
			row = 0
		}
		if open+row > maxDepth {
			return faultAt(expression, t.Pos.Offset, "parentheses and signs are nested deeper than %d", maxDepth)
		}
		if n++; n > maxTokens {
			return faultAt(expression, t.Pos.Offset, "the expression has more than %d words and signs", maxTokens)
		}
	}
}

// scratches holds no state between uses; evaluating passes them through interfaces,
// so that they cannot live on the stack.
var scratches = sync.Pool{New: func() any { return new(properties) }}

// Match reports whether the message matches. It does not keep the view.
func (e *Expr) Match(v *record.View) bool {
	p := scratches.Get().(*properties)
	defer func() {
		clear(p[:len(e.names)])
		scratches.Put(p)
	}()
	if e.tag >= 0 {
		if tag := v.Tag(); len(tag) > 0 {
			p[e.tag] = tag
		}
	}
	v.Properties(func(key, val []byte) bool {
		for i, name := range e.names {
			if i != e.tag && string(key) == name {
				if p[i] = val; val == nil {
					p[i] = []byte{}
				}
			}
		}
		return true
	})
	result := e.root.eval(p)
	return result.kind == boolean && result.yes
}

// String returns the expression as it was compiled.
func (e *Expr) String() string { return e.source }

// Properties calls yield for the name of every property that is asked for, TAGS
// included, until it returns false.
func (e *Expr) Properties(yield func(name string) bool) {
	for _, name := range e.names {
		if !yield(name) {
			return
		}
	}
}

// part is a compiled part with what is known of it.
type part struct {
	node node
	at   int // byte in the expression
	form form
	kind kind // of a constant; 0 = NULL
}

// form says what a part can stand for.
type form uint8

const (
	aProperty form = iota
	aConstant
	aCondition // a comparison, or what AND, OR and NOT make
	aSigned    // a sign before a property
	aNegation  // NOT without parentheses around it
)

// compiler turns the tree into nodes. The first fault stays.
type compiler struct {
	source   string
	names    []string
	tag      int
	searches int
	err      error
}

func (c *compiler) fault(at int, format string, args ...any) part {
	if c.err == nil {
		c.err = faultAt(c.source, at, format, args...)
	}
	return part{node: constant(isFalse), at: at, form: aCondition}
}

// condition makes sure that a part can be true.
func (c *compiler) condition(p part) part {
	switch {
	case p.form == aProperty:
		n, ok := p.node.(property)
		if !ok {
			return c.fault(p.at, "a condition is missing here")
		}
		p.node, p.form = cast{n}, aCondition
	case p.form == aConstant && p.kind != boolean && p.kind != unknown, p.form == aSigned:
		return c.fault(p.at, "a number or a text is no condition: compare it with a property")
	}
	return p
}

func (c *compiler) or(r *orRule) part {
	terms := make([]part, len(r.Terms))
	for i, t := range r.Terms {
		terms[i] = c.and(t)
	}
	return c.join(terms, func(n []node) node { return some(n) })
}

func (c *compiler) and(r *andRule) part {
	terms := make([]part, len(r.Terms))
	for i, t := range r.Terms {
		terms[i] = c.equality(t)
	}
	return c.join(terms, func(n []node) node { return all(n) })
}

// join leaves a single term as it is.
func (c *compiler) join(terms []part, combine func([]node) node) part {
	if len(terms) == 1 {
		return terms[0]
	}
	var nodes []node
	for _, t := range terms {
		nodes = append(nodes, c.condition(t).node)
	}
	return part{node: combine(nodes), at: terms[0].at, form: aCondition}
}

func (c *compiler) equality(r *equalityRule) part {
	left := c.comparison(r.Left)
	for _, t := range r.Tails {
		at := t.Pos.Offset
		if left.form == aNegation {
			return c.fault(left.at, "NOT stands before a comparison: write NOT ( ... ) around it")
		}
		if t.Op == "" {
			n := node(isNull{left.node})
			if t.Not {
				n = not{n}
			}
			left = part{node: n, at: left.at, form: aCondition}
			continue
		}
		right := c.comparison(t.Right)
		c.comparable(left)
		c.comparable(right)
		if left.form == aConstant && right.form == aConstant && (left.kind == boolean) != (right.kind == boolean) {
			return c.fault(at, "TRUE and FALSE cannot be compared with a number or a text")
		}
		n := node(&equal{left.node, right.node})
		if t.Op == "<>" {
			n = not{n}
		}
		left = part{node: n, at: left.at, form: aCondition}
	}
	return left
}

// comparable refuses what = and <> cannot compare.
func (c *compiler) comparable(p part) {
	switch {
	case p.form == aConstant && p.kind == unknown:
		c.fault(p.at, "NULL cannot be compared: write IS NULL or IS NOT NULL")
	case p.form == aNegation:
		c.fault(p.at, "NOT stands inside a comparison: write NOT ( ... ) around the comparison")
	}
}

func (c *compiler) comparison(r *comparisonRule) part {
	left := c.unary(r.Left)
	for _, t := range r.Tails {
		if left.form == aNegation {
			return c.fault(left.at, "NOT stands before a comparison: write NOT ( ... ) around it")
		}
		at := left.at
		switch {
		case t.Op != "":
			left = c.order(left, t.Op, c.unary(t.Right))
		case t.Search != "":
			left = c.search(left, t)
		case t.Low != nil:
			left = c.between(left, t)
		default:
			left = c.in(left, t)
		}
		left.at = at
	}
	return left
}

// order compiles a comparison of numbers.
func (c *compiler) order(left part, op string, right part) part {
	c.ordered(left)
	c.ordered(right)
	return part{node: &order{left.node, right.node, orders[op]}, at: left.at, form: aCondition}
}

func (c *compiler) ordered(p part) {
	switch {
	case p.form == aConstant && p.kind != numeric:
		c.fault(p.at, "<, <=, >, >= and BETWEEN compare numbers only")
	case p.form == aCondition, p.form == aNegation:
		c.fault(p.at, "a condition cannot be compared by <, <=, >, >= or BETWEEN")
	}
}

func (c *compiler) between(left part, t *comparisonTail) part {
	low, high := c.unary(t.Low), c.unary(t.High)
	l, okLow := low.node.(constant)
	h, okHigh := high.node.(constant)
	if okLow && okHigh && l.kind == numeric && h.kind == numeric && l.num.compare(h.num) > 0 {
		return c.fault(low.at, "BETWEEN has its lower bound above its upper one: exchange them")
	}
	if t.Not {
		return part{node: some{c.order(left, "<", low).node, c.order(left, ">", high).node}, at: left.at, form: aCondition}
	}
	return part{node: all{c.order(left, ">=", low).node, c.order(left, "<=", high).node}, at: left.at, form: aCondition}
}

func (c *compiler) in(left part, t *comparisonTail) part {
	of, ok := left.node.(property)
	if !ok {
		return c.fault(left.at, "IN needs a property on its left")
	}
	list := make(map[string]struct{}, len(t.In))
	for _, s := range t.In {
		list[unquote(s)] = struct{}{}
	}
	return part{node: &within{of: of, not: t.Not, list: list}, at: left.at, form: aCondition}
}

func (c *compiler) search(left part, t *comparisonTail) part {
	if c.searches++; c.searches > maxSearches {
		return c.fault(t.Pos.Offset, "the expression has more than %d CONTAINS, STARTSWITH and ENDSWITH", maxSearches)
	}
	return part{node: &search{of: left.node, not: t.Not, how: searches[t.Search], part: []byte(unquote(t.Text))}, at: left.at, form: aCondition}
}

func (c *compiler) unary(r *unaryRule) part {
	p := c.primary(r.Primary)
	for _, sign := range slices.Backward(r.Signs) {
		switch sign {
		case "NOT":
			p = part{node: not{c.condition(p).node}, form: aNegation}
		case "-":
			p = c.minus(p)
		}
		p.at = r.Pos.Offset
	}
	return p
}

// minus negates a number at once, and anything else when it is evaluated.
func (c *compiler) minus(p part) part {
	if n, ok := p.node.(constant); ok && n.kind == numeric {
		n.num = n.num.negate()
		return part{node: n, form: aConstant, kind: numeric}
	}
	if p.form == aCondition || p.form == aNegation || p.form == aConstant {
		return c.fault(p.at, "a sign stands before a number or a property only")
	}
	return part{node: minus{p.node}, form: aSigned}
}

func (c *compiler) primary(r *primaryRule) part {
	at := r.Pos.Offset
	known := func(v value) part { return part{node: constant(v), at: at, form: aConstant, kind: v.kind} }
	switch {
	case r.Integer != nil:
		i, err := strconv.ParseInt(strings.TrimRight(*r.Integer, "lL"), 10, 64)
		if err != nil {
			return c.fault(at, "the number %s is above %d: write it with a decimal point", shown(*r.Integer), int64(math.MaxInt64))
		}
		return known(value{kind: numeric, num: integer(i)})
	case r.Float != nil:
		f, err := strconv.ParseFloat(*r.Float, 64)
		if err != nil {
			return c.fault(at, "the number %s is too large", shown(*r.Float))
		}
		return known(value{kind: numeric, num: number{f: f}})
	case r.Text != nil:
		return known(value{kind: text, text: []byte(unquote(*r.Text))})
	case r.Const == "NULL":
		return known(value{})
	case r.Const != "":
		return known(truth(r.Const == "TRUE"))
	case r.Name != "":
		return part{node: c.name(at, r.Name), at: at, form: aProperty}
	}
	p := c.or(r.Group)
	if p.form == aNegation {
		p.form = aCondition
	}
	p.at = at
	return p
}

// name gives a property its number.
func (c *compiler) name(at int, name string) property {
	i := slices.Index(c.names, name)
	if i < 0 {
		if i = len(c.names); i == maxNames {
			c.fault(at, "the expression asks for more than %d properties", maxNames)
			return 0
		}
		c.names = append(c.names, name)
		if name == tagName {
			c.tag = i
		}
	}
	return property(i)
}
