package commitlog

import (
	"context"
	"errors"
	"testing"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/ship"
)

// refusedAlone opens a log as its group's only one, which must fail, and returns the
// epoch that the refusal names.
func refusedAlone(t *testing.T, fsys disk.FS, seed, leave uint64) uint64 {
	t.Helper()
	o := testOptions(fsys, seed)
	o.LeaveGroup = leave
	o.Deliver = func(*Committed) {}
	o.Alone = func(context.Context) error {
		t.Error("a refused log is told of")
		return nil
	}
	l, err := Open(t.Context(), o)
	var member *MemberError
	if !errors.As(err, &member) {
		if err == nil {
			_ = l.Close()
		}
		t.Fatalf("a member's log opened alone: %v", err)
	}
	if member.Given != leave {
		t.Errorf("it was given %d, not %d", leave, member.Given)
	}
	return member.Epoch
}

// openAlone opens and closes a log as its group's only one.
func openAlone(t *testing.T, fsys disk.FS, seed, leave uint64) {
	t.Helper()
	o := testOptions(fsys, seed)
	o.LeaveGroup = leave
	h := open(t, o)
	h.Start()
	h.mustAppend(numbered(int(seed), 10))
	h.Close()
}

// A log that was a member's is not opened as the group's only one before somebody says
// so and names its last epoch; that word holds for once, and changes nothing elsewhere.
func TestAMembersLogIsOpenedAloneOnlyWithAWord(t *testing.T) {
	fsys := disk.NewMem()
	openAlone(t, fsys, 1, 99) // a word about nothing does no harm
	h := openMaster(t, fsys, 2)
	h.write(2, 10)
	h.Close()

	last := refusedAlone(t, fsys, 3, 0)
	if last != 2 {
		t.Fatalf("the refusal names epoch %d", last)
	}
	refusedAlone(t, fsys, 4, last-1)
	again := openFollower(t, fsys, 5)
	if again.Epoch() != last {
		t.Errorf("a refused open has begun epoch %d", again.Epoch())
	}
	again.Close()
	refusedAlone(t, fsys, 6, 0)

	openAlone(t, fsys, 7, last)
	openAlone(t, fsys, 8, 0) // it has left

	openFollower(t, fsys, 9).Close() // and is in it again
	if next := refusedAlone(t, fsys, 10, last); next <= last {
		t.Errorf("the refusal names epoch %d", next)
	}
}

// Who has to know that a log is its group's only one is told before anything is written
// to it, or it is not; a log that follows is not.
func TestALogThatIsTheOnlyOneIsToldOf(t *testing.T) {
	fsys := disk.NewMem()
	h := openMaster(t, fsys, 1)
	h.write(1, 10)
	h.Close()
	before := openFollower(t, fsys, 2)
	end := before.End()
	before.Close()

	away, told := errors.New("nobody can be told"), 0
	o := testOptions(fsys, 3)
	o.LeaveGroup, o.Deliver = 1, func(*Committed) {}
	o.Alone = func(context.Context) error { told++; return away }
	if _, err := Open(t.Context(), o); !errors.Is(err, away) || told != 1 {
		t.Fatalf("%v, told %d times", err, told)
	}
	o.Follow = true
	l, err := Open(t.Context(), o)
	if err != nil || l.End() != end || l.Epoch() != 1 || told != 1 {
		t.Fatalf("%v, the log ends at %d in epoch %d, and ended at %d; told %d times", err, l.End(), l.Epoch(), end, told)
	}
	l.Close()
	o.Follow, o.Alone = false, func(context.Context) error { told++; return nil }
	if l, err = Open(t.Context(), o); err != nil || told != 2 {
		t.Fatalf("%v, told %d times", err, told)
	}
	l.Close()
}

// What was never written to lacks nothing.
func TestAnEmptyFollowersLogMayBeOpenedAlone(t *testing.T) {
	fsys := disk.NewMem()
	openFollower(t, fsys, 1).Close()
	openAlone(t, fsys, 2, 0)
}

// The store that a replica received is a member's from its first byte on.
func TestAReceivedStoreIsAMembers(t *testing.T) {
	fsys := disk.NewMem()
	h := openMaster(t, fsys, 1)
	h.write(1, 10)
	origin := ship.Origin{Incarnation: h.Incarnation(), Lanes: h.Lanes(), Begin: h.Begin()}
	h.Close()
	other := disk.NewMem()
	if err := Create(testOptions(other, 2), origin); err != nil {
		t.Fatal(err)
	}
	refusedAlone(t, other, 3, 0)
}
