package raft

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
)

// TestNoDamageOfAStoreIsReadAsTruth damages a store in every place, a bit at a time and
// by noise: it is refused as damaged, or it says what it said before.
func TestNoDamageOfAStoreIsReadAsTruth(t *testing.T) {
	dir := t.TempDir()
	st, err := openStore(dir, newStoreID)
	if err != nil {
		t.Fatal(err)
	}
	var entries []*raft.Log
	for i := range uint64(120) { // more than a page holds
		entries = append(entries, &raft.Log{Index: i + 1, Term: 3, Data: []byte("a term of a group, some bytes long")})
	}
	if err := errors.Join(st.StoreLogs(entries), st.SetUint64([]byte("CurrentTerm"), 3), st.Set([]byte("LastVoteCand"), []byte("n2"))); err != nil {
		t.Fatal(err)
	}
	id := st.id
	if err := st.close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(dir, storeFile))
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	refused, sound := 0, 0
	try := func(b []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, storeFile), b, 0o600); err != nil {
			t.Fatal(err)
		}
		st, err := openStore(dir, newStoreID)
		if err != nil {
			refused++
			return
		}
		sound++
		term, terr := st.GetUint64([]byte("CurrentTerm"))
		vote, verr := st.Get([]byte("LastVoteCand"))
		last, lerr := st.LastIndex()
		if st.id != id || term != 3 || string(vote) != "n2" || last != 120 || errors.Join(terr, verr, lerr) != nil {
			t.Errorf("a damaged store says id %s, term %d, vote %q, last %d", st.id, term, vote, last)
		}
		if err := st.close(); err != nil {
			t.Error(err)
		}
	}
	for range 1500 {
		b := append([]byte(nil), whole...)
		b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
		try(b)
	}
	for range 200 {
		b := append([]byte(nil), whole...)
		for range 1 + rng.IntN(64) {
			b[rng.IntN(len(b))] = byte(rng.Uint32())
		}
		try(b)
	}
	if refused < 100 || sound < 100 {
		t.Errorf("%d stores refused, %d sound: the test looks at one kind only", refused, sound)
	}
	t.Logf("%d refused, %d sound", refused, sound)
}
