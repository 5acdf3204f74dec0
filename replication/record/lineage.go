package record

// LineageStart is a row of a log's lineage table: positions from First up to the
// next row's First belong to the lineage. A table is ascending in Epoch and in
// First; epochs may leave holes, and a lineage that was given up before its first
// entry has the same First as the next.
type LineageStart struct {
	Epoch uint64
	ID    LineageID // random
	First Position
}
