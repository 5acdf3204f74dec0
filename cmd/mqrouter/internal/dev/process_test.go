package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/zone"
)

func TestPausesDoubleWhileDeathsFollowEachOther(t *testing.T) {
	const base = 2 * time.Second
	for _, c := range []struct{ last, base, lived, want time.Duration }{
		{0, base, 0, base},
		{base, base, time.Second, 2 * base},
		{16 * time.Second, base, steady, maxPause},
		{maxPause, base, time.Second, maxPause},
		{maxPause, base, steady + 1, base},
		{2 * time.Minute, 2 * time.Minute, time.Second, 2 * time.Minute},
	} {
		if got := nextPause(c.last, c.base, c.lived); got != c.want {
			t.Errorf("after %v, having lived for %v: %v, want %v", c.last, c.lived, got, c.want)
		}
	}
}

func TestLastWordsAreTheEndOfTheLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(strings.Repeat("noise\n", 1000)+"one\ntwo\nmqrouter: no\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := tail(path); got != "one\ntwo\nmqrouter: no" {
		t.Errorf("got %q", got)
	}
	if got := tail(path + ".missing"); !strings.Contains(got, "no such file") {
		t.Errorf("got %q", got)
	}
}

// TestASecondDevKeepsOffTheNodesOfTheFirst: it would write over their pid files,
// and take them away when it fails.
func TestASecondDevKeepsOffTheNodesOfTheFirst(t *testing.T) {
	f := folder{t.TempDir()}
	supervise := func(nodes ...zone.Node) (stop func(), err error) {
		d := &deployment{f: f}
		for _, n := range nodes {
			d.nodes = append(d.nodes, &zone.NodeInfo{Name: n})
		}
		return d.supervise()
	}
	stop, err := supervise("a", "b")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := supervise("c", "b"); !errors.Is(err, disk.ErrLocked) || !strings.Contains(explain(err).Error(), "another mqrouter dev") {
		t.Errorf("a node that runs: %v", err)
	}
	other, err := supervise("c") // which the one that failed has let go
	if err != nil {
		t.Fatalf("another node of the same folder: %v", err)
	}
	defer other()
	stop()
	again, err := supervise("a", "b")
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	again()
}

// TestASecondDevIsToldOnce: twenty nodes whose ports are taken are one line and a count,
// and what else went wrong is told beside.
func TestASecondDevIsToldOnce(t *testing.T) {
	port := errors.New("rt-1: listen tcp 127.0.0.1:6001: bind: address already in use")
	failed := make(chan error, 9)
	for range 5 {
		failed <- port
	}
	failed <- fmt.Errorf("rz-1: %w", disk.ErrLocked)
	failed <- errors.New("rz-2: no such certificate")
	failed <- context.Canceled
	close(failed)
	got := explain(gather(port, failed)).Error()
	lines := strings.Split(got, "\n")
	if len(lines) != 4 || lines[0] != port.Error() || lines[1] != "rz-2: no such certificate" || !strings.HasPrefix(lines[2], "6 more") || !strings.Contains(lines[3], "another mqrouter dev") {
		t.Errorf("told:\n%s", got)
	}
}
