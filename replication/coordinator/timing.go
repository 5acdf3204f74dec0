package coordinator

import (
	"errors"
	"fmt"
	"time"
)

// Timing holds the times of leases and elections. A zero field takes the default.
type Timing struct {
	// Lease is how long a master may answer after it asked; default 1.5 s. A dead
	// master is missed for so long.
	Lease time.Duration
	// Renew is how often every member tells where it stands; default 400 ms: a lease
	// survives two lost requests.
	Renew time.Duration
	// Margin is what the coordinator waits beyond a lease, for clocks that do not run
	// at one rate; default 200 ms. Two clocks may then differ in rate by more than one
	// part in ten, a hundred times what unsynchronized hardware does.
	Margin time.Duration
	// Settle is how long an election waits for those in sync that have not answered,
	// once enough have; default 250 ms.
	Settle time.Duration
}

// WithDefaults returns t with its zero fields filled.
func (t Timing) WithDefaults() Timing {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&t.Lease, 1500*time.Millisecond)
	set(&t.Renew, 400*time.Millisecond)
	set(&t.Margin, 200*time.Millisecond)
	set(&t.Settle, 250*time.Millisecond)
	return t
}

// Over is how long after a lease of the given length was granted, or a longer one of
// these times, no clock that is within the margin takes it for valid. The margin grows
// with the lease.
func (t Timing) Over(lease time.Duration) time.Duration {
	if lease <= t.Lease {
		return t.Lease + t.Margin
	}
	return lease + time.Duration(float64(t.Margin)*float64(lease)/float64(t.Lease))
}

// grant is how long a lease may be in an epoch whose term says how long any may have
// been; 0 = it does not say.
func (t Timing) grant(leased time.Duration) time.Duration {
	if leased == 0 || leased > t.Lease {
		return t.Lease
	}
	return leased
}

// renewEach is how often to renew a lease of the length that was granted, which may be
// shorter than these times have it.
func (t Timing) renewEach(granted time.Duration) time.Duration {
	return min(t.Renew, time.Duration(float64(t.Renew)*float64(granted)/float64(t.Lease)))
}

// Validate reports every fault, joined; defaults are filled first.
func (t Timing) Validate() error {
	t = t.WithDefaults()
	var errs []error
	if t.Lease < 100*time.Millisecond || t.Lease > time.Minute {
		errs = append(errs, fmt.Errorf("coordinator: lease %s: want 100ms to 1m", t.Lease))
	}
	if t.Renew <= 0 || t.Renew > t.Lease/2 {
		errs = append(errs, fmt.Errorf("coordinator: renewal each %s: want at most half of the lease, %s", t.Renew, t.Lease))
	}
	if t.Margin < t.Lease/50 {
		errs = append(errs, fmt.Errorf("coordinator: margin %s: want at least a fiftieth of the lease, %s", t.Margin, t.Lease))
	}
	if t.Settle < 0 {
		errs = append(errs, errors.New("coordinator: a negative time to settle"))
	}
	return errors.Join(errs...)
}
