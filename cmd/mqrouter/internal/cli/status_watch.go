package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/watch"
	"github.com/mqrouter/mqrouter/internal/admin"
)

const (
	minInterval = 200 * time.Millisecond
	// screenTimeout is how long a node may take to answer while a person looks at
	// the others; elsewhere it is --timeout.
	screenTimeout = 3 * time.Second
)

// watchFlags are those of status --watch.
type watchFlags struct {
	on       bool
	interval time.Duration
	count    int
}

func (p *watchFlags) check(c *cobra.Command) error {
	switch {
	case !p.on && (c.Flags().Changed("interval") || c.Flags().Changed("count")):
		return usageError{errors.New("--interval and --count are of --watch")}
	case !p.on:
		return nil
	case p.interval < minInterval:
		return usageError{fmt.Errorf("--interval %s: at least %s", p.interval, minInterval)}
	case p.count < 0:
		return usageError{errors.New("--count must not be negative")}
	}
	return nil
}

// watcher shows samples as they come.
type watcher struct {
	e     *env
	f     *fleet
	flags watchFlags
	model watch.Model
	style watch.Style
	tty   *os.File      // nil: frames are printed one below the other
	round time.Duration // how long a sample may take
	shown int
}

// sampled is what the sampling goroutine tells.
type sampled struct {
	at    time.Time
	nodes []admin.Status
}

func (p *watchFlags) run(ctx context.Context, e *env, f *fleet) error {
	w := &watcher{e: e, f: f, flags: *p, round: e.fleet.timeout}
	w.model.Deployment, w.model.Epoch = f.topology.Deployment, f.topology.Epoch.String()
	if out, ok := e.out.(*os.File); ok && e.format == "text" && term.IsTerminal(int(out.Fd())) {
		w.tty, w.round = out, min(screenTimeout, w.round)
		w.style.Colour = os.Getenv("NO_COLOR") == ""
	}
	return w.run(ctx)
}

// run starts the goroutines that ask nodes and read keys, and joins them.
func (w *watcher) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	samples := make(chan sampled)
	wg.Go(func() { w.sample(ctx, samples) })
	var keys chan byte
	if w.tty != nil {
		restore, err := w.enterScreen()
		defer restore()
		if err != nil {
			return err
		}
		if w.style.Keys {
			keys = make(chan byte, 16) // typed ahead; what is more is dropped
			wg.Go(func() { readKeys(ctx, os.Stdin, keys) })
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case s := <-samples:
			if w.style.Paused {
				continue
			}
			w.model.Add(s.at, s.nodes)
			if err := w.show(s.nodes); err != nil {
				return err
			}
			if w.shown++; w.shown == w.flags.count {
				return unanswered(s.nodes)
			}
		case k := <-keys:
			if !w.press(k) {
				return nil
			}
			if w.shown > 0 {
				if err := w.draw(); err != nil {
					return err
				}
			}
		}
	}
}

// sample asks all nodes each interval until ctx ends.
func (w *watcher) sample(ctx context.Context, out chan<- sampled) {
	tick := time.NewTicker(w.flags.interval)
	defer tick.Stop()
	for {
		round, cancel := context.WithTimeout(ctx, w.round)
		nodes := w.f.statuses(round)
		cancel()
		select {
		case out <- sampled{time.Now(), nodes}:
		case <-ctx.Done():
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// press does what a key asks for; false to end.
func (w *watcher) press(k byte) bool {
	switch k {
	case 'q', 'Q', 3, 4: // Ctrl-C and Ctrl-D come as bytes: the terminal is raw
		return false
	case 's':
		w.style.Order = w.style.Order.Next()
	case '\t':
		w.style.Only = nextSection(w.style.Only)
	case ' ':
		w.style.Paused = !w.style.Paused
	}
	return true
}

// nextSection goes round: all, then each alone.
func nextSection(only string) string {
	if i := slices.Index(watch.Sections[:], only) + 1; i < len(watch.Sections) {
		return watch.Sections[i]
	}
	return ""
}

// show prints a sample in the form asked for.
func (w *watcher) show(nodes []admin.Status) error {
	if w.e.format == "json" {
		return w.e.json().Encode(nodes)
	}
	if w.tty != nil {
		return w.draw()
	}
	_, err := fmt.Fprintln(w.e.out, strings.Join(w.model.Frame(w.style), "\n")+"\n")
	return err
}

// draw puts the frame on the screen in one write, over the one before: nothing
// flickers.
func (w *watcher) draw() error {
	width, height, err := term.GetSize(int(w.tty.Fd()))
	if err != nil || width < 20 || height < 5 {
		width, height = 80, 24
	}
	w.style.Width, w.style.Height = width, height
	b := bufio.NewWriterSize(w.tty, 64<<10)
	b.WriteString("\x1b[H") //nolint:errcheck // Flush says it
	for i, l := range w.model.Frame(w.style) {
		if i > 0 {
			b.WriteString("\r\n") //nolint:errcheck // Flush says it
		}
		b.WriteString(l + "\x1b[K") //nolint:errcheck // Flush says it
	}
	b.WriteString("\x1b[J") //nolint:errcheck // Flush says it
	return b.Flush()
}

// enterScreen switches to the terminal's second screen, and keys come as they
// are pressed. The function that it returns puts everything back, after an error
// too.
func (w *watcher) enterScreen() (func(), error) {
	var state *term.State
	if in := int(os.Stdin.Fd()); keysWork && term.IsTerminal(in) {
		var err error
		if state, err = term.MakeRaw(in); err != nil {
			return func() {}, fmt.Errorf("terminal: %w", err)
		}
		w.style.Keys = true
	}
	_, err := w.tty.WriteString("\x1b[?1049h\x1b[?25l\x1b[2J")
	return func() {
		_, _ = w.tty.WriteString("\x1b[?25h\x1b[?1049l") // the terminal may be gone
		if state != nil {
			_ = term.Restore(int(os.Stdin.Fd()), state) // likewise
		}
	}, err
}
