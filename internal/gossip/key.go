package gossip

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/memberlist"
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

// SetKeys replaces the pool's keys without a moment in which it refuses one that
// it had or has: key is used from now on, old ones are still accepted. It
// changes nothing when a key is malformed, and fails with ErrClosed after Close.
func (p *Pool) SetKeys(key []byte, old [][]byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	next := append([][]byte{key}, old...)
	for i, k := range next {
		if err := memberlist.ValidateKey(k); err != nil {
			return fmt.Errorf("gossip: key %d has %d bytes, want 16, 24 or 32", i, len(k))
		}
	}
	before := p.keys.GetKeys()
	if err := p.fence.admit.accept(slices.Concat(next, before)); err != nil {
		return fmt.Errorf("gossip: keys: %w", err)
	}
	for _, k := range next {
		if err := p.keys.AddKey(k); err != nil {
			return fmt.Errorf("gossip: keys: %w", err)
		}
	}
	if err := p.keys.UseKey(key); err != nil {
		return fmt.Errorf("gossip: keys: %w", err)
	}
	for _, k := range before {
		if !slices.ContainsFunc(next, func(n []byte) bool { return bytes.Equal(n, k) }) {
			if err := p.keys.RemoveKey(k); err != nil {
				return fmt.Errorf("gossip: keys: %w", err)
			}
		}
	}
	return p.fence.admit.accept(next)
}
