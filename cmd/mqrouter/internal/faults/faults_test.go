package faults

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// TestOrdersAreCarriedOut gives each order to a layer over a real folder.
func TestOrdersAreCarriedOut(t *testing.T) {
	dir := t.TempDir()
	l := New(dir)
	l.fresh = 0
	fs := l.FS(disk.OS{})
	f, err := fs.Create(filepath.Join(dir, "0000000000000000.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	write := func() error { _, err := f.WriteAt([]byte("x"), 0); return err }
	read := func() error { _, err := f.ReadAt(make([]byte, 1), 0); return err }
	create := func() error {
		f, err := fs.Create(filepath.Join(dir, "other"))
		if err == nil {
			err = f.Close()
		}
		return err
	}
	all := func() error { return errors.Join(write(), read(), create(), f.Sync()) }
	if err := all(); err != nil {
		t.Fatalf("without orders: %v", err)
	}
	for _, c := range []struct {
		name   string
		orders Orders
		fails  func() error
		as     error
		works  func() error
	}{
		{"full", Orders{Full: true}, create, syscall.ENOSPC, write},
		{"sync", Orders{FailSync: true}, f.Sync, syscall.EIO, write},
		{"write", Orders{FailWrite: true}, write, syscall.EIO, read},
		{"read", Orders{FailRead: true}, read, syscall.EIO, write},
	} {
		give(t, dir, c.orders)
		if err := c.fails(); !errors.Is(err, c.as) {
			t.Errorf("%s: %v, want %v", c.name, err, c.as)
		}
		if err := c.works(); err != nil {
			t.Errorf("%s: what it does not break fails: %v", c.name, err)
		}
	}
	give(t, dir, Orders{Slow: 20 * time.Millisecond, Clock: -time.Hour})
	began := time.Now()
	if err := write(); err != nil || time.Since(began) < 20*time.Millisecond {
		t.Errorf("a slow write took %v: %v", time.Since(began), err)
	}
	if got := time.Until(l.Wall()); got > -time.Hour || got < -time.Hour-time.Minute {
		t.Errorf("the clock is ahead by %v, want an hour back", got)
	}
	give(t, dir, Orders{})
	if err := all(); err != nil {
		t.Errorf("healed: %v", err)
	}
}

func give(t *testing.T, dir string, o Orders) {
	t.Helper()
	if err := Give(dir, o); err != nil {
		t.Fatal(err)
	}
}

// TestOnlyTheFaultSuiteHasIt looks at what the binary is made of.
func TestOnlyTheFaultSuiteHasIt(t *testing.T) {
	const binary, this = "github.com/mqrouter/mqrouter/cmd/mqrouter", "github.com/mqrouter/mqrouter/cmd/mqrouter/internal/faults"
	for tags, want := range map[string]bool{"": false, "faults": true} {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", tags, binary).Output()
		if err != nil {
			t.Fatal(err)
		}
		if has := strings.Contains(string(out), this+"\n"); has != want {
			t.Errorf("built with the tags %q, the binary has faults in it: %v", tags, has)
		}
	}
}
