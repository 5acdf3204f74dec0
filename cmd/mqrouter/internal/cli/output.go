package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// table collects rows and prints them in columns.
type table struct {
	head []string
	rows [][]string
}

func newTable(head ...string) *table { return &table{head: head} }

func (t *table) row(cells ...any) {
	r := make([]string, len(cells))
	for i, c := range cells {
		// Errors of several causes have several lines, which would break the columns.
		r[i] = strings.Join(strings.FieldsFunc(fmt.Sprint(c), func(r rune) bool { return r == '\n' || r == '\r' || r == '\t' }), "; ")
		if r[i] == "" {
			r[i] = "-"
		}
	}
	t.rows = append(t.rows, r)
}

func (t *table) print(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, strings.Join(t.head, "\t"))
	for _, r := range t.rows {
		fmt.Fprintln(tw, strings.Join(r, "\t"))
	}
	tw.Flush() //nolint:errcheck // the terminal went away: nothing is left to tell
}

// show prints v as JSON when asked for, else calls text.
func (e *env) show(v any, text func(io.Writer)) error {
	if e.format == "json" {
		enc := e.json()
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	text(e.out)
	return nil
}

// json returns an encoder that leaves <, > and & readable.
func (e *env) json() *json.Encoder {
	enc := json.NewEncoder(e.out)
	enc.SetEscapeHTML(false)
	return enc
}

// count prints a number of things.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// line prints v as one line of JSON when asked for, else the text.
func (e *env) line(v any, text string) error {
	if e.format == "json" {
		return e.json().Encode(v)
	}
	_, err := fmt.Fprintln(e.out, text)
	return err
}

// age prints a duration the way a person reads it.
func age(d time.Duration) string {
	switch {
	case d <= 0:
		return "-"
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(100 * time.Microsecond).String()
	case d < time.Minute:
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// size prints bytes the way a person reads them.
func size(n uint64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	div, exp := uint64(unit), 0
	for m := n / unit; m >= unit; m /= unit {
		div *= unit
		exp++
	}
	return fmt.Sprintf("%.1f %ciB", float64(n)/float64(div), "KMGTPE"[exp])
}
