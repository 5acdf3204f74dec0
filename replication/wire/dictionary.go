package wire

// MaxDictionary bounds the content of a dictionary, in bytes. What a dictionary
// gains does not grow with it for batches of a few records, what it costs does.
const MaxDictionary = 16 << 10

// minDictionary is the size of a dictionary's magic number and id, bytes.
const minDictionary = 8

// Dictionary brings what later batches of its session are compressed with. It goes
// only to a destination whose Accept takes dictionaries, which keeps as many as it
// said there: the newest of the session.
//
//	id (4), content (blob)
type Dictionary struct {
	ID      uint32 // as Batch names it; not 0
	Content []byte // in the form of zstd, RFC 8878 section 5, whose id is ID too
}

// Append appends the payload to dst.
func (d *Dictionary) Append(dst []byte) []byte {
	dst = le.AppendUint32(dst, d.ID)
	return appendBlob(dst, d.Content)
}

// ParseDictionary parses a payload. Content is a part of b, not a copy.
func ParseDictionary(b []byte) (Dictionary, error) {
	r := reader{typ: TypeDictionary, b: b}
	d := Dictionary{ID: r.u32("id"), Content: r.blob("content", MaxDictionary)}
	if r.err == nil && (d.ID == 0 || len(d.Content) < minDictionary || le.Uint32(d.Content[4:]) != d.ID) {
		r.fail("id", errRange)
	}
	return d, r.done()
}
