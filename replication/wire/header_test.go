package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"testing"

	"github.com/mqrouter/mqrouter/zone"
)

func encoded(t testing.TB, f Frame) []byte {
	t.Helper()
	b, err := AppendFrame(nil, &f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mend(b []byte) { binary.LittleEndian.PutUint32(b[24:], crc32.Checksum(b[:24], castagnoli)) }

func TestHeaderIsChecked(t *testing.T) {
	frame := Frame{Type: TypeEnd, Session: 9, Class: zone.ClassUrgent, Hops: 2, Payload: []byte("payload")}
	cases := []struct {
		name   string
		change func([]byte)
		code   Code
	}{
		{"version", func(b []byte) { b[0] = 2; mend(b) }, CodeUnsupported},
		{"required flag", func(b []byte) { b[3] = 0x80; mend(b) }, CodeUnsupported},
		{"length", func(b []byte) { binary.LittleEndian.PutUint32(b[4:], MaxPayload+1); mend(b) }, CodeMalformed},
		{"any bit", func(b []byte) { b[9] ^= 0x10 }, CodeMalformed},
		{"checksum", func(b []byte) { b[24]++ }, CodeMalformed},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := encoded(t, frame)
			c.change(b)
			_, err := ParseHeader(b)
			var fe *FrameError
			if !errors.As(err, &fe) || fe.Code != c.code {
				t.Errorf("error %v, want *FrameError with %s", err, c.code)
			}
		})
	}
	b := encoded(t, frame)
	b[2] = 0x01 // an optional flag of a later version
	mend(b)
	if h, err := ParseHeader(b); err != nil || h.Flags != 1 {
		t.Errorf("optional flag: %+v, %v", h, err)
	}
	for n := range HeaderSize {
		if _, err := ParseHeader(b[:n]); err == nil {
			t.Errorf("header of %d bytes accepted", n)
		}
	}
}

func TestReadFrameBoundsWhatItTakes(t *testing.T) {
	frame := Frame{Type: TypeEnd, Session: 9, Payload: []byte("payload")}
	b := encoded(t, frame)

	got, err := ReadFrame(bytes.NewReader(b), MaxPayload)
	if err != nil || got.Session != 9 || string(got.Payload) != "payload" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := ReadFrame(bytes.NewReader(b), 6); err == nil {
		t.Error("frame above the limit accepted")
	}
	if _, err := ReadFrame(bytes.NewReader(nil), MaxPayload); !errors.Is(err, io.EOF) {
		t.Errorf("end between frames: %v, want io.EOF", err)
	}
	for n := 1; n < len(b); n++ {
		if _, err := ReadFrame(bytes.NewReader(b[:n]), MaxPayload); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d of %d bytes: %v, want io.ErrUnexpectedEOF", n, len(b), err)
		}
	}
	b[len(b)-1] ^= 1
	var fe *FrameError
	if _, err := ReadFrame(bytes.NewReader(b), MaxPayload); !errors.As(err, &fe) {
		t.Errorf("damaged payload: %v, want *FrameError", err)
	}
	empty := encoded(t, Frame{Type: TypeEnd})
	if f, err := ReadFrame(bytes.NewReader(empty), MaxPayload); err != nil || len(f.Payload) != 0 {
		t.Errorf("empty payload: %+v, %v", f, err)
	}
	if _, err := AppendFrame(nil, &Frame{Payload: make([]byte, MaxPayload+1)}); err == nil {
		t.Error("payload above MaxPayload encoded")
	}
}

func TestEveryCodeSaysWhatItMeans(t *testing.T) {
	want := map[Code]bool{
		CodeOK: false, CodeUnsupported: false, CodeMalformed: false, CodeUnknownGroup: true, CodeNotMaster: true,
		CodeWrongIdentity: false, CodeWrongDeployment: false, CodeTopologyBehind: true, CodeTopologyAhead: true,
		CodeHeld: true, CodeTooMany: true, CodeDraining: true, CodeNoRoute: true, CodeSlowPeer: true,
		CodeSuperseded: false, CodeDiverged: false, CodeSealed: false, CodeInternal: true, CodeShutdown: true,
		CodeResidency: false, CodeTimeout: true, CodeHops: true, CodeRelayed: true, CodeNotHeld: true,
	}
	if len(want) != int(codeCount) {
		t.Fatalf("%d rows tested, the table has %d", len(want), codeCount)
	}
	names := map[string]bool{}
	for c, retryable := range want {
		if !c.Known() || c.Retryable() != retryable || c.Text() == "" || names[c.String()] {
			t.Errorf("%d: known %v, retryable %v, name %q, text %q", c, c.Known(), c.Retryable(), c, c.Text())
		}
		names[c.String()] = true
	}
	newer := codeCount + 5
	if newer.Known() || !newer.Retryable() || newer.String() == "" || newer.Text() == "" {
		t.Errorf("code of a newer peer: %v %q %q", newer.Retryable(), newer, newer.Text())
	}
	e, err := ParseEnd((&End{Code: newer}).Append(nil))
	if err != nil || e.Code != newer {
		t.Errorf("code of a newer peer is not carried: %v, %v", e.Code, err)
	}
}
