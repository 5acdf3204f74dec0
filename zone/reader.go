package zone

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// field is one key of a mapping in the file.
type field struct {
	key  string
	need bool
	read func(value)
}

// reader turns YAML values into Go values and collects what is wrong.
type reader struct{ problems }

// object reads a mapping: each key by its field, unknown and repeated keys and
// missing needed ones are problems. what names the thing in messages.
func (r *reader) object(v value, what string, fields []field) {
	if v.node.Kind != yaml.MappingNode {
		r.add(v.at(), fmt.Sprintf("%s is %s", what, v.describe()), "a mapping is needed, with the keys "+keyList(fields))
		return
	}
	seen := make(map[string]int, len(fields))
	meant := "" // a needed key that is there, misspelt
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		key := value{node: v.node.Content[i], path: v.path}
		child := value{node: v.node.Content[i+1], path: join(v.path, key.node.Value)}
		name := key.node.Value
		f := findField(fields, name)
		if f == nil || key.node.Kind != yaml.ScalarNode {
			if near := r.unknownKey(key, what, fields); near != "" {
				meant = near
			}
			continue
		}
		if line, twice := seen[name]; twice {
			r.add(place{line: key.node.Line, column: key.node.Column, path: child.path},
				fmt.Sprintf("%s has the key %s twice, first at line %d", what, name, line), "remove one")
			continue
		}
		seen[name] = key.node.Line
		if child.isNull() {
			r.add(place{line: key.node.Line, column: key.node.Column, path: child.path},
				fmt.Sprintf("%s of %s has no value", name, what), "give it one or remove the key")
			continue
		}
		f.read(child)
	}
	for _, f := range fields {
		if _, ok := seen[f.key]; f.need && !ok && f.key != meant {
			r.add(v.at(), fmt.Sprintf("%s has no %s", what, f.key), "add the key "+f.key)
		}
	}
}

func findField(fields []field, key string) *field {
	for i := range fields {
		if fields[i].key == key {
			return &fields[i]
		}
	}
	return nil
}

func keyList(fields []field) string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.key
	}
	return strings.Join(names, ", ")
}

// unknownKey reports a key and returns the one that was likely meant, or "".
func (r *reader) unknownKey(key value, what string, fields []field) (near string) {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.key
	}
	fix := "the keys are " + keyList(fields)
	if near = nearest(key.node.Value, names); near != "" {
		fix = "did you mean " + near + "?"
	}
	at := key.at()
	at.path = join(key.path, clip(key.node.Value))
	r.add(at, fmt.Sprintf("%s has no key %s", what, key.describe()), fix)
	return near
}

// list calls read for each element of a list.
func (r *reader) list(v value, what string, read func(value)) {
	if v.node.Kind != yaml.SequenceNode {
		fix := "a list is needed"
		if v.node.Kind == yaml.ScalarNode {
			fix += ", such as [" + clip(v.node.Value) + "]"
		}
		r.add(v.at(), fmt.Sprintf("%s is %s", what, v.describe()), fix)
		return
	}
	for i, n := range v.node.Content {
		child := value{node: n, path: v.path + "[" + strconv.Itoa(i) + "]"}
		if child.isNull() {
			r.add(child.at(), fmt.Sprintf("%s has an empty entry", what), "remove it")
			continue
		}
		read(child)
	}
}

// text returns a scalar's text.
func (r *reader) text(v value, what string) (string, bool) {
	if v.node.Kind != yaml.ScalarNode || v.isNull() {
		r.add(v.at(), fmt.Sprintf("%s is %s", what, v.describe()), "one plain value is needed")
		return "", false
	}
	return v.node.Value, true
}

// ref is a name in the file that has to exist elsewhere in it.
type ref struct {
	name string
	at   place
}

func (r *reader) ref(v value, what string) ref {
	s, _ := r.text(v, what)
	return ref{name: s, at: v.at()}
}

func (r *reader) refs(v value, what string) []ref {
	var out []ref
	r.list(v, what, func(e value) {
		if s, ok := r.text(e, "an entry of "+what); ok {
			out = append(out, ref{name: s, at: e.at()})
		}
	})
	return out
}

// integer reads a whole number between lo and hi into to, which keeps its
// value when there is none.
func integer[T ~int | ~uint32 | ~uint64](r *reader, v value, what string, lo, hi uint64, to *T) {
	s, ok := r.text(v, what)
	if !ok {
		return
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n < lo || n > hi {
		r.add(v.at(), fmt.Sprintf("%s is %s", what, v.describe()),
			fmt.Sprintf("a whole number from %d to %d is needed", lo, hi))
		return
	}
	*to = T(n)
}

// boolean reads true or false into to, and reports whether it was either.
func (r *reader) boolean(v value, what string, to *bool) bool {
	s, ok := r.text(v, what)
	switch {
	case !ok:
	case s == "true", s == "false":
		*to = s == "true"
		return true
	default:
		r.add(v.at(), fmt.Sprintf("%s is %s", what, v.describe()), "true or false is needed")
	}
	return false
}

// duration reads a time span between lo and hi into to, which keeps its value
// when there is none.
func (r *reader) duration(v value, what string, lo, hi time.Duration, to *time.Duration) {
	s, ok := r.text(v, what)
	if !ok {
		return
	}
	d, err := parseDuration(s)
	switch {
	case err != nil:
		r.add(v.at(), fmt.Sprintf("%s is %s", what, v.describe()), "a time span such as 500ms, 30s, 15m, 72h or 7d is needed")
	case d < lo || d > hi:
		r.add(v.at(), fmt.Sprintf("%s is %s", what, v.describe()),
			fmt.Sprintf("it is between %s and %s", FormatDuration(lo), FormatDuration(hi)))
	default:
		*to = d
	}
}

// size reads a number of bytes between lo and hi into to, which keeps its
// value when there is none.
func size[T ~int | ~int64](r *reader, v value, what string, lo, hi int64, to *T) {
	s, ok := r.text(v, what)
	if !ok {
		return
	}
	n, err := ParseSize(s)
	switch {
	case err != nil:
		r.add(v.at(), fmt.Sprintf("%s is %s", what, v.describe()), err.Error())
	case n < lo || n > hi:
		r.add(v.at(), fmt.Sprintf("%s is %s", what, v.describe()),
			fmt.Sprintf("it is between %s and %s", formatSize(lo), formatSize(hi)))
	default:
		*to = T(n)
	}
}

// choose reads one of the words; it returns the zero value when it is none.
func choose[T comparable](r *reader, v value, what string, words []word[T]) (zero T) {
	s, ok := r.text(v, what)
	if !ok {
		return zero
	}
	names := make([]string, len(words))
	for i, w := range words {
		if w.text == s {
			return w.value
		}
		names[i] = w.text
	}
	fix := "it is one of " + strings.Join(names, ", ")
	if near := nearest(s, names); near != "" {
		fix = "did you mean " + near + "? " + fix
	}
	r.add(v.at(), fmt.Sprintf("%s is %s", what, v.describe()), fix)
	return zero
}

// span is a closed range of shard or slot numbers.
type span struct {
	lo, hi uint32
	at     place
}

// spans reads ranges such as 0-511, "0-4, 7" or [0-4, 7]. Numbers lie below
// limit, and the ranges together hold at most that many. ok is false when some
// could not be read.
func (r *reader) spans(v value, what string, limit uint32) (out []span, ok bool) {
	total := uint64(0)
	before := len(r.problems.list) + r.omitted
	one := func(e value) {
		s, ok := r.text(e, what)
		if !ok {
			return
		}
		for part := range strings.SplitSeq(s, ",") {
			sp, ok := parseSpan(strings.TrimSpace(part), limit)
			if !ok {
				r.add(e.at(), fmt.Sprintf("%s is %s", what, e.describe()),
					fmt.Sprintf("ranges such as 0-9 or 7 are needed, with numbers from 0 to %d", max(limit, 1)-1))
				return
			}
			if total += uint64(sp.hi-sp.lo) + 1; total > uint64(limit) {
				r.add(e.at(), fmt.Sprintf("%s names more numbers than the %d that there are", what, limit), "name each once")
				return
			}
			sp.at = e.at()
			out = append(out, sp)
		}
	}
	if v.node.Kind == yaml.SequenceNode {
		r.list(v, what, one)
	} else {
		one(v)
	}
	return out, len(r.problems.list)+r.omitted == before
}

func parseSpan(s string, limit uint32) (span, bool) {
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	lo, err1 := strconv.ParseUint(strings.TrimSpace(first), 10, 32)
	hi, err2 := strconv.ParseUint(strings.TrimSpace(last), 10, 32)
	if err1 != nil || err2 != nil || lo > hi || hi >= uint64(limit) {
		return span{}, false
	}
	return span{lo: uint32(lo), hi: uint32(hi)}, true
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
