package peer

import (
	"bytes"
	"net"
	"os"
	"testing"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// FuzzMaterial gives certificate files of any content to what a node starts
// with and follows: a set is whole, or refused.
func FuzzMaterial(f *testing.F) {
	a, err := NewAuthority("bank", 0, fixed())
	if err != nil {
		f.Fatal(err)
	}
	files := install(f, a, f.TempDir(), Request{Identity: broker("b1"), Now: fixed()})
	var content [3][]byte
	for i, name := range []string{files.Cert, files.Key, files.CA} {
		if content[i], err = os.ReadFile(name); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(content[0], content[1], content[2])
	f.Add(content[0], content[1], content[0])
	f.Add(content[2], content[1], content[2])
	f.Add(bytes.Repeat(content[0], 3), content[1], bytes.Repeat(content[2], 3))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, cert, key, ca []byte) {
		m, err := parseMaterial(cert, key, ca, fixed())
		if err == nil && (m.identity.Validate() != nil || m.cert.Leaf == nil) {
			t.Errorf("accepted as %+v", m.identity)
		}
	})
}

// FuzzGreeting has both sides of a greeting read any bytes: they end, and what
// they accept is a whole Hello of their own deployment.
func FuzzGreeting(f *testing.F) {
	o := Options{Self: broker("d1"), Incarnation: 2}.withDefaults()
	mine := o.hello("shanghai", zone.ClassBulk)
	theirs := mine
	theirs.Node, theirs.Incarnation = "d2", 3
	refuse := wire.Refuse{Code: wire.CodeDraining, Text: "later"}
	f.Add(mustFrame(wire.Frame{Type: wire.TypeHello, Payload: theirs.Append(nil)}))
	f.Add(mustFrame(wire.Frame{Type: wire.TypeHello, Payload: mine.Append(nil)}))
	f.Add(mustFrame(wire.Frame{Type: wire.TypeRefuse, Payload: refuse.Append(nil)}))
	f.Add(mustFrame(wire.Frame{Type: wire.TypeHello, Session: 7, Payload: theirs.Append(nil)}))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, accept := range []bool{false, true} {
			here, there := net.Pipe()
			end := drainConn(there)
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				_, _ = there.Write(b) // the other side may end at any byte
				_ = there.Close()
			}()
			var got wire.Hello
			var err error
			if accept {
				got, err = greetSecond(here, &o, nil, false)
			} else {
				got, err = greetFirst(here, &mine, nil)
			}
			_ = here.Close()
			<-sent
			<-end
			if err == nil && (got.Deployment != mine.Deployment || got.Node == mine.Node || got.MaxFrame == 0) {
				t.Errorf("accept %v: greeted %+v", accept, got)
			}
		}
	})
}
