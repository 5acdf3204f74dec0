package record

import "strconv"

var outcomeNames = [...]string{
	OutcomeLanded: "landed", OutcomeParked: "parked", OutcomeMoved: "moved", OutcomeSkipped: "skipped", OutcomeGap: "gap",
}

// String returns a word for spans, logs and tables.
func (o Outcome) String() string {
	if o == 0 || int(o) >= len(outcomeNames) {
		return "outcome-" + strconv.Itoa(int(o))
	}
	return outcomeNames[o]
}
