package commitlog

import (
	"fmt"
	"path"
	"time"
)

// probeEvery is how often a full disk is tried again.
const probeEvery = time.Second

// prepare keeps a spare segment allocated. When that fails appends are refused
// (the segment in use is the reserve) and it tries again each second.
func (l *Log) prepare() {
	var again <-chan time.Time // nil: nothing to try
	have := false              // the spare file is the writer's to take, or taken and not yet renamed
	for {
		select {
		case <-l.used:
			have = false
		case <-l.needed:
			if have {
				// The writer met a full disk elsewhere; a probe would tell
				// nothing, so give it time.
				again = time.After(probeEvery)
				continue
			}
		case <-again:
		case <-l.quit:
			l.dropSpare()
			return
		}
		again = nil
		if !have {
			if have = l.makeSpare(); !have {
				again = time.After(probeEvery)
				continue
			}
		}
		if l.queue.refuse(nil) {
			l.options.Logger.Info("commit log takes appends again")
		}
	}
}

func (l *Log) makeSpare() bool {
	f, err := newSpare(l.options.FS, l.options.Dir, l.options.SegmentBytes)
	if err != nil {
		if l.queue.refuse(fmt.Errorf("%w: %w", ErrFull, err)) {
			l.options.Logger.Error("commit log refuses appends: no room for a segment", "err", err)
		}
		signal(l.missing)
		return false
	}
	l.spares <- f // there is room: the writer has none and this is the only maker
	return true
}

func (l *Log) dropSpare() {
	select {
	case f := <-l.spares:
		f.Close()
		// Open removes it as well.
		_ = l.options.FS.Remove(path.Join(l.options.Dir, spareName))
	default:
	}
}
