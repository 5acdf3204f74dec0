//go:build !unix

package cli

import (
	"context"
	"os"
)

// keysWork says that readKeys reads keys here.
const keysWork = false

func readKeys(context.Context, *os.File, chan<- byte) {}
