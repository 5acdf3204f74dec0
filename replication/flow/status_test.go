package flow

import (
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
)

// TestProgressIsWhatWasSettled dials again and again: attempts and sessions
// that settle nothing must not look like progress to who watches the status.
func TestProgressIsWhatWasSettled(t *testing.T) {
	lim := Limits{}.withDefaults()
	l := &lane{}
	l.s.start(at(0), &lim, 4, 0)
	l.publish()
	if _, err := l.s.accept(at(time.Second), &wire.Accept{Next: 1, Credit: wire.Credit{Number: 9, Bytes: 1 << 20}}); err != nil {
		t.Fatal(err)
	}
	l.s.sent(at(time.Second), 2, 10)
	l.publish()
	if p := l.status.Progress; !p.IsZero() {
		t.Errorf("progress at %v before anything was settled", p)
	}
	if err := l.s.ack(at(2*time.Second), &wire.Ack{Through: 2, Credit: wire.Credit{Number: 9, Bytes: 1 << 20}}); err != nil {
		t.Fatal(err)
	}
	l.publish()
	for n := range 5 {
		l.s.start(at(time.Duration(10+n)*time.Second), &lim, 4, 2)
		l.publish()
		if p := l.status.Progress; !p.Equal(at(2 * time.Second)) {
			t.Errorf("attempt %d: progress at %v, want the time of the last settlement", n, p)
		}
	}
}
