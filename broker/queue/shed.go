package queue

// Shed lets go of the entries in memory; they are read from files from then on.
// It does nothing while some of them are not flushed. An index that is appended
// to seldom costs a few hundred bytes then. Writer only.
func (x *Index) Shed() {
	if !x.recovered || x.waiting || x.flushed != x.next.Load() || len(x.view.Load().tail) == 0 {
		return
	}
	v := *x.view.Load()
	v.tail, v.start = nil, x.flushed
	x.current, x.fill = nil, 0
	x.view.Store(&v)
}

// ShedIdle sheds the indexes that were not appended to since it last looked: what
// a queue had in memory while it was busy is not kept for ever. Writer only.
func (s *Store) ShedIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.indexes {
		next := x.next.Load()
		if x.looked == next {
			x.Shed()
		}
		x.looked = next
	}
}
