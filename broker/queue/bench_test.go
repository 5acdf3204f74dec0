package queue

import "testing"

func BenchmarkAppend(b *testing.B) {
	x := index(b, open(b, Options{FS: small("").FS, Dir: b.TempDir()}), "q")
	b.ReportAllocs()
	var n uint64
	for b.Loop() {
		if _, err := x.Append(entry(n)); err != nil {
			b.Fatal(err)
		}
		n++
	}
}

func BenchmarkReadTail(b *testing.B) {
	x := index(b, open(b, Options{FS: small("").FS, Dir: b.TempDir()}), "q")
	fill(b, x, 1<<20)
	dst := make([]Entry, 32)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := x.Read(1<<20-64, dst); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadFile(b *testing.B) {
	x := index(b, open(b, Options{FS: small("").FS, Dir: b.TempDir()}), "q")
	fill(b, x, 1<<20)
	dst := make([]Entry, 32)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := x.Read(12345, dst); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSearch(b *testing.B) {
	x := index(b, open(b, Options{FS: small("").FS, Dir: b.TempDir()}), "q")
	fill(b, x, 1<<20)
	b.ReportAllocs()
	var n uint64
	for b.Loop() {
		n = (n + 7919) % (1 << 20)
		if _, found, err := x.Search(entry(n).Position); err != nil || !found {
			b.Fatal(found, err)
		}
	}
}
