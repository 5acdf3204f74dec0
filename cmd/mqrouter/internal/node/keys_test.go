package node

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/internal/gossip"
)

// TestKeyFileIsFollowed changes the file of gossip keys step by step while a pool
// runs, and breaks it: what cannot be used changes nothing.
func TestKeyFileIsFollowed(t *testing.T) {
	key := func(b byte) []byte { return []byte(strings.Repeat(string(rune(b)), 32)) }
	b := &base{keyFile: filepath.Join(t.TempDir(), gossip.KeyFile)}
	write := func(keys ...[]byte) {
		t.Helper()
		var lines strings.Builder
		for _, k := range keys {
			lines.WriteString(base64.StdEncoding.EncodeToString(k) + "\n")
		}
		if err := os.WriteFile(b.keyFile, []byte(lines.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool, err := gossip.Open(gossip.Config{Pool: "test/wan", Name: "a", Bind: "127.0.0.1:0", Key: key('1')})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := pool.Abort(); err != nil {
			t.Error(err)
		}
	}()
	b.key = key('1')
	b.watched.pools = []watchedPool{{"wan", pool}}
	for _, step := range []struct {
		keys    [][]byte
		changed bool
		used    byte
	}{
		{[][]byte{key('1')}, false, '1'},
		{[][]byte{key('1'), key('2')}, true, '1'},
		{[][]byte{key('2'), key('1')}, true, '2'},
		{[][]byte{key('2'), key('1')}, false, '2'},
		{[][]byte{key('2')}, true, '2'},
	} {
		write(step.keys...)
		changed, err := b.takeKeys()
		if err != nil || changed != step.changed || b.key[0] != step.used {
			t.Errorf("%d keys: changed %v, in use %c, %v", len(step.keys), changed, b.key[0], err)
		}
	}
	for _, broken := range [][][]byte{{}, {key('3')[:5]}} {
		write(broken...)
		if changed, err := b.takeKeys(); err == nil || changed || b.key[0] != '2' {
			t.Errorf("a broken file: changed %v, in use %c, %v", changed, b.key[0], err)
		}
	}
	if err := pool.SetKeys(key('4')[:7], nil); err == nil {
		t.Error("the pool took a key of seven bytes")
	}
}
