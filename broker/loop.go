package broker

import "time"

// loop calls step after the time first, then whenever kick tells and when the time is
// over that step returned, until the broker closes or fails. kick may be nil.
func (b *Broker) loop(first time.Duration, kick <-chan struct{}, step func() time.Duration) {
	wake := time.NewTimer(first)
	defer wake.Stop()
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-b.failed:
			return
		case <-kick:
		case <-wake.C:
		}
		wake.Reset(step())
	}
}

// pause waits; false when the broker closes meanwhile.
func (b *Broker) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-b.ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
