package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/hashicorp/consul/api"
)

const (
	// tokenEvery is how often the file with Consul's token is looked at.
	tokenEvery = 5 * time.Second
	// maxToken bounds a token, in bytes; Consul's are 36 long, those of others who issue
	// them may be a few KiB.
	maxToken = 16 << 10
)

// consulToken keeps the token of a client of Consul in step with a file.
type consulToken struct {
	path   string
	client *api.Client
	log    *slog.Logger
	last   []byte // in use; only follow's goroutine once that runs
}

// take reads the file and uses what it has.
func (t *consulToken) take() error {
	b, err := os.ReadFile(t.path)
	if err != nil {
		return fmt.Errorf("token: %w", err)
	}
	b = bytes.TrimSpace(b)
	switch {
	case len(b) == 0:
		return fmt.Errorf("token: %s is empty", t.path)
	case len(b) > maxToken:
		return fmt.Errorf("token: %s has %d bytes", t.path, len(b))
	case bytes.ContainsAny(b, "\r\n"):
		return fmt.Errorf("token: %s has several lines", t.path)
	case bytes.Equal(b, t.last):
		return errSameToken
	}
	t.last = b
	t.client.SetHeaders(http.Header{"X-Consul-Token": {string(b)}})
	return nil
}

var errSameToken = errors.New("the token is the same")

// follow takes another token when the file has one, until ctx ends. A file that cannot be
// used leaves the last one in force.
func (t *consulToken) follow(ctx context.Context) error {
	tick := time.NewTicker(tokenEvery)
	defer tick.Stop()
	told := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		switch err := t.take(); {
		case err == nil:
			t.log.Info("Consul's token taken", "path", t.path)
			told = ""
		case errors.Is(err, errSameToken):
			told = ""
		case told != err.Error():
			told = err.Error()
			t.log.Error("Consul's token is not taken, the last one is in use", "err", err)
		}
	}
}
