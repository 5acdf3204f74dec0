package node

import (
	"context"
	"testing"
	"testing/synctest"
)

// TestSessionsEndWithTheReign: a session ends when its master is none any more, though
// its connection goes on, and nobody comes in before and after.
func TestSessionsEndWithTheReign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a audience
		if _, _, ok := a.enter(t.Context()); ok {
			t.Error("a session before the reign")
		}
		a.admit()
		ctx, leave, ok := a.enter(t.Context())
		if !ok || ctx.Err() != nil {
			t.Fatalf("a session of a master is refused: %v", ctx.Err())
		}
		conn, drop := context.WithCancel(t.Context())
		other, leaveOther, _ := a.enter(conn)
		drop()
		if synctest.Wait(); other.Err() == nil || ctx.Err() != nil {
			t.Errorf("one connection ended: its session has %v, another one %v", other.Err(), ctx.Err())
		}
		leaveOther()
		over := false
		go func() {
			a.dismiss()
			over = true
		}()
		if synctest.Wait(); ctx.Err() == nil || over {
			t.Errorf("the reign is over: the session has %v, and it was waited for: %v", ctx.Err(), !over)
		}
		leave()
		if synctest.Wait(); !over {
			t.Error("the end of the reign is not noticed when the last session is over")
		}
		if _, _, ok := a.enter(t.Context()); ok {
			t.Error("a session after the reign")
		}
		a.dismiss()
	})
}
