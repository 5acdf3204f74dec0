package bounds

// Usage is one reading of a queue or cap.
type Usage struct {
	Name  string // of the queue: room.thing, unique in a process; a metric's attribute
	Unit  string // of Depth and Limit: By, or what is counted, such as session
	Depth int64  // in it now
	Limit int64  // most that may be
	Full  uint64 // how often somebody found it full, since the start: refused, dropped or made to wait
}
