package link

// open opens a session's stream on the connection with the fewest of this end's:
// an extra one if there is any, else the link's own.
func (l *link) open(number uint64) (*Session, error) {
	var s *Session
	err := ErrNoLink
	if carriers := l.carriers.Load(); carriers != nil {
		var tried [maxCarriers]bool
		for range *carriers {
			i := emptiest(*carriers, &tried)
			if s, err = (*carriers)[i].open(number); err == nil {
				return s, nil
			}
			tried[i] = true // full, or just lost
		}
		return nil, err
	}
	if c := l.current.Load(); c != nil {
		return c.open(number)
	}
	return nil, err
}

// maxCarriers bounds the extra connections of a link that take sessions: as many
// as each end may want.
const maxCarriers = 3 * MaxParallel

// emptiest returns the index of the connection with the fewest sessions of this
// end, of those that were not tried.
func emptiest(all []*conn, tried *[maxCarriers]bool) int {
	best := -1
	for i, c := range all {
		if !tried[i] && (best < 0 || c.opened.Load() < all[best].opened.Load()) {
			best = i
		}
	}
	return best
}

// publishCarriers shows the others which connections take sessions.
func (l *link) publishCarriers() {
	var list []*conn
	l.machine.carriers(func(id uint64) {
		if c := l.conns[id]; c != nil {
			list = append(list, c)
		}
	})
	if len(list) == 0 {
		if l.carriers.Swap(nil) != nil {
			l.spread()
		}
		return
	}
	before := l.carriers.Swap(&list)
	if before == nil || len(*before) != len(list) {
		l.spread()
	}
}

// spread notes for each connection how many of this end's sessions would do
// better on another: all of those on one that takes no new sessions (it is retired,
// or its peer's address of before), and what one
// has more than its share.
func (l *link) spread() {
	carriers := l.carriers.Load()
	if carriers == nil {
		own := l.current.Load()
		for _, c := range l.conns {
			c.toMove.Store(0)
			if own != nil && c != own {
				c.toMove.Store(c.opened.Load())
			}
		}
		return
	}
	var total, least int64
	for i, c := range *carriers {
		n := c.opened.Load()
		total += n
		if i == 0 || n < least {
			least = n
		}
	}
	takes := make(map[*conn]bool, len(*carriers))
	share := (total + int64(len(*carriers)) - 1) / int64(len(*carriers))
	for _, c := range *carriers {
		takes[c] = true
		n := c.opened.Load()
		c.toMove.Store(0)
		if n-least >= 2 {
			c.toMove.Store(max(n-share, 0))
		}
	}
	for _, c := range l.conns {
		if !takes[c] {
			c.toMove.Store(c.opened.Load())
		}
	}
}

// Displaced reports whether the session would do better if it were closed and
// opened again: its connection takes no new sessions while others do, or has more
// of them than its share. It says so once for each session that should move, so
// ask only for one that can move now, and then move it.
func (s *Session) Displaced() bool {
	for {
		n := s.conn.toMove.Load()
		if n <= 0 {
			return false
		}
		if s.conn.toMove.CompareAndSwap(n, n-1) {
			return true
		}
	}
}
