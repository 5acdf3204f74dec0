package memory

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/zone"
)

// Book is a coordinator.Book in memory. Several offices may follow one another on it;
// only the newest Tenant decides. The zero value is an empty book.
type Book struct {
	mu      sync.Mutex
	terms   map[zone.Group]coordinator.Term // guarded by mu
	changed chan struct{}                   // closed and replaced at a change; nil = nobody waits; guarded by mu
	tenant  uint64                          // the one who decides; guarded by mu
}

// Tenant is a Book as one process has it.
type Tenant struct {
	book *Book
	id   uint64
}

var _ coordinator.Book = (*Tenant)(nil)

// TakeOver makes the caller the one who decides; the tenant before does not any more.
func (b *Book) TakeOver() *Tenant {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tenant++
	return &Tenant{book: b, id: b.tenant}
}

// Evict leaves the book without anybody who decides.
func (b *Book) Evict() { b.TakeOver() }

// Term implements coordinator.Book.
func (t *Tenant) Term(group zone.Group) coordinator.Term {
	t.book.mu.Lock()
	defer t.book.mu.Unlock()
	return t.book.terms[group]
}

// Terms implements coordinator.Book.
func (t *Tenant) Terms() []coordinator.Term {
	t.book.mu.Lock()
	defer t.book.mu.Unlock()
	var all []coordinator.Term
	for _, x := range t.book.terms {
		all = append(all, x)
	}
	slices.SortFunc(all, func(x, y coordinator.Term) int { return strings.Compare(string(x.Group), string(y.Group)) })
	return all
}

// Put implements coordinator.Book.
func (t *Tenant) Put(_ context.Context, x coordinator.Term) error {
	b := t.book
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case t.id != b.tenant:
		return &coordinator.Error{Op: "put", Group: x.Group, Kind: coordinator.KindNoQuorum, Text: "another process has taken over"}
	case b.terms[x.Group].Version+1 != x.Version:
		return &coordinator.Error{Op: "put", Group: x.Group, Kind: coordinator.KindStaleVersion}
	case b.terms == nil:
		b.terms = map[zone.Group]coordinator.Term{}
	}
	b.terms[x.Group] = x.Clone()
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
	return nil
}

// Confirm implements coordinator.Book.
func (t *Tenant) Confirm(context.Context) error {
	t.book.mu.Lock()
	defer t.book.mu.Unlock()
	if t.id != t.book.tenant {
		return &coordinator.Error{Op: "confirm", Kind: coordinator.KindNoQuorum, Text: "another process has taken over"}
	}
	return nil
}

// Changed implements coordinator.Book.
func (t *Tenant) Changed() <-chan struct{} {
	t.book.mu.Lock()
	defer t.book.mu.Unlock()
	if t.book.changed == nil {
		t.book.changed = make(chan struct{})
	}
	return t.book.changed
}
