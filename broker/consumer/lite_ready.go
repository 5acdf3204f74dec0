package consumer

// leastStale is from how many message groups on that a client has listed and does not
// choose any more it is worth to look for them.
const leastStale = 64

// unlisted notes that a client has something listed that it does not choose any more.
// Whoever chooses and unchooses and never takes would have its list grow without end, so
// what is of no use is taken out when it may be half of it: each is paid for by one that
// was listed.
func (l *lite) unlisted(c *liteClient) {
	if c.stale++; c.stale < l.leastStale || 2*c.stale < len(c.ready)-c.first {
		return
	}
	seen := make(map[uint64]struct{}, len(c.groups))
	kept, passed := c.ready[:0], 0
	for i, key := range c.ready[c.first:] {
		_, again := seen[key]
		at, chosen := c.groups[key]
		if again || !chosen || at < l.chosen[key].free {
			continue
		}
		seen[key] = struct{}{}
		kept = append(kept, key)
		if c.first+i < c.passed {
			passed = len(kept)
		}
	}
	c.ready, c.first, c.passed, c.stale = kept, 0, passed, 0
}
