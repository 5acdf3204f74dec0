package watch

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Style says what a frame is made for.
type Style struct {
	Width, Height int    // of the screen in characters; 0 = no bound, as for a log
	Colour        bool   // ANSI colours
	Order         Order  // of the rows
	Only          string // title of the only section shown; "" = all
	Paused        bool
	Keys          bool // name the keys in the last line
}

// Sections are the titles that Style.Only takes, in the order of the screen.
var Sections = [...]string{"LINKS", "FLOWS", "CONSUMERS", "CACHES"}

// The colours: SGR parameters.
const (
	plainText = ""
	bold      = "1"
	dim       = "2"
	red       = "31"
	yellow    = "33"
)

var colourOf = map[Health]string{Well: plainText, Odd: yellow, Ill: red}

// line is a line of a frame before it has colours.
type line struct {
	text   string
	colour string
}

// Frame lays the picture out: never wider or higher than the screen. What does
// not fit is counted, and is what matters least.
func (m *Model) Frame(st Style) []string {
	lines := m.head(st)
	room := -1 // no bound
	if st.Height > 0 {
		room = st.Height - len(lines)
		if st.Keys {
			room--
		}
	}
	blocks := m.blocks(st)
	shares := share(blocks, room)
	for i, b := range blocks {
		lines = append(lines, b.lines(shares[i])...)
	}
	if st.Height > 0 && st.Keys {
		lines = append(lines[:min(len(lines), st.Height-1)], line{m.keys(st), dim})
	}
	if st.Height > 0 {
		lines = lines[:min(len(lines), st.Height)]
	}
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = l.paint(st)
	}
	return out
}

func (l line) paint(st Style) string {
	text := strings.TrimRight(clean(l.text), " ")
	if st.Width > 0 && utf8.RuneCountInString(text) > st.Width {
		r := []rune(text)
		text = string(r[:st.Width-1]) + "…"
	}
	if !st.Colour || l.colour == plainText || text == "" {
		return text
	}
	return "\x1b[" + l.colour + "m" + text + "\x1b[0m"
}

func (m *Model) keys(st Style) string {
	only := st.Only
	if only == "" {
		only = "all"
	}
	pause := "pause"
	if st.Paused {
		pause = "go on"
	}
	return fmt.Sprintf("q quit   s sort: %s   tab show: %s   space %s", st.Order, strings.ToLower(only), pause)
}

func (m *Model) head(st Style) []line {
	t := m.totals()
	state := m.at.Format(time.TimeOnly)
	if st.Paused {
		state += " paused"
	}
	lines := []line{{fmt.Sprintf("%s  topology %s  %s", m.Deployment, m.Epoch, state), bold}}
	health := Well
	switch {
	case t.ready < t.nodes:
		health = Ill
	case t.up < t.links:
		health = Odd
	}
	text := fmt.Sprintf("nodes %d/%d  link ends %d/%d  on their way %s  not consumed %s", t.ready, t.nodes, t.up, t.links, number(t.backlog), number(t.lag))
	if t.settled.known {
		text += fmt.Sprintf("  settled %s/s", t.settled.text())
	}
	return append(lines, line{text, colourOf[health]})
}

// block is a part of the frame: a title line and lines of which some may be left
// out.
type block struct {
	title line
	body  []line
	more  string // what is left out
}

// share divides the room among blocks: all of what is small, and equal parts of
// the rest. -1 is everything.
func share(blocks []block, room int) []int {
	shares := make([]int, len(blocks))
	if room < 0 {
		for i := range shares {
			shares[i] = -1
		}
		return shares
	}
	for range blocks {
		room -= 2 // blank line and title
	}
	for left := true; left && room > 0; {
		left = false
		for i := range blocks {
			if shares[i] < len(blocks[i].body) && room > 0 {
				shares[i]++
				room--
				left = true
			}
		}
	}
	return shares
}

// lines shows at most n lines of the body, the last of which counts the others.
func (b *block) lines(n int) []line {
	out := append([]line{{}}, b.title)
	switch {
	case n < 0 || n >= len(b.body):
		return append(out, b.body...)
	case n == 0:
		out[1].text += fmt.Sprintf("  (%d not shown)", len(b.body))
		return out
	}
	out = append(out, b.body[:n-1]...)
	return append(out, line{fmt.Sprintf("  and %d more %s", len(b.body)-n+1, b.more), dim})
}

// blocks returns problems and sections.
func (m *Model) blocks(st Style) []block {
	var all []block
	if problems := m.problems(); len(problems) > 0 {
		b := block{title: line{fmt.Sprintf("PROBLEMS %d", len(problems)), bold}, more: "problems"}
		for _, p := range problems {
			b.body = append(b.body, line{p.where + "  " + p.what, colourOf[p.health]})
		}
		all = append(all, b)
	}
	for _, s := range m.sections() {
		if st.Only != "" && st.Only != s.title {
			continue
		}
		s.sort(st.Order)
		all = append(all, s.block(st.Width))
	}
	return all
}

// block lays a section out in columns. In a narrow screen the last column, and
// then the widest ones at the left, give way.
func (s *section) block(width int) block {
	b := block{more: "rows"}
	if len(s.rows) == 0 {
		b.title = line{s.title + "  " + s.empty, bold}
		return b
	}
	widths := s.widths()
	for len(s.drop) > 0 && width > 0 && natural(widths) > width {
		s.dropColumn()
		widths = s.widths()
	}
	squeeze(widths, s.head, s.right, width)
	b.title = line{s.lay(s.head, widths), bold}
	ill := 0
	for _, r := range s.rows {
		if r.health != Well {
			ill++
		}
		b.body = append(b.body, line{s.lay(r.cells, widths), colourOf[r.health]})
	}
	if ill == 0 {
		b.more = "rows, all well"
	}
	return b
}

const columnGap = 2

// widths returns how wide each column is when it has all the room it wants.
func (s *section) widths() []int {
	widths := make([]int, len(s.head))
	for i, h := range s.head {
		widths[i] = utf8.RuneCountInString(h)
		for _, r := range s.rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(r.cells[i]))
		}
	}
	return widths
}

// enough is what the last column, which has the longest texts, needs.
const enough = 16

// natural returns the width of the table when its last column has enough.
func natural(widths []int) int {
	sum := columnGap * (len(widths) - 1)
	for _, w := range widths[:len(widths)-1] {
		sum += w
	}
	return sum + min(widths[len(widths)-1], enough)
}

// dropColumn takes the next column out that may go.
func (s *section) dropColumn() {
	i := s.drop[0]
	s.drop = slices.Clone(s.drop[1:])
	for k, d := range s.drop {
		if d > i {
			s.drop[k]--
		}
	}
	s.head = slices.Delete(slices.Clone(s.head), i, i+1)
	s.right = slices.Delete(slices.Clone(s.right), i, i+1)
	for k := range s.rows {
		s.rows[k].cells = slices.Delete(s.rows[k].cells, i, i+1)
	}
}

// squeeze narrows columns of text until the table fits: first the last one, as
// far as its head, then the widest.
func squeeze(widths []int, head []string, right []bool, width int) {
	if width <= 0 {
		return
	}
	over := columnGap*(len(widths)-1) - width
	for _, w := range widths {
		over += w
	}
	for over > 0 {
		widest := -1
		for i, w := range widths {
			floor := max(4, min(utf8.RuneCountInString(head[i]), 9))
			if !right[i] && w > floor && (widest < 0 || w > widths[widest] || i == len(widths)-1) {
				widest = i
			}
		}
		if widest < 0 {
			return // the line is cut at its end
		}
		widths[widest]--
		over--
	}
}

func (s *section) lay(cells []string, widths []int) string {
	var b strings.Builder
	for i, c := range cells {
		c = clean(c)
		n := utf8.RuneCountInString(c)
		if n > widths[i] {
			r := []rune(c)
			c, n = string(r[:max(widths[i]-1, 0)])+"…", widths[i]
		}
		pad := strings.Repeat(" ", max(widths[i]-n, 0))
		if s.right[i] {
			b.WriteString(pad + c)
		} else {
			b.WriteString(c + pad)
		}
		b.WriteString(strings.Repeat(" ", columnGap))
	}
	return b.String()
}
