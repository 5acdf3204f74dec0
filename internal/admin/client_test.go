package admin

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"
)

// TestASilentNodeIsNamed: a frozen node accepts connections and never answers. The error
// says who was silent and for how long, not what the HTTP library waited for.
func TestASilentNodeIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr := l.Addr().String()
	_, err = NewClient(nil, 50*time.Millisecond).Status(t.Context(), addr)
	if err == nil || !strings.Contains(err.Error(), addr+" said nothing within 50ms") || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}
