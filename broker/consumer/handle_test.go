package consumer

import (
	"errors"
	"strings"
	"testing"
)

var exampleHandle = Handle{Incarnation: 0x1122334455667788, Group: HashGroup("g"), Topic: 9, Queue: 65535, Offset: 1 << 62, Delivery: 7 << 40}

func TestHandleIsReadBack(t *testing.T) {
	s := NewSealer([]byte("secret"))
	for _, h := range []Handle{{}, exampleHandle, {Offset: ^uint64(0), Delivery: ^uint64(0)}} {
		text := s.Seal(h)
		got, err := s.Open(text)
		if err != nil || got != h {
			t.Errorf("%+v became %+v, %v", h, got, err)
		}
	}
}

// The golden text keeps handles valid over an upgrade.
func TestHandleTextNeverChanges(t *testing.T) {
	const golden = "AYh3ZlVEMyIRriYu4QQS9AMJAAAAAAAAAP__AAAAAAAAAEAAAAAAAAcAAK9T4OU7HnsjcRz_PGb2PYk"
	if text := NewSealer([]byte("secret")).Seal(exampleHandle); text != golden {
		t.Errorf("handle is %q", text)
	}
}

func TestHandleRefusesWhatItDidNotSeal(t *testing.T) {
	s := NewSealer([]byte("secret"))
	text := s.Seal(exampleHandle)
	refused := []string{"", "x", text[:len(text)-1], text + "A", strings.Repeat("A", len(text)), strings.Repeat("\xff", len(text)),
		NewSealer([]byte("other")).Seal(exampleHandle), NewSealer(nil).Seal(exampleHandle)}
	for i := range text {
		for _, c := range []byte{'A', '_', '!'} {
			if text[i] != c {
				refused = append(refused, text[:i]+string(c)+text[i+1:])
			}
		}
	}
	for _, bad := range refused {
		var h *HandleError
		if got, err := s.Open(bad); !errors.As(err, &h) || h.Reason != ReasonMalformed {
			t.Errorf("%q became %+v, %v", bad, got, err)
		}
	}
}

func FuzzHandle(f *testing.F) {
	s := NewSealer([]byte("secret"))
	f.Add(s.Seal(exampleHandle))
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		if h, err := s.Open(text); err == nil && s.Seal(h) != text {
			t.Errorf("%q opens, but is not what Seal gives", text)
		}
	})
}

func BenchmarkSealAndOpen(b *testing.B) {
	s := NewSealer([]byte("0123456789abcdef0123456789abcdef"))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Open(s.Seal(exampleHandle)); err != nil {
			b.Fatal(err)
		}
	}
}
