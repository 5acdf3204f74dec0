package broker

import "time"

// loop calls step after the time first, then whenever kick tells and when the time is
// over that step returned, until the broker closes or fails. kick may be nil. It waits
// for no time that is over already: in tests on simulated time with the race detector,
// several goroutines that read expired timers at once can end the process (Go 1.26).
func (b *Broker) loop(first time.Duration, kick <-chan struct{}, step func() time.Duration) {
	wake := time.NewTimer(farWake)
	defer wake.Stop()
	for wait := first; ; wait = step() {
		if wait <= 0 {
			if b.ctx.Err() != nil || b.failure() != nil {
				return
			}
			continue
		}
		wake.Reset(wait)
		select {
		case <-b.ctx.Done():
			return
		case <-b.failed:
			return
		case <-kick:
		case <-wake.C:
		}
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
