package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// Times between two tellings of how far a command is: on a terminal, where a line is
// written over itself, and elsewhere, where each is a line of a log.
const (
	progressOnTerminal = 200 * time.Millisecond
	progressElsewhere  = time.Second
)

// progressLine tells how far a command is.
type progressLine struct {
	out   io.Writer
	every time.Duration
	tty   bool
	told  time.Time
	shown bool // a line stands on the terminal
}

func newProgressLine(out io.Writer, now time.Time) progressLine {
	p := progressLine{out: out, every: progressElsewhere, told: now}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.tty, p.every = true, progressOnTerminal
	}
	return p
}

// tell shows the text unless something was shown a moment ago.
func (p *progressLine) tell(now time.Time, text string) {
	if now.Sub(p.told) < p.every {
		return
	}
	p.told = now
	if p.tty {
		p.shown = true
		fmt.Fprintf(p.out, "\r%s\x1b[K", text)
		return
	}
	fmt.Fprintln(p.out, text)
}

// clear makes room for another text.
func (p *progressLine) clear() {
	if p.shown {
		p.shown = false
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
