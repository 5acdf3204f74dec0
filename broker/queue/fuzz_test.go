package queue

import (
	"testing"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// FuzzStore opens a folder in which one file of an index has other bytes at some
// place, and one is there that nobody wrote. Whatever they are, recovering ends,
// and what is read is what was appended, or an error.
func FuzzStore(f *testing.F) {
	header := appendHeader(nil, "orders", 0)
	f.Add(header, uint16(0), "", []byte{})
	f.Add([]byte{0xff}, uint16(headerSize+3), fileName(baseName("orders"), 4), header)
	f.Add([]byte{}, uint16(headerSize+2*entrySize), fileName(baseName("orders"), 12), appendHeader(nil, "orders", 12))
	f.Add(make([]byte, 64), uint16(headerSize), "orders.idx", []byte("x"))
	f.Add(appendHeader(nil, "others", 0), uint16(0), fileName(baseName("others"), 1<<63), appendHeader(nil, "others", 1<<63))
	f.Fuzz(func(t *testing.T, b []byte, at uint16, name string, content []byte) {
		mem := disk.NewMem()
		o := Options{FS: mem, Dir: "/q", SegmentEntries: 4}
		s := open(t, o)
		fill(t, index(t, s, "orders"), 10)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		overwrite(t, mem, "/q/"+fileName(baseName("orders"), 4), b[:min(len(b), 1<<10)], int64(at%1024))
		if _, _, ok := parseFileName(name); ok && len(name) < 200 {
			file, err := mem.Create("/q/" + name)
			if err != nil {
				return
			}
			if _, err := file.WriteAt(content, 0); err != nil {
				t.Fatal(err)
			}
			file.Close()
		}
		s, err := Open(o)
		if err != nil {
			return
		}
		defer s.Close()
		if err := s.Recover(map[string]uint64{"orders": 10}); err != nil {
			_, _ = s.Damaged(map[string]uint64{"orders": 10})
			_ = s.Recover(nil)
			return
		}
		x, err := s.Index("orders")
		if err != nil {
			return
		}
		for n := x.First(); n < min(x.Next(), x.First()+64); n++ {
			if e, err := x.Get(n); err == nil && n < 10 && name == "" && e != entry(n) {
				t.Errorf("entry %d is %+v, want %+v", n, e, entry(n))
			}
		}
		_, _, _ = x.Search(5)
	})
}

func overwrite(t *testing.T, fs disk.FS, path string, b []byte, at int64) {
	t.Helper()
	file, err := fs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}
