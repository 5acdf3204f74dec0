package acl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	good   = "users: [{access_key: a, secret: 0123456789abcdef}]"
	better = "users: [{access_key: a, secret: 0123456789abcdef}, {access_key: b, secret: 0123456789abcdef}]"
)

// place is a file in memory.
type place struct {
	mu   sync.Mutex
	text string
	err  error
}

func (p *place) set(text string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text, p.err = text, err
}

func (p *place) read(string) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return []byte(p.text), p.err
}

// TestBrokenFileLeavesTheLastGoodOne: it is told once, and the next good one is taken.
func TestBrokenFileLeavesTheLastGoodOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines bytes.Buffer
		p := &place{text: good}
		changes := make(chan struct{})
		stopped := false
		f, err := Open("acl.yaml", Options{Read: p.read, Log: slog.New(slog.NewTextHandler(&lines, nil)),
			Notify: func(string) (<-chan struct{}, func(), error) { return changes, func() { stopped = true }, nil }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		first, changed := f.Watch()

		p.set("users: [{access_key: a, secret: hunter2}]", nil)
		changes <- struct{}{}
		time.Sleep(time.Second)
		if a, _ := f.Watch(); a != first || !strings.Contains(f.Problem(), "7 bytes") {
			t.Fatalf("a broken file: problem %q", f.Problem())
		}
		time.Sleep(time.Minute) // polled again and again
		p.set("", fs.ErrPermission)
		time.Sleep(time.Minute)
		synctest.Wait()
		if text := lines.String(); strings.Count(text, "level=ERROR") != 2 || strings.Contains(text, "hunter2") {
			t.Errorf("the log:\n%s", text)
		}

		p.set(good, nil) // as it was: in force again, and no problem
		time.Sleep(time.Minute)
		if f.Problem() != "" {
			t.Errorf("problem %q", f.Problem())
		}
		p.set(better, nil) // nothing tells: the poll finds it
		time.Sleep(time.Minute)
		select {
		case <-changed:
		default:
			t.Error("nobody is told of the change")
		}
		if a, _ := f.Watch(); len(a.Users()) != 2 {
			t.Errorf("%d users", len(a.Users()))
		}
		close(changes)
		time.Sleep(time.Minute)
		cancel()
		if err := <-done; err != nil || !stopped {
			t.Errorf("Run: %v, watch stopped: %v", err, stopped)
		}
	})
}

// TestFileOfOthersIsRefused: secrets that others can read are none.
func TestFileOfOthersIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "acl.yaml")
	if err := os.WriteFile(path, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, ok := range map[fs.FileMode]bool{0o600: true, 0o640: true, 0o400: true, 0o644: false, 0o660: false, 0o604: false, 0o602: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		_, err := Open(path, Options{})
		var bad *ModeError
		if ok != (err == nil) || !ok && !errors.As(err, &bad) {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	if _, err := Open(filepath.Dir(path), Options{}); !errors.Is(err, errNoFile) {
		t.Errorf("a folder: %v", err)
	}
	if _, err := Open(path+"x", Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// TestHalfAFileIsNotInForce: the file is written in place, slower than a change rests, and
// its beginning is good. Only the whole is in force; one that changes for ever is, too.
func TestHalfAFileIsNotInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines bytes.Buffer
		const user = "- {access_key: k%d, secret: 0123456789abcdef}\n"
		write := func(n int) string {
			text := "users:\n"
			for i := range n {
				text += fmt.Sprintf(user, i)
			}
			return text
		}
		p := &place{text: write(10)}
		changes := make(chan struct{})
		f, err := Open("acl.yaml", Options{Read: p.read, Log: slog.New(slog.NewTextHandler(&lines, nil)),
			Notify: func(string) (<-chan struct{}, func(), error) { return changes, func() {}, nil }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		synctest.Wait() // it has looked once
		p.set(write(1), nil)
		changes <- struct{}{}
		for n := 2; n <= 11; n++ {
			time.Sleep(70 * time.Millisecond)
			p.set(write(n), nil)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if a, _ := f.Watch(); len(a.Users()) != 11 || strings.Count(lines.String(), "in force") != 1 {
			t.Errorf("%d users; the log:\n%s", len(a.Users()), lines.String())
		}
		for n := range 200 { // 10 s, and a poll
			p.set(write(1+n%2), nil)
			time.Sleep(50*time.Millisecond + time.Duration(n%7)*time.Millisecond)
		}
		if a, _ := f.Watch(); len(a.Users()) == 11 {
			t.Error("a file that changes for ever is never read")
		}
		cancel()
		<-done
	})
}
