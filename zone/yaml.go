package zone

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// MaxFileBytes bounds a topology file, and with it the memory that reading one
// takes (about 60 times its size). 10,000 zones with 20,000 nodes and 100,000
// shards need about 4 MiB.
const MaxFileBytes = 16 << 20

// value is a YAML node together with the path that leads to it.
type value struct {
	node *yaml.Node
	path string
}

func (v value) at() place { return place{line: v.node.Line, column: v.node.Column, path: v.path} }

func (v value) isNull() bool { return v.node.Kind == yaml.ScalarNode && v.node.Tag == "!!null" }

// describe says what the value is, for a reader who expected something else.
func (v value) describe() string {
	switch v.node.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	if v.isNull() {
		return "empty"
	}
	return strconv.Quote(clip(v.node.Value))
}

// clip shortens outside text that goes into a message.
func clip(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}

// parseYAML returns the root of the only document in data; ok is false when a
// problem was reported.
func parseYAML(data []byte, p *problems) (root value, ok bool) {
	if len(data) > MaxFileBytes {
		p.add(place{}, fmt.Sprintf("the file has %d bytes", len(data)),
			fmt.Sprintf("a topology file has at most %d", MaxFileBytes))
		return value{}, false
	}
	if !checkText(data, p) {
		return value{}, false
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	err := decodeNode(dec, &doc)
	if errors.Is(err, io.EOF) || err == nil && (len(doc.Content) == 0 || isEmptyDocument(&doc)) {
		p.add(place{line: 1, column: 1}, "the file holds no topology",
			"it begins with deployment, epoch, cities and topics")
		return value{}, false
	}
	if err == nil {
		if err = decodeNode(dec, &next); err == nil {
			p.add(place{line: next.Line, column: next.Column}, "the file holds a second document",
				"one file holds one topology; remove the --- line and what follows")
			return value{}, false
		}
	}
	if !errors.Is(err, io.EOF) && err != nil {
		addSyntax(data, err, p)
		return value{}, false
	}
	root = value{node: doc.Content[0]}
	return root, checkPlain(root.node, p)
}

func isEmptyDocument(doc *yaml.Node) bool {
	c := doc.Content[0]
	return c.Kind == yaml.ScalarNode && c.Tag == "!!null"
}

// errParser stands for a panic in the YAML library.
var errParser = errors.New("yaml: the text confuses the parser")

// decodeNode reads one document. The library is not ours and reads outside
// input, so a panic in it becomes a fault of the file.
func decodeNode(dec *yaml.Decoder, n *yaml.Node) (err error) {
	defer func() {
		if recover() != nil {
			err = errParser
		}
	}()
	return dec.Decode(n)
}

// checkText refuses what is not UTF-8 text, with the exact place, which the
// YAML library does not tell.
func checkText(data []byte, p *problems) bool {
	line, column := 1, 1
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			p.add(place{line: line, column: column}, fmt.Sprintf("byte %#02x is not UTF-8", data[i]),
				"save the file as UTF-8")
			return false
		case r == '\r' && i+1 < len(data) && data[i+1] != '\n', r == 0x85, r == 0x2028, r == 0x2029:
			// YAML would count a line here, and editors would not.
			p.add(place{line: line, column: column}, fmt.Sprintf("line end %U", r), "end lines with LF, or with CR and LF")
			return false
		case r < ' ' && r != '\t' && r != '\n' && r != '\r', r >= 0x7f && r < 0xa0:
			p.add(place{line: line, column: column}, fmt.Sprintf("control character %U", r), "remove it")
			return false
		}
		column++
		if r == '\n' {
			line, column = line+1, 1
		}
		i += n
	}
	return true
}

// checkPlain refuses anchors and aliases: a topology is read by people at
// night, and an alias may also unfold to any size.
func checkPlain(n *yaml.Node, p *problems) bool {
	ok := true
	if n.Anchor != "" || n.Kind == yaml.AliasNode {
		p.add(place{line: n.Line, column: n.Column}, "anchors and aliases are not used in topology files",
			"write the values out")
		return false
	}
	for _, c := range n.Content {
		ok = checkPlain(c, p) && ok
	}
	return ok
}

var (
	yamlLine   = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)
	yamlAnchor = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)
)

// addSyntax reports an error of the YAML library with the line that an
// operator has to look at. The library counts scanner errors from 1 and parser
// errors from 0, and names the start of the surrounding block for some.
func addSyntax(data []byte, err error, p *problems) {
	m := yamlLine.FindStringSubmatch(err.Error())
	if m == nil {
		p.add(place{line: 1, column: 1}, err.Error(), "")
		return
	}
	line, _ := strconv.Atoi(m[1])
	msg := m[2]
	lines := bytes.SplitAfter(data, []byte("\n"))
	switch {
	case strings.HasPrefix(msg, "did not find expected ',' or "):
		line++
	case strings.Contains(msg, "tab character"):
		line = firstIndentedByTab(lines, line)
	case strings.HasPrefix(msg, "did not find expected"):
		line = firstFailing(lines, line, msg)
	case yamlAnchor.MatchString(msg):
		mark := []byte("*" + yamlAnchor.FindStringSubmatch(msg)[1])
		for i, l := range lines {
			if bytes.Contains(l, mark) {
				line = i + 1
				break
			}
		}
	}
	line = min(max(line, 1), len(lines))
	text := lines[line-1]
	column := len(text) - len(bytes.TrimLeft(text, " ")) + 1
	p.add(place{line: line, column: column}, "this is not YAML: "+msg, syntaxFix(msg))
}

// firstFailing returns the number of the first line, after the given count of
// good ones, with which the text so far fails with the message.
func firstFailing(lines [][]byte, good int, msg string) int {
	lo, hi := good, len(lines) // the text fails with hi lines
	for lo+1 < hi {
		mid := (lo + hi) / 2
		var n yaml.Node
		err := decodeNode(yaml.NewDecoder(bytes.NewReader(bytes.Join(lines[:mid], nil))), &n)
		if err != nil && strings.HasSuffix(err.Error(), msg) {
			hi = mid
		} else {
			lo = mid
		}
	}
	return hi
}

// firstIndentedByTab returns the number of the first such line from the given
// one on.
func firstIndentedByTab(lines [][]byte, from int) int {
	for i := max(from, 1); i <= len(lines); i++ {
		text := lines[i-1]
		if bytes.IndexByte(text[:len(text)-len(bytes.TrimLeft(text, " \t"))], '\t') >= 0 {
			return i
		}
	}
	return from
}

func syntaxFix(msg string) string {
	switch {
	case strings.Contains(msg, "tab character"):
		return "indent with spaces"
	case strings.Contains(msg, "expected key"), strings.Contains(msg, "'-' indicator"):
		return "check the indentation: keys of one mapping and entries of one list stand in one column"
	case strings.Contains(msg, "',' or ']'"), strings.Contains(msg, "',' or '}'"):
		return "check the commas and the closing bracket of the list or mapping that begins here"
	case strings.Contains(msg, "mapping values are not allowed"):
		return "check the indentation; within a line, put a mapping in braces, as in {broadcast: city}, and a value with a colon in quotes"
	case strings.Contains(msg, "expected ':'"):
		return "a key ends with a colon and a blank"
	case strings.Contains(msg, "unexpected end of stream"):
		return "close the quotation mark"
	case strings.Contains(msg, "cannot start any token"):
		return "put the value in quotes"
	}
	return "check the text at and before this line"
}
