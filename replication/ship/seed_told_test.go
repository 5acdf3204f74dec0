package ship

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/mqrouter/mqrouter/replication/wire"
)

// A master says that a replica does not get its snapshot, and why, but not each time of
// a replica that tries for ever; one that has got all of it is no trouble.
func TestAMasterTellsWhoDoesNotGetItsSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := lonely(t)
		var text bytes.Buffer
		l.o.Logger = slog.New(slog.NewTextHandler(&text, nil))
		lines := func(what string) int { return strings.Count(text.String(), what) }
		const broke, whole = "replica did not get the snapshot", "replica has got the whole snapshot"
		for range 10 {
			mine, ended := asks(t, l)
			seedAnswer(t, mine)
			_ = mine.Close(wire.CodeInternal) // its disk fails
			if err := <-ended; err == nil || errors.Is(err, errStalled) {
				t.Fatalf("the session ended with %v", err)
			}
		}
		if n := lines(broke); n != brokenLines || lines(whole) != 0 {
			t.Errorf("%d lines:\n%s", n, text.String())
		}

		mine, ended := asks(t, l)
		x := seedAnswer(t, mine)
		ack := wire.ShipAck{Credit: 1 << 40}
		if err := mine.Send(t.Context(), wire.Frame{Type: wire.TypeShipAck, Payload: ack.Append(nil)}); err != nil {
			t.Fatal(err)
		}
		left := uint64(0)
		for _, f := range x.Files {
			left += f.Size
		}
		for left > 0 {
			f, err := mine.Recv(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			p, err := wire.ParsePart(f.Payload)
			if err != nil {
				t.Fatal(err)
			}
			left -= uint64(len(p.Data))
		}
		synctest.Wait() // the master waits for it to make a store
		_ = mine.Close(wire.CodeOK)
		<-ended
		if lines(broke) != brokenLines || lines(whole) != 1 {
			t.Errorf("after a whole one:\n%s", text.String())
		}
	})
}
