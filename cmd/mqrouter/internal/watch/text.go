package watch

import (
	"fmt"
	"strconv"
	"time"
	"unicode"
)

// number writes 1234567 as 1,234,567.
func number(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// text writes a rate; "" when it is not known.
func (r rate) text() string {
	switch {
	case !r.known:
		return ""
	case r.perSecond > 0 && r.perSecond < 10:
		return strconv.FormatFloat(r.perSecond, 'f', 1, 64)
	}
	return number(uint64(r.perSecond + 0.5))
}

// bytes writes a rate of bytes.
func (r rate) bytes() string {
	if !r.known {
		return ""
	}
	const unit = 1024
	n, letter := r.perSecond, 0
	for n >= unit && letter < 4 {
		n, letter = n/unit, letter+1
	}
	if letter == 0 {
		return strconv.FormatFloat(n, 'f', 0, 64) + " B"
	}
	return fmt.Sprintf("%.1f %ciB", n, " KMGT"[letter])
}

// text writes a change with its sign; "" when there is none.
func (c change) text() string {
	switch {
	case !c.known || c.by == 0:
		return ""
	case c.by > 0:
		return "+" + number(uint64(c.by))
	}
	return "-" + number(uint64(-c.by))
}

// lapse writes a measured time; "" when it was not measured.
func lapse(d time.Duration) string {
	switch {
	case d <= 0:
		return ""
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1fms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return span(d)
}

// span writes how long something lasts.
func span(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}

// clean keeps texts of nodes from moving the cursor.
func clean(s string) string {
	b := []rune(s)
	for i, r := range b {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			b[i] = '.'
		}
	}
	return string(b)
}
