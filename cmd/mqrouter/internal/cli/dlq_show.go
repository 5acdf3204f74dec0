package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/internal/admin"
)

// previewBytes is how much of a body dlq show prints.
const previewBytes = 256

// wholeBody asks for a body as large as any may be.
const wholeBody = 64 << 20

func newDLQShow(e *env) *cobra.Command {
	var p letterFlags
	var all, body bool
	c := e.asks(&cobra.Command{
		Use:   "show [ID]",
		Short: "Show dead letters: reason, attempts, headers, the beginning of the body",
		Long: `Show dead letters, oldest first: when and why each was given up, after how many
attempts, its headers and the beginning of its body. With --body, the whole body
of one letter goes to the standard output, byte for byte, and nothing else.`,
		Example: `  mqrouter dlq show --group transfer-credit --limit 5
  mqrouter dlq show --parked --reason too-large --since 2h
  mqrouter dlq show 01A2B3C4D5E6F70123456789ABCDEF0123 --body > body.bin`,
		Args: optionalArg("a message id"),
	}, func(ctx context.Context, f *fleet, args []string) error {
		if p.limit < 1 {
			return usageError{errors.New("--limit must be at least 1")}
		}
		q, err := p.query(time.Now())
		if err != nil {
			return err
		}
		if q.MessageID, err = p.messageID(args); err != nil {
			return err
		}
		q.Pending = !all && q.MessageID == ""
		if q.Body = previewBytes; body {
			q.Body = wholeBody
		}
		q.Limit = min(p.limit, 100)
		boxes, incomplete := f.letterBoxes(ctx, &p)
		if incomplete != nil && len(boxes) == 0 {
			return incomplete
		}
		letters := []admin.DeadLetter{}
		err = f.each(ctx, boxes, q, func(_ letterBox, page []admin.DeadLetter) (bool, error) {
			letters = append(letters, page...)
			return len(letters) < p.limit, nil
		})
		letters = letters[:min(len(letters), p.limit)]
		if err == nil {
			err = incomplete
		}
		if len(letters) == 0 && err == nil && q.MessageID != "" {
			return fmt.Errorf("no broker has such a dead letter of message %s%s", q.MessageID, idHint(q.MessageID))
		}
		if body {
			return errors.Join(e.oneBody(letters), err)
		}
		if showErr := e.show(letters, func(w io.Writer) { printLetters(w, letters) }); showErr != nil {
			return showErr
		}
		return err
	})
	p.declareQueue(c)
	p.declareFilter(c)
	c.Flags().IntVar(&p.limit, "limit", 20, "letters at most")
	c.Flags().BoolVar(&all, "all", false, "also letters that were replayed")
	c.Flags().BoolVar(&body, "body", false, "write the whole body of the one letter that is selected")
	return c
}

// oneBody writes the body of the only letter.
func (e *env) oneBody(letters []admin.DeadLetter) error {
	if len(letters) != 1 {
		return fmt.Errorf("--body writes one body, and %s selected", count(len(letters), "letter is", "letters are"))
	}
	_, err := e.out.Write(letters[0].Body)
	return err
}

func printLetters(w io.Writer, letters []admin.DeadLetter) {
	if len(letters) == 0 {
		fmt.Fprintln(w, "no dead letters")
		return
	}
	for i, l := range letters {
		if i > 0 {
			fmt.Fprintln(w)
		}
		state := ""
		if l.Replayed {
			state = ", replayed"
		}
		fmt.Fprintf(w, "%s (letter %d of %s at %s%s)\n", plain(l.MessageID), l.Offset, plain(l.Queue), l.Node, state)
		line := func(name, value string) {
			if value != "" {
				fmt.Fprintf(w, "    %-12s %s\n", name, plain(value))
			}
		}
		line("given up", l.Dead.Local().Format("2006-01-02 15:04:05.000")+": "+l.Why)
		line("topic", l.Topic)
		if !l.Born.IsZero() {
			line("born", l.Born.Local().Format("2006-01-02 15:04:05.000"))
		}
		if l.Number > 0 {
			line("flow number", fmt.Sprint(l.Number))
		}
		line("group", l.MsgGroup)
		line("tag", l.Tag)
		line("keys", strings.Join(l.Keys, " "))
		for _, p := range l.Properties {
			line("property", strings.Join(p, "="))
		}
		line("body", preview(l.Body, l.BodySize))
	}
}

// preview shows the beginning of a body: as text when it is text, else in
// hexadecimal.
func preview(b []byte, whole int) string {
	more := ""
	if whole > len(b) {
		more = fmt.Sprintf("... (%s)", size(uint64(whole)))
		for !utf8.Valid(b) && len(b) > previewBytes-utf8.UTFMax {
			b = b[:len(b)-1] // a letter that was cut
		}
	}
	if whole == 0 {
		return "empty"
	}
	if !utf8.Valid(b) || strings.ContainsFunc(string(b), func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }) {
		return fmt.Sprintf("%x%s", b[:min(len(b), 64)], more)
	}
	return string(b) + more
}

// plain keeps what a client wrote from moving the cursor or changing colours of
// the terminal.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError {
			return '.'
		}
		return r
	}, s)
}
