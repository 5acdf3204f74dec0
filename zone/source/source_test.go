package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

// text returns the sample topology with an epoch number and replacements.
func text(epoch int, oldnew ...string) string {
	s := strings.Replace(string(sample.YAML), "number: 1}", fmt.Sprintf("number: %d}", epoch), 1)
	return strings.NewReplacer(oldnew...).Replace(s)
}

// smaller is the sample without its topics and consumer groups.
func smaller(epoch int) string {
	s, _, _ := strings.Cut(text(epoch), "\ntopics:")
	return s + "\n"
}

func parse(t *testing.T, s string) *zone.Topology {
	t.Helper()
	topology, err := zone.Parse([]byte(s), "test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return topology
}

func TestJudgeLetsOnlyHigherEpochsOfOneDeploymentReplaceTheRunningTopology(t *testing.T) {
	running := parse(t, text(5))
	for _, c := range []struct {
		name string
		next string
		want error
	}{
		{"higher epoch", text(6), nil},
		{"higher term", strings.Replace(text(1), "term: 1", "term: 2", 1), nil},
		{"the same file", text(5), nil},
		{"the same values with another comment", text(5) + "\n# note\n", nil},
		{"the running epoch with other values", text(5, "retention: 168h", "retention: 24h"), ErrOtherDigest},
		{"lower epoch", text(4), ErrOlderEpoch},
		{"another deployment", text(6, "deployment: sample", "deployment: other"), ErrOtherDeployment},
		{"no topics any more", smaller(6), ErrMuchSmaller},
		{"a shard in another zone", text(6, "rz01: 0-19", "rz01: 0-20", "rz02: 20-39", "rz02: 21-39"), ErrMoves},
	} {
		err := Judge(running, parse(t, c.next))
		if !errors.Is(err, c.want) || (c.want == nil) != (err == nil) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
	if err := Judge(nil, running); err != nil {
		t.Errorf("at the start: got %v, want nil", err)
	}
}

// disk is the in-memory file and notifier of the tests.
type disk struct {
	mu      sync.Mutex
	content string
	err     error
	reads   int
	changes chan struct{}
}

func (d *disk) read(string) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reads++
	return []byte(d.content), d.err
}

func (d *disk) set(content string, err error) {
	d.mu.Lock()
	d.content, d.err = content, err
	d.mu.Unlock()
	if d.changes != nil {
		select {
		case d.changes <- struct{}{}:
		default:
		}
	}
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// follow opens a File on an in-memory disk and runs it until the test's bubble
// ends. With watched false, only polling tells of changes.
func follow(t *testing.T, first string, watched bool) (*File, *disk, *[]*RefusedError) {
	t.Helper()
	d := &disk{content: first}
	var refusals []*RefusedError
	opts := Options{Read: d.read, Log: quiet(), Refused: func(r *RefusedError) { refusals = append(refusals, r) }}
	opts.Notify = func(string) (<-chan struct{}, func(), error) { return nil, nil, errors.New("no watches left") }
	if watched {
		d.changes = make(chan struct{}, 1)
		opts.Notify = func(string) (<-chan struct{}, func(), error) { return d.changes, func() {}, nil }
	}
	f, err := Open("topology.yaml", opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run ended with %v", err)
		}
	})
	return f, d, &refusals
}

func TestFileAppliesAHigherEpochSoonAfterTheChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, d, _ := follow(t, text(1), true)
		_, changed := f.Watch()
		start := time.Now()
		d.set(text(2), nil)
		<-changed
		if took := time.Since(start); took > 200*time.Millisecond {
			t.Errorf("applied after %s", took)
		}
		if got := f.Current().Epoch; got != (zone.Epoch{Term: 1, Number: 2}) {
			t.Errorf("running epoch %s", got)
		}
	})
}

func TestFileIsFollowedByPollingWhenItCannotBeWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, d, _ := follow(t, text(1), false)
		_, changed := f.Watch()
		start := time.Now()
		d.set(text(2), nil)
		<-changed
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("applied after %s", took)
		}
	})
}

func TestFileThatChangesAllTheTimeIsStillRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, d, _ := follow(t, text(1), true)
		for i := range 20 { // a change each 50 ms, shorter than the time to settle
			d.set(text(2+i), nil)
			time.Sleep(50 * time.Millisecond)
		}
		if got := f.Current().Epoch.Number; got < 10 {
			t.Errorf("running epoch number %d after a second of changes", got)
		}
	})
}

func TestFileKeepsTheRunningTopologyAndTellsOnceWhatItRefused(t *testing.T) {
	for _, c := range []struct {
		name    string
		content string
		err     error
		want    error
	}{
		{"not valid", "deployment: [", nil, ErrInvalid},
		{"empty", "", nil, ErrInvalid},
		{"gone", "", os.ErrNotExist, os.ErrNotExist},
		{"older", text(4), nil, ErrOlderEpoch},
		{"same epoch, other digest", text(5, "retention: 168h", "retention: 24h"), nil, ErrOtherDigest},
		{"much smaller", smaller(6), nil, ErrMuchSmaller},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, d, refusals := follow(t, text(5), true)
				before := f.Current()
				d.set(c.content, c.err)
				time.Sleep(time.Minute) // several polls
				synctest.Wait()
				if f.Current() != before {
					t.Fatal("the topology was replaced")
				}
				if len(*refusals) != 1 || !errors.Is((*refusals)[0], c.want) {
					t.Fatalf("refusals: %v, want one of %v", *refusals, c.want)
				}
				if got := f.Refusal(); got == nil || !errors.Is(got, c.want) {
					t.Errorf("Refusal() = %v", got)
				}
				d.set(text(7), nil)
				time.Sleep(time.Minute)
				synctest.Wait()
				if f.Current().Epoch.Number != 7 || f.Refusal() != nil {
					t.Errorf("a good file was not applied afterwards: epoch %s, %v", f.Current().Epoch, f.Refusal())
				}
			})
		})
	}
}

func TestFileThatComesBackUnchangedClearsTheRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, d, _ := follow(t, text(5), true)
		d.set("", os.ErrPermission)
		time.Sleep(time.Second)
		if f.Refusal() == nil {
			t.Fatal("an unreadable file is not told")
		}
		d.set(text(5), nil)
		time.Sleep(time.Second)
		if f.Refusal() != nil {
			t.Errorf("still told: %v", f.Refusal())
		}
	})
}

func TestMuchSmallerTopologyIsAppliedWhenConfirmedByDigest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, d, refusals := follow(t, text(1), true)
		d.set(smaller(2), nil)
		time.Sleep(time.Second)
		synctest.Wait()
		if len(*refusals) != 1 {
			t.Fatalf("refusals: %v", *refusals)
		}
		if err := f.Confirm(t.Context(), zone.Digest{1}); !errors.Is(err, ErrNothingHeld) {
			t.Errorf("another digest: got %v", err)
		}
		if err := f.Confirm(t.Context(), (*refusals)[0].Digest); err != nil {
			t.Fatal(err)
		}
		if len(f.Current().Topics) != 0 || f.Refusal() != nil {
			t.Errorf("not applied: %d topics, %v", len(f.Current().Topics), f.Refusal())
		}
		if err := f.Confirm(t.Context(), f.Current().Digest); !errors.Is(err, ErrNothingHeld) {
			t.Errorf("confirmed twice: got %v", err)
		}
	})
}

func TestConfirmGivesUpWithItsContextWhenNothingRuns(t *testing.T) {
	d := &disk{content: text(1)}
	f, err := Open("topology.yaml", Options{Read: d.read, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Confirm(ctx, zone.Digest{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestOpenRefusesABadFileWithItsFaults(t *testing.T) {
	d := &disk{content: "deployment: sample\n"}
	_, err := Open("topology.yaml", Options{Read: d.read, Log: quiet()})
	var problems *zone.ProblemsError
	if !errors.Is(err, ErrInvalid) || !errors.As(err, &problems) || len(problems.Problems) == 0 {
		t.Errorf("got %v", err)
	}
	d.err = os.ErrNotExist
	if _, err := Open("topology.yaml", Options{Read: d.read, Log: quiet()}); !errors.Is(err, ErrUnreadable) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestWatchersAllEndAtTheNewestTopology(t *testing.T) {
	live := NewLive(parse(t, text(1)))
	const last = 8
	var watchers sync.WaitGroup
	for range 4 {
		watchers.Go(func() {
			seen := uint64(0)
			for {
				topology, changed := live.Watch()
				if topology.Epoch.Number < seen {
					t.Errorf("epoch fell from %d to %d", seen, topology.Epoch.Number)
				}
				if seen = topology.Epoch.Number; seen == last {
					return
				}
				<-changed
			}
		})
	}
	for i := 2; i <= last; i++ {
		if err := live.Apply(parse(t, text(i))); err != nil {
			t.Error(err)
		}
	}
	watchers.Wait()
}

// TestRealFileReplacedByRenameIsApplied uses the operating system's files and
// notifications: editors and Kubernetes replace files by renaming.
func TestRealFileReplacedByRenameIsApplied(t *testing.T) {
	path := filepath.Join(t.TempDir(), "topology.yaml")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write(text(1))
	f, err := Open(path, Options{Settle: time.Millisecond, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	for i := 2; i <= 4; i++ {
		_, changed := f.Watch()
		write(text(i))
		<-changed // by notification, or by the poll at the latest
		if got := f.Current().Epoch.Number; got != uint64(i) {
			t.Errorf("running epoch number %d, want %d", got, i)
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Run ended with %v", err)
	}
}

func TestChangeBetweenOpenAndRunIsNotMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{content: text(1)}
		notify := func(string) (<-chan struct{}, func(), error) { return nil, func() {}, nil }
		f, err := Open("topology.yaml", Options{Read: d.read, Notify: notify, Log: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		d.set(text(2), nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		synctest.Wait() // no time passes
		if got := f.Current().Epoch.Number; got != 2 {
			t.Errorf("running epoch number %d, want 2", got)
		}
		cancel()
		<-done
	})
}
