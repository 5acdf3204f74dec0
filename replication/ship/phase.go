package ship

// Phase says what a replica counts for at its master.
type Phase uint8

// The phases.
const (
	PhaseAbsent Phase = iota // it has no session
	PhaseAsync               // it catches up; nothing waits for it
	PhaseSemi                // it is close, and proposed for the set: acknowledgements wait for it, for a bounded time
	PhaseSync                // it is in the in-sync set: acknowledgements wait for it until it has left the set
)

var phaseNames = [...]string{PhaseAbsent: "absent", PhaseAsync: "async", PhaseSemi: "semi-sync", PhaseSync: "sync"}

// String returns the form used in logs, metrics and status.
func (p Phase) String() string {
	if int(p) < len(phaseNames) {
		return phaseNames[p]
	}
	return "unknown"
}

// Fault says why a replica is not, or not to stay, in the in-sync set.
type Fault uint8

// The faults.
const (
	FaultNone      Fault = iota
	FaultNotNamed        // the topology does not name it as a member
	FaultNotCome         // it has not come to this master
	FaultGone            // it has no session
	FaultSilent          // its session brings nothing
	FaultSlow            // it does not make durable in time what is written
	FaultRegressed       // it lacks what it had acknowledged
)

var faultNames = [...]string{
	FaultNone: "none", FaultNotNamed: "not-named", FaultNotCome: "not-come", FaultGone: "gone", FaultSilent: "silent",
	FaultSlow: "slow", FaultRegressed: "regressed",
}

// String returns the form used in logs, metrics and status.
func (f Fault) String() string {
	if int(f) < len(faultNames) {
		return faultNames[f]
	}
	return "unknown"
}

// faults returns all of them but FaultNone.
func faults() []Fault {
	return []Fault{FaultNotNamed, FaultNotCome, FaultGone, FaultSilent, FaultSlow, FaultRegressed}
}
