//go:build unix

package source

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/mqrouter/mqrouter/zone"
)

func TestRealFileReaderRefusesWhatIsNoFile(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{t.TempDir(): "is a directory", pipe: "is a named pipe", "/dev/zero": "is a device"} {
		var not *FileError
		if _, err := ReadFile(path); !errors.As(err, &not) || !strings.Contains(err.Error(), says) {
			t.Errorf("ReadFile(%s) = %v, want that it %s", path, err, says)
		}
	}
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, make([]byte, zone.MaxFileBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFile(large); err == nil || !strings.Contains(err.Error(), "larger") {
		t.Errorf("ReadFile of a file that is too large: %v", err)
	}
}
