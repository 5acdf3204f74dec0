package transaction

import (
	"bytes"
	"testing"
)

// FuzzSnapshot: whatever a file holds, reading it ends, and what was read is
// written as it was, as far as its numbers were written the shortest way.
func FuzzSnapshot(f *testing.F) {
	f.Add(goldenTable().Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		table, err := Parse(b)
		if err != nil {
			return
		}
		again, err := Parse(table.Append(nil))
		if err != nil || !bytes.Equal(again.Append(nil), table.Append(nil)) {
			t.Errorf("what was read is not what is written: %v", err)
		}
	})
}

// FuzzID: no text makes an id that this store did not give out.
func FuzzID(f *testing.F) {
	f.Add(NewSealer([]byte("secret")).Seal(identity))
	f.Fuzz(func(t *testing.T, text string) {
		s := NewSealer([]byte("secret"))
		id, err := s.Open(text)
		if err == nil && s.Seal(id) != text {
			t.Errorf("%q and %q are one id", text, s.Seal(id))
		}
		if g, oerr := Owner(text); err == nil && (oerr != nil || g != id.Group) {
			t.Errorf("owner %q, %v of an id of %q", g, oerr, id.Group)
		}
	})
}
