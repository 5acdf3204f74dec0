package broadcast

import (
	"fmt"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// GapKind says why changes may be missing.
type GapKind uint8

// The kinds of gaps.
const (
	// GapFirstStart: the cache has applied nothing yet. What is older than the
	// log is to be filled from the source; nothing that is cached is wrong.
	GapFirstStart GapKind = iota + 1
	// GapTrimmed: the landings from the cache's place on are no longer kept.
	GapTrimmed
	// GapNumbers: numbers of an origin never landed here.
	GapNumbers
	// GapDamaged: a landing cannot be read; it is damaged, or of a newer version.
	GapDamaged
	// GapDeclared: numbers of an origin were declared lost for this city, by the
	// origin whose backlog passed its budget or no longer had them, or were such
	// that they cannot land here.
	GapDeclared
)

var gapNames = [...]string{GapFirstStart: "first start", GapTrimmed: "landings trimmed", GapNumbers: "numbers missing", GapDamaged: "landing not readable", GapDeclared: "numbers declared lost"}

// String returns the kind in words.
func (k GapKind) String() string {
	if k == 0 || int(k) >= len(gapNames) {
		return fmt.Sprintf("gap-%d", uint8(k))
	}
	return gapNames[k]
}

// Gap tells that a cache may have missed changes.
type Gap struct {
	Kind    GapKind
	Topic   zone.Topic
	Flow    record.FlowID // GapNumbers and GapDeclared only
	Missing Range         // of numbers of the flow (GapNumbers, GapDeclared), else of offsets counted from 1; the zero value is unknown
	Flushed bool          // every value was dropped, so that nothing stale is left
	At      time.Time
}

// String says it for people.
func (g Gap) String() string {
	switch g.Kind {
	case GapNumbers, GapDeclared:
		return fmt.Sprintf("%s: %d to %d of %s", g.Kind, g.Missing.First, g.Missing.Through, g.Flow.Origin)
	case GapDamaged:
		return fmt.Sprintf("%s: offset %d", g.Kind, g.Missing.First-1)
	case GapTrimmed:
		if n := g.Missing.Len(); n > 0 {
			return fmt.Sprintf("%s: %d", g.Kind, n)
		}
	}
	return g.Kind.String()
}

// Stale reports whether values that are cached may be out of date.
func (g Gap) Stale() bool { return g.Kind != GapFirstStart }

// anyStore stands for the incarnation of a store that no landing group has: a
// reader that comes from there is given everything that is still kept.
const anyStore = ^record.Incarnation(0)

// wanted returns what to ask the landing group for.
func wanted(p Place) (record.Incarnation, uint64) {
	if p.Empty() {
		return anyStore, 0
	}
	return p.Incarnation, p.Offset
}

// begin decides, from where the cache stands and what the landing group
// answers, what is missing before the first landing that will come. Another
// store of the landing group (or another group) is read from its beginning; the
// marks tell what is missing there, if every number of the channel belongs to
// the topic.
func begin(p Place, f *wire.Found, exclusive bool) (Gap, bool) {
	switch {
	case p.Empty():
		return Gap{Kind: GapFirstStart}, true
	case p.Incarnation == f.Incarnation && f.Next > p.Offset:
		return Gap{Kind: GapTrimmed, Missing: Range{p.Offset + 1, f.Next}}, true
	case p.Incarnation != f.Incarnation && (f.Next > 0 || !exclusive):
		return Gap{Kind: GapTrimmed}, true
	}
	return Gap{}, false
}
