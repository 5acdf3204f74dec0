package flow

import (
	"fmt"

	"github.com/mqrouter/mqrouter/replication/record"
)

// check compares what destinations have with what the origin has.
func (w *world) check() {
	w.src.mu.Lock()
	defer w.src.mu.Unlock()
	for _, id := range w.all {
		f := w.src.flows[id]
		for _, leg := range f.legs {
			w.checkLeg(f, leg)
		}
	}
}

// checkLeg checks: nothing lost (I1), nothing twice (I2), in order (I3), not in
// a forbidden city (I7), and one dead letter for each parked number. An origin
// that came back from an old copy has lost its dead letters with it.
func (w *world) checkLeg(f *memFlow, leg Leg) {
	sink := w.sinks[leg.Group]
	log, _ := sink.logOf(leg.Flow)
	name := fmt.Sprintf("%s to %s", FlowName(leg.Flow), leg.Group)
	type key struct {
		lineage record.LineageID
		number  uint64
	}
	seen, ids := map[key]landed{}, map[string]bool{}
	last := map[record.LineageID]uint64{}
	for _, e := range log {
		k := key{e.lineage, e.number}
		if _, twice := seen[k]; twice {
			w.fault("%s: number %d landed twice", name, e.number)
		}
		if e.id != "" && ids[e.id] {
			w.fault("%s: message %s landed twice", name, e.id)
		}
		if l, ok := last[e.lineage]; ok && e.number != l+1 {
			w.fault("%s: number %d landed after %d", name, e.number, l)
		}
		seen[k], ids[e.id], last[e.lineage] = e, true, e.number
	}
	for n := uint64(1); n <= f.head(); n++ {
		row, _ := markAt(f.lineage, n)
		v, err := record.Parse(f.records[n-1])
		if err != nil {
			w.fault("%s: %v", name, err)
			return
		}
		e, ok := seen[key{row.ID, n}]
		bad, free := string(v.Tag()) == "bad", v.MayEnter(leg.City)
		switch {
		case !ok:
			w.fault("%s: number %d is lost", name, n)
		case e.outcome == record.OutcomeGap && n < f.trimmed:
		case !free && (e.outcome != record.OutcomeSkipped || e.id != ""):
			w.fault("%s: number %d entered a forbidden city", name, n)
		case free && e.id != string(v.MessageID()):
			w.fault("%s: number %d is %q, not %q", name, n, e.id, v.MessageID())
		case free && bad != (e.outcome == record.OutcomeParked):
			w.fault("%s: number %d has outcome %d, bad %v", name, n, e.outcome, bad)
		}
		// A number once declared lost may still be parked later, by an old session
		// that comes back to a wiped store; its origin has told of the gap.
		excused := w.originRestored || n < f.trimmed
		if c := w.src.legs[leg].parked[n]; c > 1 || (c == 0 && !excused && ok && e.outcome == record.OutcomeParked) {
			w.fault("%s: number %d has %d dead letters", name, n, c)
		}
	}
}
