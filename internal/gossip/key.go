package gossip

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// KeyFile is the usual name of the file with a deployment's gossip keys.
const KeyFile = "gossip.key"

// keyBytes is the length of a new key: AES-256.
const keyBytes = 32

// maxKeyFile bounds what LoadKeys reads, in bytes: far more keys than a change
// of keys needs.
const maxKeyFile = 4096

// SaveNewKey makes a key and writes it to a new file that only its owner can
// read, base64 on one line. It fails with fs.ErrExist rather than replace one.
func SaveNewKey(path string) error {
	key := make([]byte, keyBytes)
	if _, err := rand.Read(key); err != nil {
		return fmt.Errorf("gossip: key: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("gossip: key: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("gossip: key: %w", err)
	}
	_, err = fmt.Fprintln(f, base64.StdEncoding.EncodeToString(key))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("gossip: key: %s: %w", path, err)
	}
	return nil
}

// LoadKeys reads a key file: one base64 key a line, 16, 24 or 32 bytes each.
// The first is the one to use, further ones are still accepted, so that keys
// can be changed node by node. Empty lines and lines that begin with # are
// skipped.
func LoadKeys(path string) (key []byte, old [][]byte, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, fmt.Errorf("gossip: key: %w", err)
	}
	if info.Size() > maxKeyFile {
		return nil, nil, fmt.Errorf("gossip: key: %s has %d bytes, more than %d: is it a key file?", path, info.Size(), maxKeyFile)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("gossip: key: %w", err)
	}
	var keys [][]byte
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		k, err := base64.StdEncoding.DecodeString(line)
		if err != nil || (len(k) != 16 && len(k) != 24 && len(k) != 32) {
			return nil, nil, fmt.Errorf("gossip: key: %s:%d: not a base64 key of 16, 24 or 32 bytes", path, i+1)
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, nil, fmt.Errorf("gossip: key: %s holds no key", path)
	}
	return keys[0], keys[1:], nil
}
