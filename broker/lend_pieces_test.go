package broker

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
)

// TestIndexesAreGivenWholeInAnyPieces reads the file of indexes that a replica is given
// in pieces of several sizes: also from the middle of the last index, and around empty
// ones.
func TestIndexesAreGivenWholeInAnyPieces(t *testing.T) {
	store, err := queue.Open(queue.Options{FS: disk.NewMem(), Dir: "index"})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	s := &lentSnapshot{head: []byte("head")}
	want := bytes.Clone(s.head)
	for i, n := range []int{0, 300, 0, 0, 2000} {
		x, err := store.Index(fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		for j := range n {
			if _, err := x.Append(queue.Entry{Position: record.Position(10000*i + j), Size: 8, Hash: uint32(j)}); err != nil {
				t.Fatal(err)
			}
		}
		l := lentIndex{name: fmt.Sprint(i), next: uint64(n), index: x, off: int64(len(want))}
		for at := uint64(0); at < l.next; at += lentBlock {
			block, err := l.encode(nil, at)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, block...)
		}
		s.list = append(s.list, l)
	}
	for _, size := range []int{1, 777, 16 << 10, len(want)} {
		var got []byte
		for len(got) < len(want) {
			p := make([]byte, min(size, len(want)-len(got)))
			if _, err := s.readIndexes(p, int64(len(got))); err != nil {
				t.Fatalf("pieces of %d, at %d of %d: %v", size, len(got), len(want), err)
			}
			got = append(got, p...)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("pieces of %d: other bytes", size)
		}
	}
}
