package peer

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
)

// TestRefusedStrangersAreToldWithinABound sends more garbage than may be logged:
// the first of it is told, the rest is not.
func TestRefusedStrangersAreToldWithinABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		p := newPair(t, func(context.Context, *Session) {}, func(l, _ *Options) {
			l.Logger = slog.New(slog.NewTextHandler(&log, nil))
		})
		for range 3 * complainLimit {
			conn, err := p.net.dial(t.Context(), "x:1")
			if err != nil {
				t.Fatal(err)
			}
			go conn.Write(bytes.Repeat([]byte("GET / HTTP/1.1\r\n"), 8))
			synctest.Wait()
			conn.Close()
		}
		p.close(t)
		if n := strings.Count(log.String(), "peer refused"); n != complainLimit {
			t.Errorf("%d lines, want %d:\n%s", n, complainLimit, log.String())
		}
	})
}
