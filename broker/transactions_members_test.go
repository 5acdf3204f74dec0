package broker

import (
	"testing"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// A commit is worth what a send to its topic is: it is refused while fewer members are
// in sync than the topic asks for, before anything is stored; one that was under way
// when a member went is not acknowledged, nor when it is asked for again, until there
// are as many again. A rollback needs no copies.
func TestACommitIsWorthAsManyCopiesAsASend(t *testing.T) {
	a := openMember(t, disk.NewMem(), txSample(t, lateTerms), testLimits())
	a.promote(1)
	l := newLink(a)
	a.answers()
	t.Cleanup(func() { l.close() })
	a.view.Load().topo.FindTopic("pay").MinInSync = 2
	a.inSync.Store(2)
	kept, dropped := a.half("pay", "kept"), a.half("pay", "dropped")

	a.inSync.Store(1)
	end := a.Log().End()
	wantKind(t, "a commit with one copy", a.end("pay", kept, ResolutionCommit), KindInSync)
	if a.Log().End() != end {
		t.Error("a refused commit was written")
	}
	wantKind(t, "a rollback with one copy", a.end("pay", dropped, ResolutionRollback), 0)

	a.inSync.Store(2)
	l.close() // nothing commits
	answer, written := make(chan Kind, 1), a.Log().Synced()
	go func() { answer <- KindOf(a.EndTransaction(t.Context(), "pay", kept, ResolutionCommit)) }()
	for a.Log().Synced() == written {
	}
	a.inSync.Store(1)
	a.Log().Commit(a.Log().Synced())
	wantKind(t, "a commit whose second copy went", <-answer, KindUnconfirmed)
	l = newLink(a)
	wantKind(t, "the commit again with one copy", a.end("pay", kept, ResolutionCommit), KindInSync)
	if got := a.drain(billing, "pay"); len(got) != 1 {
		t.Errorf("delivered %v", got)
	}
	a.inSync.Store(2)
	wantKind(t, "the commit again with two", a.end("pay", kept, ResolutionCommit), 0)
	if got := a.drain(billing, "pay"); len(got) != 0 {
		t.Errorf("delivered again: %v", got)
	}
}
