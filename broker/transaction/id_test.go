package transaction

import (
	"errors"
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/replication/record"
)

var identity = record.Identity{Group: "rz01-a", Incarnation: 0x1122334455667788, Epoch: 7, Position: 4096}

func TestTransactionIDNamesItsOwnerAndIsSealed(t *testing.T) {
	s := NewSealer([]byte("secret"))
	id := s.Seal(identity)
	if got, err := s.Open(id); err != nil || got != identity {
		t.Fatalf("%+v, %v", got, err)
	}
	if g, err := Owner(id); err != nil || g != "rz01-a" {
		t.Errorf("owner %q, %v", g, err)
	}
	if _, err := NewSealer([]byte("other")).Open(id); !errors.Is(err, ErrForeign) {
		t.Errorf("opened with another secret: %v", err)
	}
	for i := range id {
		b := []byte(id)
		if b[i]++; b[i] == '{' || b[i] == '[' || b[i] == ':' {
			b[i] = 'A'
		}
		if _, err := s.Open(string(b)); err == nil {
			t.Errorf("opened with another character at %d", i)
		}
	}
	for n := range id {
		if _, err := s.Open(id[:n]); err == nil {
			t.Errorf("opened after %d characters", n)
		}
	}
	for _, text := range []string{id + "A", id + "=", strings.Repeat("A", MaxID+1), "\x00", "ä"} {
		if _, err := s.Open(text); err == nil {
			t.Errorf("%.20q was opened", text)
		}
	}
}

// The form never changes: ids live in clients over an upgrade.
func TestTransactionIDGolden(t *testing.T) {
	const want = "AYh3ZlVEMyIRBwAAAAAAAAAAEAAAAAAAACraz8CET3pd1ORuidAHhBVyejAxLWE"
	if got := NewSealer([]byte("secret")).Seal(identity); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
