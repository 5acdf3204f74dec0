package zone

import (
	"fmt"
	"sort"
	"strings"
)

// Problem is one fault of a topology file.
type Problem struct {
	Line   int    // from 1; 0 when the fault has no place, such as an empty file
	Column int    // from 1; 0 when unknown
	Path   string // such as cities[0].zones[2].kind
	What   string // what is wrong
	Fix    string // what would be right
}

// ProblemsError holds every fault of a topology file, sorted by place.
type ProblemsError struct {
	Name     string // the file's name as given to Parse
	Problems []Problem
	Omitted  int // faults beyond those listed
}

// Error lists the faults, one a line: file:line:column: what; fix.
func (e *ProblemsError) Error() string {
	var b strings.Builder
	for i, p := range e.Problems {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(p.in(e.Name))
	}
	if e.Omitted > 0 {
		fmt.Fprintf(&b, "\n%s: and %d more", e.Name, e.Omitted)
	}
	return b.String()
}

func (p Problem) in(name string) string {
	place := name
	if p.Line > 0 {
		place = fmt.Sprintf("%s:%d:%d", name, p.Line, max(p.Column, 1))
	}
	if p.Fix == "" {
		return place + ": " + p.What
	}
	return place + ": " + p.What + "; " + p.Fix
}

// maxProblems bounds a report: a file of another format would otherwise
// produce one fault a line.
const maxProblems = 500

// problems collects faults.
type problems struct {
	list    []Problem
	omitted int
}

func (p *problems) add(at place, what, fix string) {
	if len(p.list) >= maxProblems {
		p.omitted++
		return
	}
	p.list = append(p.list, Problem{Line: at.line, Column: at.column, Path: at.path, What: what, Fix: fix})
}

// err returns nil when there is no fault.
func (p *problems) err(name string) error {
	if len(p.list) == 0 {
		return nil
	}
	sort.SliceStable(p.list, func(i, j int) bool {
		a, b := p.list[i], p.list[j]
		if a.Line != b.Line {
			return a.Line < b.Line
		}
		return a.Column < b.Column
	})
	return &ProblemsError{Name: name, Problems: p.list, Omitted: p.omitted}
}

// place is where something stands in the file.
type place struct {
	line, column int
	path         string
}
