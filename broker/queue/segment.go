package queue

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"strconv"
	"strings"

	"github.com/mqrouter/mqrouter/replication/record"
)

// The sizes of the format, in bytes; see the package comment.
const (
	headerSize = 512
	entrySize  = 20
	labelShift = 56  // bits of an entry's position below its label
	maxName    = 400 // longest name of an index: its place in the header

	offVersion = 8
	offEntry   = 10
	offNameLen = 12
	offFirst   = 16
	offName    = 24
	offSum     = 508
)

const (
	magic         = "MQINDEX\n"
	formatVersion = 1
	suffix        = ".idx"
	// maxLabel bounds the readable part of a file name: with digest and number
	// it stays far below the 255 bytes that file systems allow.
	maxLabel = 64
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// segment is one file of an index. It is immutable, but for the store's note
// whether it is to be synced.
type segment struct {
	owner *Index
	first uint64
	path  string
	dirty bool // guarded by Store.dirtyMu
}

// offset returns where the entry of a number lies in the file.
func (s *segment) offset(number uint64) int64 { return headerSize + entrySize*int64(number-s.first) }

// appendHeader appends the header of a segment.
func appendHeader(dst []byte, name string, first uint64) []byte {
	at := len(dst)
	dst = append(dst, make([]byte, headerSize)...)
	h := dst[at:]
	copy(h, magic)
	binary.LittleEndian.PutUint16(h[offVersion:], formatVersion)
	binary.LittleEndian.PutUint16(h[offEntry:], entrySize)
	binary.LittleEndian.PutUint16(h[offNameLen:], uint16(len(name)))
	binary.LittleEndian.PutUint64(h[offFirst:], first)
	copy(h[offName:], name)
	binary.LittleEndian.PutUint32(h[offSum:], crc32.Checksum(h[:offSum], castagnoli))
	return dst
}

// parseHeader returns what a header says, or why it is none (reason not empty).
func parseHeader(h []byte) (name string, first uint64, reason string) {
	switch {
	case len(h) < headerSize:
		return "", 0, "header is cut short"
	case string(h[:len(magic)]) != magic:
		return "", 0, "not an index segment"
	case binary.LittleEndian.Uint32(h[offSum:]) != crc32.Checksum(h[:offSum], castagnoli):
		return "", 0, "header checksum differs"
	case binary.LittleEndian.Uint16(h[offVersion:]) != formatVersion:
		return "", 0, "unknown version"
	case binary.LittleEndian.Uint16(h[offEntry:]) != entrySize:
		return "", 0, "unknown entry size"
	}
	n := int(binary.LittleEndian.Uint16(h[offNameLen:]))
	if n == 0 || n > maxName {
		return "", 0, "bad name"
	}
	return string(h[offName : offName+n]), binary.LittleEndian.Uint64(h[offFirst:]), ""
}

// putEntry writes the entry of a number.
func putEntry(b []byte, number uint64, e Entry) {
	_ = b[entrySize-1]
	binary.LittleEndian.PutUint64(b, uint64(e.Position)|uint64(e.Label)<<labelShift)
	binary.LittleEndian.PutUint32(b[8:], e.Size)
	binary.LittleEndian.PutUint32(b[12:], e.Hash)
	binary.LittleEndian.PutUint32(b[16:], entrySum(b, number))
}

// getEntry reads the entry of a number; ok is false when it is empty or is not
// what was written for that number.
func getEntry(b []byte, number uint64) (e Entry, ok bool) {
	_ = b[entrySize-1]
	at := binary.LittleEndian.Uint64(b)
	e = Entry{
		Position: record.Position(at & uint64(MaxPosition)),
		Label:    uint8(at >> labelShift),
		Size:     binary.LittleEndian.Uint32(b[8:]),
		Hash:     binary.LittleEndian.Uint32(b[12:]),
	}
	return e, e.Size != 0 && binary.LittleEndian.Uint32(b[16:]) == entrySum(b, number)
}

// entrySum is the CRC32C of an entry and its number. The number's eight bytes go
// through the table: crc32.Update would make them escape, for every entry.
func entrySum(b []byte, number uint64) uint32 {
	sum := ^crc32.Checksum(b[:16], castagnoli)
	for range 8 {
		sum = castagnoli[byte(sum)^byte(number)] ^ sum>>8
		number >>= 8
	}
	return ^sum
}

// baseName returns the part of the file names that all segments of an index
// share. Upper case is folded and the digest tells names apart, since some
// file systems do not tell case apart; topic names may hold "%" and "|".
func baseName(name string) string {
	label := make([]byte, 0, maxLabel)
	for i := 0; i < len(name) && len(label) < maxLabel; i++ {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-':
			label = append(label, c)
		case 'A' <= c && c <= 'Z':
			label = append(label, c-'A'+'a')
		default:
			label = append(label, '_')
		}
	}
	sum := sha256.Sum256([]byte(name))
	return string(label) + "." + hex.EncodeToString(sum[:16])
}

func fileName(base string, first uint64) string {
	n := strconv.FormatUint(first, 10)
	return base + "." + strings.Repeat("0", 20-len(n)) + n + suffix
}

// parseFileName splits the name of a segment's file; ok is false for others.
func parseFileName(file string) (base string, first uint64, ok bool) {
	stem, ok := strings.CutSuffix(file, suffix)
	if !ok {
		return "", 0, false
	}
	dot := strings.LastIndexByte(stem, '.')
	if dot < 0 || len(stem)-dot-1 != 20 {
		return "", 0, false
	}
	first, err := strconv.ParseUint(stem[dot+1:], 10, 64)
	if err != nil || fileName(stem[:dot], first) != file {
		return "", 0, false
	}
	return stem[:dot], first, true
}
