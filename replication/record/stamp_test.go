package record

import "testing"

// CanStamp accepts what AppendRecord makes and no beginning of it, nor a record
// with something behind it.
func TestCanStamp(t *testing.T) {
	b, err := AppendRecord(nil, &Record{Type: TypeMessage, Topic: "t", MessageID: "m", Body: []byte("body")})
	if err != nil {
		t.Fatal(err)
	}
	if !CanStamp(b) {
		t.Error("a record is refused")
	}
	for n := range b {
		if CanStamp(b[:n]) {
			t.Errorf("the first %d of %d bytes are accepted", n, len(b))
		}
	}
	if CanStamp(append(b, 0)) {
		t.Error("a byte behind the record is accepted")
	}
	for _, off := range []int{offTotal, offHeader, offHeader + 3, offVersion} {
		bad := append([]byte(nil), b...)
		bad[off] ^= 0xff
		if CanStamp(bad) {
			t.Errorf("a record with another byte %d is accepted", off)
		}
	}
	bad := append([]byte(nil), b...)
	bad[offType] = 0
	if CanStamp(bad) {
		t.Error("type 0 is accepted")
	}
}
