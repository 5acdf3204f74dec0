package wire

import (
	"bytes"
	"testing"
)

// FuzzFrames reads arbitrary bytes as frames: nothing may panic, and what is
// accepted must survive being written and read again.
func FuzzFrames(f *testing.F) {
	all := samples()
	for _, s := range all {
		frame := s.frame()
		f.Add(encoded(f, frame))
		f.Add(frame.Payload)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if frame, err := ReadFrame(bytes.NewReader(b), MaxPayload); err == nil {
			if again := encoded(t, frame); !bytes.Equal(again[4:20], b[4:20]) {
				t.Errorf("header changed: %x, was %x", again, b[:HeaderSize])
			}
		}
		for i := range all {
			v, err := all[i].parse(b)
			if err != nil {
				continue
			}
			again, err := all[i].parse(v.Append(nil))
			if err != nil {
				t.Fatalf("%s: accepted, then refused: %v", all[i].name, err)
			}
			if normal(again) != normal(v) {
				t.Errorf("%s: %+v became %+v", all[i].name, v, again)
			}
		}
	})
}
