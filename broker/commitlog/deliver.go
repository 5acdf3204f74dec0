package commitlog

// deliverDepth is how many notes may wait for the deliverer. It lets one or two
// writes run ahead of a slow Deliver; then the writer waits, and with it, by the
// bounded queue, the publishers.
const deliverDepth = 4

// note tells the deliverer about a group.
type note struct {
	group *group
	early bool // written, not yet durable: only buffered batches are told
}

// deliver calls Deliver and Done in the order of the log until notes is closed.
func (l *Log) deliver() {
	var c Committed
	for n := range l.notes {
		g := n.group
		switch {
		case n.early:
			for _, b := range g.batches {
				if b.Buffered {
					b.buffered = true
					done(b, nil)
				}
			}
			continue
		case g.err == nil:
			c = Committed{Entries: g.entries, Batches: g.batches, End: g.end}
			l.options.Deliver(&c)
		}
		for _, b := range g.batches {
			if !b.buffered {
				done(b, g.err)
			}
		}
		l.recycle(g)
	}
}

func done(b *Batch, err error) {
	if b.Done != nil {
		b.Done(b, err)
	}
}

// recycle gives the group's slices back to the writer; the buffer belongs to
// whoever still points to it.
func (l *Log) recycle(g *group) {
	clear(g.batches)
	clear(g.entries)
	*g = group{batches: g.batches[:0], entries: g.entries[:0]}
	select {
	case l.free <- g:
	default:
	}
}
