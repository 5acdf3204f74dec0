package queue

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
)

// small makes segments and tails short, so that few entries meet every bound.
func small(dir string) Options {
	return Options{FS: disk.OS{}, Dir: dir, SegmentEntries: 1000, TailEntries: 300, MaxOpenFiles: 3}
}

func open(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func index(t testing.TB, s *Store, name string) *Index {
	t.Helper()
	x, err := s.Index(name)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// entry is what the tests put at a number: positions ascend with gaps.
func entry(n uint64) Entry {
	return Entry{Position: record.Position(64*n + 8), Size: uint32(n%1000 + 1), Hash: uint32(n * 2654435761)}
}

func fill(t testing.TB, x *Index, through uint64) {
	t.Helper()
	for n := x.Next(); n < through; n++ {
		got, err := x.Append(entry(n))
		if err != nil || got != n {
			t.Fatalf("append %d: got number %d, %v", n, got, err)
		}
	}
}

// check reads everything in three ways and compares it.
func check(t testing.TB, x *Index, first, next uint64) {
	t.Helper()
	if x.First() != first || x.Next() != next {
		t.Fatalf("holds %d to %d, want %d to %d", x.First(), x.Next(), first, next)
	}
	buf := make([]Entry, 700)
	for from := first; from < next; {
		n, err := x.Read(from, buf)
		if err != nil || n == 0 {
			t.Fatalf("read from %d: %d entries, %v", from, n, err)
		}
		for i, e := range buf[:n] {
			if e != entry(from+uint64(i)) {
				t.Fatalf("entry %d is %+v", from+uint64(i), e)
			}
		}
		from += uint64(n)
	}
	for n := first; n < next; n += 1 + (next-first)/50 {
		if e, err := x.Get(n); err != nil || e != entry(n) {
			t.Fatalf("get %d: %+v, %v", n, e, err)
		}
		if i, found, err := x.Search(entry(n).Position); err != nil || !found || i != n {
			t.Fatalf("search of %d: %d, %v, %v", n, i, found, err)
		}
		if i, found, err := x.Search(entry(n).Position + 1); err != nil || found || i != n+1 {
			t.Fatalf("search behind %d: %d, %v, %v", n, i, found, err)
		}
	}
	if i, found, err := x.Search(0); err != nil || found || i != first {
		t.Fatalf("search before all: %d, %v, %v", i, found, err)
	}
	if n, err := x.Read(next, buf); n != 0 || err != nil {
		t.Fatalf("read at the end: %d, %v", n, err)
	}
	var outside *RangeError
	if _, err := x.Get(next); !errors.As(err, &outside) {
		t.Fatalf("get at the end: %v", err)
	}
	if first > 0 {
		if _, err := x.Get(first - 1); !errors.As(err, &outside) {
			t.Fatalf("get before the first: %v", err)
		}
	}
}

func TestIndexReadsWhatWasAppended(t *testing.T) {
	for _, n := range []uint64{0, 1, 255, 256, 257, 299, 300, 512, 999, 1000, 1001, 5432} {
		x := index(t, open(t, small(t.TempDir())), "q")
		fill(t, x, n)
		check(t, x, 0, n)
		if err := x.Flush(); err != nil {
			t.Fatal(err)
		}
		check(t, x, 0, n)
	}
}

func TestIndexRefusesDisorder(t *testing.T) {
	x := index(t, open(t, small(t.TempDir())), "q")
	fill(t, x, 10)
	var order *OrderError
	for _, e := range []Entry{entry(9), entry(3), {Position: 1 << 40}} {
		if _, err := x.Append(e); !errors.As(err, &order) {
			t.Errorf("append of %+v: %v", e, err)
		}
	}
	check(t, x, 0, 10)
}

func TestIndexSurvivesReopening(t *testing.T) {
	dir := t.TempDir()
	s := open(t, small(dir))
	fill(t, index(t, s, "q"), 3210)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatalf("second close: %v", err)
	}
	s = open(t, small(dir))
	x := index(t, s, "q")
	check(t, x, 0, 3210)
	if _, err := x.Append(entry(3210)); !errors.Is(err, ErrNotRecovered) {
		t.Fatalf("append before truncate: %v", err)
	}
	for _, next := range []uint64{3210, 3001, 3000, 2999, 1000, 7, 0} {
		if err := x.Truncate(next); err != nil {
			t.Fatalf("truncate to %d: %v", next, err)
		}
		check(t, x, 0, next)
		fill(t, x, next+2500)
		check(t, x, 0, next+2500)
		if err := x.Truncate(next); err != nil {
			t.Fatalf("truncate again to %d: %v", next, err)
		}
	}
}

func TestTruncateLeavesNothingBehindTheEnd(t *testing.T) {
	dir := t.TempDir()
	s := open(t, small(dir))
	fill(t, index(t, s, "q"), 2500)
	s.Close()
	s = open(t, small(dir))
	if err := s.Recover(map[string]uint64{"q": 1500}); err != nil {
		t.Fatal(err)
	}
	s.Close()
	// Without the cut the old entries would be seen here.
	check(t, index(t, open(t, small(dir)), "q"), 0, 1500)
}

func TestRecoverTellsWhatIsMissing(t *testing.T) {
	damage := map[string]func(t *testing.T, files []string){
		"short": func(t *testing.T, f []string) { os.Truncate(f[2], headerSize+entrySize*100) },
		"lost":  func(t *testing.T, f []string) { os.Remove(f[2]) },
		"inner": func(t *testing.T, f []string) { os.Remove(f[1]) },
		"hole": func(t *testing.T, f []string) {
			os.Truncate(f[2], headerSize)
			os.Truncate(f[2], headerSize+entrySize*500)
		},
		"header": func(t *testing.T, f []string) {
			b, _ := os.ReadFile(f[1])
			b[30] ^= 1
			os.WriteFile(f[1], b, 0o600)
		},
		"all": func(t *testing.T, f []string) {
			for _, p := range f {
				os.Remove(p)
			}
		},
	}
	for name, harm := range damage {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, small(dir))
			fill(t, index(t, s, "q"), 2500)
			fill(t, index(t, s, "sound"), 50)
			s.Close()
			files, err := filepath.Glob(filepath.Join(dir, "q.*"))
			if err != nil || len(files) != 3 {
				t.Fatalf("files %q, %v", files, err)
			}
			slices.Sort(files)
			harm(t, files)
			s = open(t, small(dir))
			err = s.Recover(map[string]uint64{"q": 2500, "sound": 40})
			var corrupt *CorruptError
			if !errors.As(err, &corrupt) || corrupt.Name != "q" {
				t.Fatalf("recover: %v", err)
			}
			check(t, index(t, s, "sound"), 0, 50) // an older snapshot may need more of it
			if err := s.Recover(nil); err != nil {
				t.Fatal(err)
			}
			x := index(t, s, "q")
			check(t, x, 0, 0)
			fill(t, x, 2500)
			check(t, x, 0, 2500)
		})
	}
}

func TestTornTailIsCutBack(t *testing.T) {
	dir := t.TempDir()
	s := open(t, small(dir))
	fill(t, index(t, s, "q"), 2500)
	s.Close()
	files, _ := filepath.Glob(filepath.Join(dir, "q.*"))
	slices.Sort(files)
	os.WriteFile(files[2], []byte("torn"), 0o600)             // header never reached the disk
	os.Truncate(files[1], headerSize+entrySize*500+7)         // half an entry
	os.WriteFile(filepath.Join(dir, "alien.txt"), nil, 0o600) // not ours
	s = open(t, small(dir))
	if err := s.Recover(map[string]uint64{"q": 1500}); err != nil {
		t.Fatal(err)
	}
	x := index(t, s, "q")
	check(t, x, 0, 1500)
	fill(t, x, 4000)
	check(t, x, 0, 4000)
}

func TestIndexThatBeginsBehindZeroIsKnownWhenEmpty(t *testing.T) {
	dir := t.TempDir()
	s := open(t, small(dir))
	x := index(t, s, "q")
	if err := x.Reset(77); err != nil {
		t.Fatal(err)
	}
	check(t, x, 77, 77)
	s.Close()
	s = open(t, small(dir))
	if err := s.Recover(map[string]uint64{"q": 77}); err != nil {
		t.Fatal(err)
	}
	x = index(t, s, "q")
	fill(t, x, 400)
	check(t, x, 77, 400)
}

func TestTrimRemovesWholeSegments(t *testing.T) {
	dir := t.TempDir()
	s := open(t, small(dir))
	x := index(t, s, "q")
	fill(t, x, 4321)
	if err := x.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		before, first uint64
		files         int
	}{{0, 0, 5}, {999, 999, 5}, {1000, 1000, 4}, {1500, 1500, 4}, {700, 1500, 4}, {4100, 4100, 1}, {9999, 4321, 1}} {
		if err := x.TrimBefore(c.before); err != nil {
			t.Fatal(err)
		}
		files, _ := filepath.Glob(filepath.Join(dir, "*"))
		if len(files) != c.files {
			t.Fatalf("trim before %d left %d files, want %d", c.before, len(files), c.files)
		}
		check(t, x, c.first, 4321)
	}
	fill(t, x, 5000)
	check(t, x, 4321, 5000)
	s.Close()
	s = open(t, small(dir))
	if err := s.Recover(map[string]uint64{"q": 5000}); err != nil {
		t.Fatal(err)
	}
	check(t, index(t, s, "q"), 4000, 5000) // back to the segment's bound
}

func TestReadersRunBesideTheWriter(t *testing.T) {
	s := open(t, small(t.TempDir()))
	x := index(t, s, "q")
	const through = 30_000
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for seed := range uint64(3) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 1))
			buf := make([]Entry, 64)
			for {
				select {
				case <-stop:
					return
				default:
				}
				first, next := x.First(), x.Next()
				if first == next {
					continue
				}
				from := first + rng.Uint64N(next-first)
				n, err := x.Read(from, buf)
				var outside *RangeError
				if err != nil && (!errors.As(err, &outside) || from >= x.First()) {
					t.Errorf("read from %d: %v", from, err)
					return
				}
				for i, e := range buf[:n] {
					if e != entry(from+uint64(i)) {
						t.Errorf("entry %d is %+v", from+uint64(i), e)
						return
					}
				}
				if i, found, err := x.Search(entry(from).Position); err != nil || (!found || i != from) && from >= x.First() {
					t.Errorf("search of %d: %d, %v, %v", from, i, found, err)
					return
				}
			}
		})
	}
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if err := s.Sync(t.Context()); err != nil {
					t.Errorf("sync: %v", err)
					return
				}
			}
		}
	})
	for x.Next() < through {
		fill(t, x, x.Next()+500)
		if err := x.TrimBefore(x.Next() - min(x.Next(), 6000)); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
	check(t, x, through-6000, through)
}

func TestFileNames(t *testing.T) {
	long := strings.Repeat("%", maxName)
	seen := make(map[string]string)
	for _, name := range []string{"orders", "Orders", "%DLQ%g|x", "_DLQ_g_x", "a/b", "..", "päth", long, long[1:]} {
		base := baseName(name)
		if other, ok := seen[strings.ToLower(base)]; ok {
			t.Errorf("%q and %q share the files %q", name, other, base)
		}
		seen[strings.ToLower(base)] = name
		file := fileName(base, 1<<64-1)
		if len(file) > 200 || strings.ContainsAny(file, "/%| ") {
			t.Errorf("%q gives the file name %q", name, file)
		}
		if b, first, ok := parseFileName(file); !ok || b != base || first != 1<<64-1 {
			t.Errorf("%q parses as %q, %d, %v", file, b, first, ok)
		}
	}
	for _, bad := range []string{"", ".idx", "x.idx", "x.1.idx", "x.0000000000000000000a.idx", "x.99999999999999999999.idx", "x.00000000000000000001.tmp"} {
		if _, _, ok := parseFileName(bad); ok {
			t.Errorf("%q parses", bad)
		}
	}
}
