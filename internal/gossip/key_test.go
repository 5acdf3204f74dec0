package gossip

import (
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestNewKeyIsReadBackAndNeverReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pki", KeyFile)
	if err := SaveNewKey(path); err != nil {
		t.Fatal(err)
	}
	key, old, err := LoadKeys(path)
	if err != nil || len(key) != 32 || len(old) != 0 {
		t.Errorf("LoadKeys: %d bytes, %d old, %v", len(key), len(old), err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
	if err := SaveNewKey(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second SaveNewKey: %v; want fs.ErrExist", err)
	}
}

func TestKeyFilesMayHoldOldKeys(t *testing.T) {
	enc := func(n int) string { return base64.StdEncoding.EncodeToString(make([]byte, n)) }
	for name, c := range map[string]struct {
		text string
		old  int
		ok   bool
	}{
		"two keys and a comment": {"# new first\n" + enc(32) + "\n\n" + enc(16) + "\n", 1, true},
		"empty":                  {"\n# nothing\n", 0, false},
		"wrong length":           {enc(10), 0, false},
		"not base64":             {"!!!!", 0, false},
	} {
		path := filepath.Join(t.TempDir(), "k")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, old, err := LoadKeys(path)
		if (err == nil) != c.ok || len(old) != c.old {
			t.Errorf("%s: %d old keys, %v", name, len(old), err)
		}
	}
}
