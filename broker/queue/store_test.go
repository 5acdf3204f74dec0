package queue

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mqrouter/mqrouter/internal/disk"
)

func TestStoreListsAndDeletes(t *testing.T) {
	mem := disk.NewMem()
	s := open(t, Options{FS: mem, Dir: "/q"})
	names := []string{"%DLQ%group|1", "Orders", "orders", "flow/a/b"}
	for _, n := range names {
		fill(t, index(t, s, n), 5)
	}
	slices.Sort(names)
	for range 2 {
		if got, err := s.List(); err != nil || !slices.Equal(got, names) {
			t.Fatalf("lists %q, %v", got, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, Options{FS: mem, Dir: "/q"})
	}
	x := index(t, s, "orders")
	check(t, x, 0, 5)
	if err := s.Delete("orders"); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Get(0); !errors.Is(err, ErrClosed) {
		t.Errorf("get: %v", err)
	}
	if _, err := x.Append(entry(5)); !errors.Is(err, ErrClosed) {
		t.Errorf("append: %v", err)
	}
	if err := s.Delete("never was"); err != nil {
		t.Error(err)
	}
	check(t, index(t, s, "orders"), 0, 0)
	fill(t, index(t, s, "orders"), 7)
	if err := s.Flush(); err != nil {
		t.Error(err)
	}
	check(t, index(t, s, "orders"), 0, 7)
}

func TestStoreRefusesBadNames(t *testing.T) {
	s := open(t, Options{FS: disk.NewMem(), Dir: "/q"})
	var bad *NameError
	for _, n := range []string{"", strings.Repeat("x", maxName+1)} {
		if _, err := s.Index(n); !errors.As(err, &bad) {
			t.Errorf("name of %d bytes: %v", len(n), err)
		}
	}
	if _, err := s.Index(strings.Repeat("x", maxName)); err != nil {
		t.Error(err)
	}
	s.Close()
	if _, err := s.Index("x"); !errors.Is(err, ErrClosed) {
		t.Errorf("after close: %v", err)
	}
}

// counting counts the files that are open.
type counting struct {
	disk.FS
	mu        sync.Mutex
	open, max int
}

type countedFile struct {
	disk.File
	c *counting
}

func (c *counting) counted(f disk.File, err error) (disk.File, error) {
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open++
	c.max = max(c.max, c.open)
	return &countedFile{f, c}, nil
}

func (c *counting) Open(name string) (disk.File, error)   { return c.counted(c.FS.Open(name)) }
func (c *counting) Create(name string) (disk.File, error) { return c.counted(c.FS.Create(name)) }

func (f *countedFile) Close() error {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	f.c.open--
	return f.File.Close()
}

func TestDescriptorsAreCapped(t *testing.T) {
	c := &counting{FS: disk.NewMem()}
	s := open(t, Options{FS: c, Dir: "/q", SegmentEntries: 30, TailEntries: 10, MaxOpenFiles: 8})
	for round := range uint64(3) {
		for i := range 40 {
			fill(t, index(t, s, fmt.Sprint("q", i)), 100*(round+1))
		}
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 40 {
				x, err := s.Index(fmt.Sprint("q", (i+g*7)%40))
				if err != nil {
					t.Error(err)
					return
				}
				for n := uint64(0); n < 300; n += 17 {
					if e, err := x.Get(n); err != nil || e != entry(n) {
						t.Errorf("get %d: %+v, %v", n, e, err)
					}
				}
			}
		})
	}
	if err := s.Flush(); err != nil {
		t.Error(err)
	}
	if err := s.Sync(t.Context()); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if c.max > 8+6 { // those in use at one time, and the one just opened, come on top
		t.Errorf("%d files were open at one time", c.max)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if c.open != 0 {
		t.Errorf("%d files are left open", c.open)
	}
}

func TestHeaderBytesNeverChange(t *testing.T) {
	h := appendHeader(nil, "orders", 0x0102030405060708)
	want := "MQINDEX\n" + "\x01\x00" + "\x14\x00" + "\x06\x00" + "\x00\x00" + "\x08\x07\x06\x05\x04\x03\x02\x01" + "orders"
	if len(h) != 512 || string(h[:len(want)]) != want || strings.Trim(string(h[len(want):508]), "\x00") != "" {
		t.Fatalf("header is %q", h)
	}
	if sum := fmt.Sprintf("%x", h[508:]); sum != headerSum {
		t.Errorf("checksum is %s", sum)
	}
	name, first, reason := parseHeader(h)
	if name != "orders" || first != 0x0102030405060708 || reason != "" {
		t.Errorf("parses as %q, %d, %s", name, first, reason)
	}
	for i := range h {
		bad := slices.Clone(h)
		bad[i] ^= 0x10
		if _, _, reason := parseHeader(bad); reason == "" {
			t.Errorf("a changed byte %d goes unnoticed", i)
		}
		if _, _, reason := parseHeader(h[:i]); reason == "" {
			t.Errorf("%d bytes parse", i)
		}
	}
	var b [entrySize]byte
	wrote := Entry{Position: 0x02030405060708, Label: 1, Size: 0x11121314, Hash: 0x21222324}
	putEntry(b[:], 77, wrote)
	if got := fmt.Sprintf("%x", b); got != "08070605040302011413121124232221"+entryGolden {
		t.Errorf("entry is %s", got)
	}
	if e, ok := getEntry(b[:], 77); e != wrote || !ok {
		t.Error("entry is not read back")
	}
	if _, ok := getEntry(b[:], 78); ok {
		t.Error("an entry passes for the one of another number")
	}
	for i := range 8 * entrySize {
		bad := b
		bad[i/8] ^= 1 << (i % 8)
		if _, ok := getEntry(bad[:], 77); ok {
			t.Errorf("a flipped bit %d goes unnoticed", i)
		}
	}
}

// headerSum was computed by other means.
const headerSum = "080185c7"

// entryGolden likewise.
const entryGolden = "f9b0cf28"

func FuzzHeader(f *testing.F) {
	f.Add(appendHeader(nil, "orders", 7))
	f.Fuzz(func(t *testing.T, b []byte) {
		if name, first, reason := parseHeader(b); reason == "" && name == "" {
			t.Errorf("%x parses as an index without a name, first %d", b, first)
		}
	})
}
