package disk

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// implementations are what the conformance suite runs over.
func implementations(t *testing.T) map[string]struct {
	fs  FS
	dir string
} {
	type impl = struct {
		fs  FS
		dir string
	}
	return map[string]impl{
		"os":     {OS{}, filepath.ToSlash(t.TempDir())},
		"mem":    {NewMem(), "/data"},
		"faulty": {NewFaulty(NewMem()), "/data"},
	}
}

func TestConformance(t *testing.T) {
	suite := map[string]func(t *testing.T, fsys FS, dir string){
		"missing names are ErrNotExist": conformMissing,
		"content is read back":          conformContent,
		"lengths":                       conformLength,
		"what is forgotten is read":     conformForget,
		"create empties":                conformCreate,
		"rename replaces":               conformRename,
		"lock excludes":                 conformLock,
		"closed files fail":             conformClosed,
		"concurrent disjoint writes":    conformConcurrent,
	}
	for impl, i := range implementations(t) {
		for name, test := range suite {
			t.Run(impl+"/"+name, func(t *testing.T) {
				dir := path.Join(i.dir, "a", "b", strings.ReplaceAll(name, " ", "-"))
				if err := i.fs.MkdirAll(dir); err != nil {
					t.Fatal(err)
				}
				test(t, i.fs, dir)
			})
		}
	}
}

// conformForget: a hint loses nothing, synced or not, of files that are closed as well.
func conformForget(t *testing.T, fsys FS, dir string) {
	f := create(t, fsys, path.Join(dir, "a"))
	write(t, f, strings.Repeat("synced", 1000), 0)
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	write(t, f, "not yet", 6000)
	Forget(f, 0, 1<<20)
	Forget(f, 100, -1)
	b := make([]byte, 6007)
	if n, err := f.ReadAt(b, 0); n != len(b) || string(b) != strings.Repeat("synced", 1000)+"not yet" {
		t.Errorf("read %d, %v", n, err)
	}
	f.Close()
	Forget(f, 0, 1<<20)
}

func create(t *testing.T, fsys FS, name string) File {
	t.Helper()
	f, err := fsys.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func write(t *testing.T, f File, b string, off int64) {
	t.Helper()
	if n, err := f.WriteAt([]byte(b), off); err != nil || n != len(b) {
		t.Fatalf("WriteAt = %d, %v", n, err)
	}
}

func content(t *testing.T, f File) string {
	t.Helper()
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size+1)
	n, err := f.ReadAt(b, 0)
	if !errors.Is(err, io.EOF) {
		t.Fatalf("read past the end: %v", err)
	}
	return string(b[:n])
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func conformMissing(t *testing.T, fsys FS, dir string) {
	_, err := fsys.Open(path.Join(dir, "x"))
	for op, err := range map[string]error{
		"open":   err,
		"remove": fsys.Remove(path.Join(dir, "x")),
		"rename": fsys.Rename(path.Join(dir, "x"), path.Join(dir, "y")),
		"sync":   fsys.SyncDir(path.Join(dir, "nowhere")),
	} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", op, err)
		}
	}
}

func conformContent(t *testing.T, fsys FS, dir string) {
	f := create(t, fsys, path.Join(dir, "f"))
	write(t, f, "hello", 0)
	write(t, f, "X", 7) // leaves a hole
	ok(t, f.Sync())
	ok(t, fsys.SyncDir(dir))
	if got := content(t, f); got != "hello\x00\x00X" {
		t.Errorf("content %q", got)
	}
	g, err := fsys.Open(path.Join(dir, "f"))
	ok(t, err)
	defer g.Close()
	write(t, g, "J", 0)
	if got := content(t, f); got != "Jello\x00\x00X" {
		t.Errorf("a second opening does not share content: %q", got)
	}
	if n, err := f.ReadAt(make([]byte, 1), 100); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("read behind the end: %d, %v", n, err)
	}
}

func conformLength(t *testing.T, fsys FS, dir string) {
	f := create(t, fsys, path.Join(dir, "f"))
	write(t, f, "abcdef", 0)
	ok(t, f.Truncate(2))
	ok(t, f.Preallocate(4))
	if got := content(t, f); got != "ab\x00\x00" {
		t.Errorf("cut bytes came back: %q", got)
	}
	ok(t, f.Preallocate(1))
	ok(t, f.Truncate(5))
	if got := content(t, f); got != "ab\x00\x00\x00" {
		t.Errorf("content %q", got)
	}
}

func conformCreate(t *testing.T, fsys FS, dir string) {
	write(t, create(t, fsys, path.Join(dir, "f")), "old", 0)
	if got := content(t, create(t, fsys, path.Join(dir, "f"))); got != "" {
		t.Errorf("content %q", got)
	}
}

func conformRename(t *testing.T, fsys FS, dir string) {
	write(t, create(t, fsys, path.Join(dir, "a")), "A", 0)
	write(t, create(t, fsys, path.Join(dir, "b")), "B", 0)
	ok(t, fsys.Rename(path.Join(dir, "a"), path.Join(dir, "b")))
	names, err := fsys.List(dir)
	ok(t, err)
	if !slices.Equal(names, []string{"b"}) {
		t.Errorf("names %q", names)
	}
	f, err := fsys.Open(path.Join(dir, "b"))
	ok(t, err)
	defer f.Close()
	if got := content(t, f); got != "A" {
		t.Errorf("content %q", got)
	}
	ok(t, fsys.Remove(path.Join(dir, "b")))
	if names, err = fsys.List(dir); err != nil || len(names) != 0 {
		t.Errorf("names %q, %v", names, err)
	}
}

func conformLock(t *testing.T, fsys FS, dir string) {
	l, err := fsys.Lock(path.Join(dir, "LOCK"))
	ok(t, err)
	if _, err := fsys.Lock(path.Join(dir, "LOCK")); !errors.Is(err, ErrLocked) {
		t.Errorf("second lock: %v", err)
	}
	ok(t, l.Close())
	l, err = fsys.Lock(path.Join(dir, "LOCK"))
	ok(t, err)
	ok(t, l.Close())
}

func conformClosed(t *testing.T, fsys FS, dir string) {
	f := create(t, fsys, path.Join(dir, "f"))
	ok(t, f.Close())
	_, sizeErr := f.Size()
	_, readErr := f.ReadAt(make([]byte, 1), 0)
	_, writeErr := f.WriteAt([]byte{1}, 0)
	for op, err := range map[string]error{
		"size": sizeErr, "read": readErr, "write": writeErr, "sync": f.Sync(),
		"truncate": f.Truncate(1), "preallocate": f.Preallocate(9), "close": f.Close(),
	} {
		if !errors.Is(err, fs.ErrClosed) {
			t.Errorf("%s: %v", op, err)
		}
	}
}

func conformConcurrent(t *testing.T, fsys FS, dir string) {
	f := create(t, fsys, path.Join(dir, "f"))
	ok(t, f.Preallocate(8<<10))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if _, err := f.WriteAt(bytes.Repeat([]byte{byte('a' + i)}, 1<<10), int64(i)<<10); err != nil {
				t.Error(err)
			}
			if err := f.Sync(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	want := ""
	for i := range 8 {
		want += string(bytes.Repeat([]byte{byte('a' + i)}, 1<<10))
	}
	if content(t, f) != want {
		t.Error("writes got mixed")
	}
}

func TestCrashKeepsWhatWasSyncedAndMayDropTheRest(t *testing.T) {
	m := NewMem()
	ok(t, m.MkdirAll("/d"))
	f := create(t, m, "/d/f")
	write(t, f, "synced", 0)
	ok(t, f.Sync())
	ok(t, m.SyncDir("/d"))
	write(t, f, string(bytes.Repeat([]byte{'u'}, 4*sector)), 0)
	create(t, m, "/d/unsynced")
	seen := map[string]bool{}
	for seed := range uint64(400) {
		c := m.Crash(rand.New(rand.NewPCG(seed, 1)))
		g, err := c.Open("/d/f")
		if err != nil {
			t.Fatalf("seed %d: a synced name is gone", seed)
		}
		got := content(t, g)
		switch whole := string(bytes.Repeat([]byte{'u'}, 4*sector)); got {
		case "synced":
			seen["dropped"] = true
		case whole:
			seen["kept"] = true
		default:
			seen["torn"] = true
			for i := 0; i < len(got); i += sector {
				part := got[i:min(i+sector, len(got))]
				if i == 0 && part[:min(6, len(part))] == "synced" {
					continue
				}
				if part != whole[i:i+len(part)] && part != string(make([]byte, len(part))) {
					t.Fatalf("seed %d: sector at %d is neither old nor new", seed, i)
				}
			}
		}
		_, err = c.Open("/d/unsynced")
		seen[map[bool]string{true: "name kept", false: "name dropped"}[err == nil]] = true
		g.Close()
	}
	for _, k := range []string{"dropped", "kept", "torn", "name kept", "name dropped"} {
		if !seen[k] {
			t.Errorf("no crash of 400 showed %q", k)
		}
	}
}

func TestCrashRenameIsAtomic(t *testing.T) {
	m := NewMem()
	ok(t, m.MkdirAll("/d"))
	for _, name := range []string{"old", "new"} {
		f := create(t, m, "/d/"+name)
		write(t, f, name, 0)
		ok(t, f.Sync())
	}
	ok(t, m.SyncDir("/d"))
	ok(t, m.Rename("/d/new", "/d/old"))
	for seed := range uint64(64) {
		f, err := m.Crash(rand.New(rand.NewPCG(seed, 2))).Open("/d/old")
		ok(t, err)
		if got := content(t, f); got != "old" && got != "new" {
			t.Fatalf("seed %d: content %q", seed, got)
		}
	}
}

func TestMemLimitIsENOSPC(t *testing.T) {
	m := NewMem()
	f := create(t, m, "/f")
	m.SetLimit(100)
	ok(t, f.Preallocate(100))
	_, err := f.WriteAt(make([]byte, 2), 99)
	if !IsFull(err) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("write beyond the limit: %v", err)
	}
	write(t, f, "inside", 0)
	m.SetLimit(0)
	ok(t, f.Preallocate(200))
	if m.Used() != 200 {
		t.Errorf("used %d", m.Used())
	}
}

func TestFaultyFailsWhatIsChosen(t *testing.T) {
	boom := errors.New("boom")
	f := NewFaulty(NewMem())
	file := create(t, f, "/f")
	f.Set(func(op Op, name string) error {
		if op == OpWrite && name == "/f" {
			return boom
		}
		return nil
	})
	if n, err := file.WriteAt([]byte("abcd"), 0); !errors.Is(err, boom) || n != 2 {
		t.Fatalf("write: %d, %v", n, err)
	}
	if got := content(t, file); got != "ab" {
		t.Errorf("a failed write is to leave half: %q", got)
	}
	for _, op := range []Op{OpOpen, OpCreate, OpRename, OpRemove, OpList, OpMkdir, OpSyncDir, OpLock, OpRead, OpSize, OpTruncate, OpPreallocate, OpSync} {
		f.Set(func(o Op, _ string) error {
			if o == op {
				return boom
			}
			return nil
		})
		if errs := allOps(f, file); !errors.Is(errs[op], boom) || len(errs) != 1 {
			t.Errorf("%s: failed %v", op, errs)
		}
	}
	f.Set(nil)
	if errs := allOps(f, file); len(errs) != 0 {
		t.Errorf("without fault: %v", errs)
	}
}

// allOps does everything once and returns what failed.
func allOps(fsys FS, file File) map[Op]error {
	errs := map[Op]error{}
	note := func(op Op, err error) {
		if err != nil {
			errs[op] = err
		}
	}
	note(OpMkdir, fsys.MkdirAll("/d"))
	inner := fsys.(*Faulty).fs
	for _, name := range []string{"/d/a", "/d/b"} {
		inner.Create(name)
	}
	_, err := fsys.Open("/d/a")
	note(OpOpen, err)
	_, err = fsys.Create("/d/a")
	note(OpCreate, err)
	note(OpRename, fsys.Rename("/d/a", "/d/c"))
	note(OpRemove, fsys.Remove("/d/b"))
	_, err = fsys.List("/d")
	note(OpList, err)
	note(OpSyncDir, fsys.SyncDir("/d"))
	l, err := fsys.Lock("/d/l")
	note(OpLock, err)
	if err == nil {
		l.Close()
	}
	note(OpTruncate, file.Truncate(4))
	note(OpPreallocate, file.Preallocate(4))
	_, err = file.ReadAt(make([]byte, 1), 0)
	note(OpRead, err)
	_, err = file.Size()
	note(OpSize, err)
	note(OpSync, file.Sync())
	return errs
}

func TestCloneHasEverythingAndIsItsOwn(t *testing.T) {
	m := NewMem()
	if err := m.MkdirAll("/d"); err != nil {
		t.Fatal(err)
	}
	write := func(m *Mem, text string) {
		t.Helper()
		f, err := m.Create("/d/f")
		if err == nil {
			_, err = f.WriteAt([]byte(text), 0)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	read := func(m *Mem) string {
		t.Helper()
		f, err := m.Open("/d/f")
		if err != nil {
			return err.Error()
		}
		b := make([]byte, 10)
		n, _ := f.ReadAt(b, 0)
		return string(b[:n])
	}
	write(m, "one") // not synced
	c := m.Clone()
	write(m, "two")
	// All that the copy has is durable.
	if got := read(c.Crash(rand.New(rand.NewPCG(1, 1)))); got != "one" || read(m) != "two" {
		t.Errorf("the copy has %q, the original %q", got, read(m))
	}
	write(c, "three")
	if read(m) != "two" {
		t.Error("the copy changed the original")
	}
}
