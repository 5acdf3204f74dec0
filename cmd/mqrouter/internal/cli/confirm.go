package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// confirm asks whether to go on with what the sentence says. Where nobody can be asked
// it is refused: the error says so.
func (e *env) confirm(what string) error {
	in, ok := e.in.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return fmt.Errorf("nothing was done: %s; see --preview, and give --yes", what)
	}
	fmt.Fprintf(e.errOut, "%s; go on? [y/N] ", what)
	answer, err := bufio.NewReader(io.LimitReader(in, 64)).ReadString('\n')
	if err != nil || !strings.EqualFold(strings.TrimSpace(answer), "y") {
		return errors.New("nothing was done")
	}
	return nil
}
