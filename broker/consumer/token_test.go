package consumer

import (
	"errors"
	"testing"
)

// TestTokenHasOneText: base64 passes over line breaks, which are none of a token's text.
func TestTokenHasOneText(t *testing.T) {
	s := NewSealer([]byte("secret"))
	text := s.SealToken(1, []byte("data"), "context")
	if data, err := s.OpenToken(1, text, "context"); err != nil || string(data) != "data" {
		t.Fatalf("%q, %v", data, err)
	}
	for _, bad := range []string{text + "\n", "\r\n" + text, text[:4] + "\n" + text[4:], text + "=", text[1:], ""} {
		var h *HandleError
		if data, err := s.OpenToken(1, bad, "context"); !errors.As(err, &h) || h.Reason != ReasonMalformed {
			t.Errorf("%q opens as %q, %v", bad, data, err)
		}
		if data, err := PeekToken(bad); err == nil && bad != text[1:] {
			t.Errorf("%q is read as %q", bad, data)
		}
	}
}
