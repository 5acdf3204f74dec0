package raft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
)

// The file format of bbolt, version 2: pages of one size, the first two of which name
// the root. Numbers are little endian on every machine that this runs on.
const (
	boltMagic      = 0xED0CDAED
	boltVersion    = 2
	boltHead       = 16 // of a page, of an element, of the value of a bucket
	boltMetaSum    = 56 // bytes of a meta before its checksum
	boltBranch     = 0x01
	boltLeaf       = 0x02
	boltFreelist   = 0x10
	boltSubBucket  = 0x01 // flag of a leaf's element
	boltNoFreelist = ^uint64(0)
	boltDepth      = 32 // far above what a store of this size has
)

// boltMeta is what names the pages in use.
type boltMeta struct {
	pageSize          uint32
	root, list, pages uint64 // page numbers; pages is the first that is not in use
	tx                uint64
}

// boltFile is a bbolt file, read without trust.
type boltFile struct {
	r    io.ReaderAt
	size int64
	meta boltMeta
	seen map[uint64]bool // pages that something uses, or that are free
}

// checkPages reads a bbolt file before the library does, which maps the file into
// memory, follows what it finds there and reads somebody else's memory when a page is
// damaged. (Its own check runs in a goroutine that nothing can guard.) It looks at the
// structure only: what the values hold has checksums of its own. A file that is absent
// or empty is left to the library.
func checkPages(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	b := &boltFile{r: f, size: info.Size(), seen: map[uint64]bool{}}
	if info.Size() == 0 { // the library makes it
		return nil
	}
	if err := b.findMeta(); err != nil {
		return err
	}
	if err := b.freelist(); err != nil {
		return err
	}
	return b.walk(b.meta.root, span{}, 0)
}

// span is where the keys below an element lie: at or above from and below to; nil is
// no bound.
type span struct{ from, to []byte }

// findMeta takes the newer of the two metas. Both must be valid: the library would go
// back to the older one, and so to a vote that was forgotten. A crash leaves both valid,
// since a disk writes the sector that a meta is in as a whole.
func (b *boltFile) findMeta() error {
	first, err := b.metaAt(0)
	if err != nil {
		return err
	}
	second, err := b.metaAt(int64(first.pageSize))
	switch {
	case err != nil:
		return err
	case second.pageSize != first.pageSize:
		return errors.New("two sizes of pages")
	}
	b.meta = first
	if second.tx > first.tx {
		b.meta = second
	}
	return nil
}

func (b *boltFile) metaAt(at int64) (m boltMeta, err error) {
	p := make([]byte, boltHead+boltMetaSum+8)
	if _, err := b.r.ReadAt(p, at); err != nil {
		return m, err
	}
	p = p[boltHead:]
	le := binary.LittleEndian
	sum := fnv.New64a()
	sum.Write(p[:boltMetaSum])
	if le.Uint32(p) != boltMagic || le.Uint32(p[4:]) != boltVersion || le.Uint64(p[boltMetaSum:]) != sum.Sum64() {
		return m, fmt.Errorf("no valid head at byte %d", at)
	}
	m = boltMeta{pageSize: le.Uint32(p[8:]), root: le.Uint64(p[16:]), list: le.Uint64(p[32:]), pages: le.Uint64(p[40:]), tx: le.Uint64(p[48:])}
	if m.pageSize < 1<<10 || m.pageSize > 16<<20 {
		return m, fmt.Errorf("pages of %d bytes", m.pageSize)
	}
	return m, nil
}

// page reads a page and those that continue it.
func (b *boltFile) page(n uint64) ([]byte, error) {
	size := int64(b.meta.pageSize)
	if n < 2 || n >= b.meta.pages || n >= uint64(b.size/size) {
		return nil, fmt.Errorf("page %d is outside of the file", n)
	}
	head := make([]byte, boltHead)
	if _, err := b.r.ReadAt(head, int64(n)*size); err != nil {
		return nil, err
	}
	more := binary.LittleEndian.Uint32(head[12:])
	switch {
	case binary.LittleEndian.Uint64(head) != n:
		return nil, fmt.Errorf("page %d says that it is another one", n)
	case uint64(more) >= b.meta.pages-n || int64(more) >= b.size/size-int64(n):
		return nil, fmt.Errorf("page %d goes on outside of the file", n)
	}
	for i := n; i <= n+uint64(more); i++ {
		if err := b.use(i); err != nil {
			return nil, err
		}
	}
	p := make([]byte, (int64(more)+1)*size)
	_, err := b.r.ReadAt(p, int64(n)*size)
	return p, err
}

// use notes what a page is for.
func (b *boltFile) use(n uint64) error {
	if b.seen[n] {
		return fmt.Errorf("page %d is used twice", n)
	}
	b.seen[n] = true
	return nil
}

// freelist checks the page that lists the free ones.
func (b *boltFile) freelist() error {
	if b.meta.list == boltNoFreelist {
		return nil
	}
	p, err := b.page(b.meta.list)
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	count, ids := uint64(le.Uint16(p[10:])), p[boltHead:]
	if count == 0xFFFF && len(ids) >= 8 {
		count, ids = le.Uint64(ids), ids[8:]
	}
	if le.Uint16(p[8:]) != boltFreelist || count > uint64(len(ids)/8) {
		return fmt.Errorf("page %d is no list of free pages", b.meta.list)
	}
	for i := range count {
		id := le.Uint64(ids[8*i:])
		if id < 2 || id >= b.meta.pages {
			return fmt.Errorf("page %d lists a free page %d that is outside of the file", b.meta.list, id)
		}
		if err := b.use(id); err != nil {
			return err
		}
	}
	return nil
}

// walk checks a page and those below it.
func (b *boltFile) walk(n uint64, within span, depth int) error {
	if depth > boltDepth {
		return fmt.Errorf("page %d is too deep", n)
	}
	p, err := b.page(n)
	if err != nil {
		return err
	}
	return b.elements(n, p, within, depth)
}

// boltElement is an element of a page.
type boltElement struct {
	key, value []byte // value of a leaf
	sub        bool   // value is a bucket
	child      uint64 // page of a branch
}

// elements checks the elements of a page, which may stand in a value.
func (b *boltFile) elements(n uint64, p []byte, within span, depth int) error {
	list, err := parseElements(n, p)
	if err != nil {
		return err
	}
	for i, e := range list {
		below := span{e.key, within.to}
		if i+1 < len(list) {
			below.to = list[i+1].key
		}
		if within.from != nil && bytes.Compare(e.key, within.from) < 0 || below.to != nil && bytes.Compare(e.key, below.to) >= 0 {
			return fmt.Errorf("element %d of page %d is out of order", i, n)
		}
		switch {
		case e.child != 0:
			err = b.walk(e.child, below, depth+1)
		case e.sub:
			err = b.bucket(n, e.value, depth+1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func parseElements(n uint64, p []byte) ([]boltElement, error) {
	le := binary.LittleEndian
	kind, count := le.Uint16(p[8:]), int(le.Uint16(p[10:]))
	if kind != boltBranch && kind != boltLeaf || boltHead*(count+1) > len(p) || kind == boltBranch && count == 0 {
		return nil, fmt.Errorf("page %d has no elements like these", n)
	}
	list := make([]boltElement, count)
	for i := range list {
		b := p[boltHead*(i+1):]
		var flags, pos, key, value uint32
		if kind == boltBranch {
			pos, key, list[i].child = le.Uint32(b), le.Uint32(b[4:]), le.Uint64(b[8:])
		} else {
			flags, pos, key, value = le.Uint32(b), le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint32(b[12:])
		}
		if uint64(pos)+uint64(key)+uint64(value) > uint64(len(b)) || flags > boltSubBucket || key == 0 || kind == boltBranch && list[i].child == 0 {
			return nil, fmt.Errorf("element %d of page %d is none", i, n)
		}
		list[i].key, list[i].value, list[i].sub = b[pos:pos+key], b[pos+key:pos+key+value], flags == boltSubBucket
	}
	return list, nil
}

// bucket checks the value that stands for a bucket: where its root is, or its only page.
func (b *boltFile) bucket(n uint64, v []byte, depth int) error {
	switch {
	case depth > boltDepth || len(v) < boltHead:
		return fmt.Errorf("page %d has a damaged bucket", n)
	case binary.LittleEndian.Uint64(v) != 0:
		return b.walk(binary.LittleEndian.Uint64(v), span{}, depth)
	case len(v) < 2*boltHead:
		return fmt.Errorf("page %d has a bucket that is cut short", n)
	}
	return b.elements(n, v[boltHead:], span{}, depth)
}
