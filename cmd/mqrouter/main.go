// Command mqrouter routes messages between the zones and cities of a company.
// See the README, or run it with --help.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the first signal asks; a second one ends the process at once
	code := cli.Main(ctx)
	stop()
	os.Exit(code)
}
