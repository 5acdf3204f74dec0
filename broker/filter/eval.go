package filter

import (
	"bytes"
	"strings"
)

// kind is the type of a value while an expression is evaluated.
type kind uint8

const (
	unknown kind = iota // NULL: a missing property, or what follows from one
	failed              // text that is no number met one: nothing can come good any more
	boolean
	text
	numeric
)

// value is an operand or a result.
type value struct {
	kind kind
	yes  bool   // boolean
	text []byte // text; points into the record or the expression
	num  number // numeric
}

var (
	isTrue  = value{kind: boolean, yes: true}
	isFalse = value{kind: boolean}
)

func truth(yes bool) value { return value{kind: boolean, yes: yes} }

// properties are what an expression asks for of one message, by the number of the
// name; nil is missing.
type properties [maxNames][]byte

// node is a part of a compiled expression. eval recurses no deeper than the
// expression has tokens.
type node interface {
	eval(p *properties) value
}

type (
	constant value
	property int // number of the name
	minus    struct{ of node }
	not      struct{ of node }
	cast     struct{ of property } // a property as a condition
	all      []node                // AND
	some     []node                // OR
	equal    struct{ left, right node }
	isNull   struct{ of node }
	order    struct { // <, <=, >, >=
		left, right node
		when        [3]bool // what holds when left is less, equal, greater
	}
	within struct { // IN
		of   property
		not  bool
		list map[string]struct{}
	}
	search struct { // CONTAINS, STARTSWITH, ENDSWITH
		of   node
		not  bool
		how  func(s, part []byte) bool
		part []byte
	}
)

func (c constant) eval(*properties) value { return value(c) }

func (n property) eval(p *properties) value {
	if b := p[n]; b != nil {
		return value{kind: text, text: b}
	}
	return value{}
}

func (n minus) eval(p *properties) value {
	v := n.of.eval(p)
	switch v.kind {
	case failed:
		return v
	case numeric:
		return value{kind: numeric, num: v.num.negate()}
	}
	return value{}
}

func (n not) eval(p *properties) value {
	v := n.of.eval(p)
	if v.kind == boolean {
		v.yes = !v.yes
	}
	return v
}

func (n cast) eval(p *properties) value {
	if p[n.of] == nil {
		return value{}
	}
	return isFalse
}

func (n all) eval(p *properties) value {
	result := isTrue
	for _, term := range n {
		switch v := term.eval(p); {
		case v.kind == failed || v.kind == boolean && !v.yes:
			return v
		case v.kind == unknown:
			result = value{}
		}
	}
	return result
}

func (n some) eval(p *properties) value {
	result := isFalse
	for _, term := range n {
		switch v := term.eval(p); {
		case v.kind == failed || v.kind == boolean && v.yes:
			return v
		case v.kind == unknown:
			result = value{}
		}
	}
	return result
}

func (n isNull) eval(p *properties) value {
	v := n.of.eval(p)
	if v.kind == failed {
		return v
	}
	return truth(v.kind == unknown)
}

func (n *equal) eval(p *properties) value {
	l, r := n.left.eval(p), n.right.eval(p)
	switch {
	case l.kind == failed || r.kind == failed:
		return value{kind: failed}
	case l.kind == unknown && r.kind == unknown:
		return isTrue
	case l.kind == unknown:
		return value{}
	case r.kind == unknown:
		return isFalse
	case l.kind == text && r.kind == text:
		return truth(bytes.Equal(l.text, r.text))
	case l.kind == boolean || r.kind == boolean:
		return sameTruth(l, r)
	}
	c, ok := compareNumbers(l, r)
	if !ok {
		return value{kind: failed}
	}
	return truth(c == 0)
}

var spelledTrue = []byte("true")

// sameTruth compares with a boolean: text is read as one, a number never equals one.
func sameTruth(l, r value) value {
	for _, v := range []*value{&l, &r} {
		if v.kind == text {
			*v = truth(bytes.EqualFold(v.text, spelledTrue))
		}
	}
	return truth(l.kind == boolean && r.kind == boolean && l.yes == r.yes)
}

// compareNumbers reads both as numbers.
func compareNumbers(l, r value) (int, bool) {
	for _, v := range []*value{&l, &r} {
		if v.kind == numeric {
			continue
		}
		var ok bool
		if v.num, ok = parseNumber(v.text); !ok {
			return 0, false
		}
	}
	return l.num.compare(r.num), true
}

func (n *order) eval(p *properties) value {
	l := n.left.eval(p)
	if l.kind == unknown || l.kind == failed {
		return l
	}
	r := n.right.eval(p)
	if r.kind == unknown || r.kind == failed {
		return r
	}
	c, ok := compareNumbers(l, r)
	if !ok {
		return value{kind: failed}
	}
	return truth(n.when[c+1])
}

func (n *within) eval(p *properties) value {
	b := p[n.of]
	if b == nil {
		return value{}
	}
	_, in := n.list[string(b)]
	return truth(in != n.not)
}

func (n *search) eval(p *properties) value {
	v := n.of.eval(p)
	switch {
	case v.kind == failed:
		return v
	case v.kind != text || len(n.part) == 0:
		return isFalse
	}
	return truth(n.how(v.text, n.part) != n.not)
}

// searches are the ways to look for text.
var searches = map[string]func(s, part []byte) bool{
	"CONTAINS": bytes.Contains, "STARTSWITH": bytes.HasPrefix, "ENDSWITH": bytes.HasSuffix,
}

// orders say what the comparisons hold for: less, equal, greater.
var orders = map[string][3]bool{
	"<": {true, false, false}, "<=": {true, true, false}, ">": {false, false, true}, ">=": {false, true, true},
}

// shown puts a name into an error.
func shown(s string) string {
	if len(s) > maxShown {
		s = strings.ToValidUTF8(s[:maxShown], "") + "..."
	}
	return s
}
