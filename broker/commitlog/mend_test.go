package commitlog

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/ship"
)

// wounded is a master and a replica that has everything, in several segments.
type wounded struct {
	a, b   *harness
	mem    *disk.Mem // b's
	end    record.Position
	sealed []string // b's, oldest first
}

func newWounded(t *testing.T) *wounded {
	t.Helper()
	w := &wounded{mem: disk.NewMem()}
	w.a = openMaster(t, disk.NewMem(), 1)
	for n := range 60 {
		w.a.write(n+1, 100+37*n%700)
	}
	adopt(t, w.mem, w.a)
	w.b = openFollower(t, w.mem, 2)
	w.ship(t)
	list, err := listSegments(w.mem, testDir)
	if err != nil || len(list) < 4 {
		t.Fatalf("%d segments, %v", len(list), err)
	}
	for _, s := range list[:len(list)-1] {
		w.sealed = append(w.sealed, s.name)
	}
	return w
}

// ship sends everything to the replica, and commits it.
func (w *wounded) ship(t *testing.T) {
	t.Helper()
	shipAll(t, w.a, w.b)
	w.end = min(w.a.Synced(), w.b.Synced())
	w.a.Commit(w.end)
	w.b.Commit(w.end)
}

// rot changes a byte of one of the replica's files, for good.
func (w *wounded) rot(t *testing.T, name string, off int64) {
	t.Helper()
	flip(t, w.mem, name, off)
	f, err := w.mem.Open(testDir + "/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

// wounds looks at everything that is sealed.
func (w *wounded) wounds(t *testing.T) (*Scrubber, []Wound) {
	t.Helper()
	s := NewScrubber(w.b.Log)
	for done := false; !done; {
		var err error
		if _, _, done, err = s.Step(t.Context(), 1000); err != nil {
			t.Fatal(err)
		}
	}
	return s, s.Wounds()
}

// from is the other member as a source.
func from(h *harness) Source {
	return func(ctx context.Context, p record.Position) (ship.Stretch, error) { return h.ReadRaw(ctx, p, 700, nil) }
}

// sound fails unless the replica's disk is its master's byte for byte up to the end that
// both have; a master that has been idle for a while writes a mark behind it.
func (w *wounded) sound(t *testing.T, fsys disk.FS) {
	t.Helper()
	want, last := files(t, w.a.options.FS), (*w.a.segments.Load())
	at := last[len(last)-1]
	want[at.name] = want[at.name][:w.end-at.base]
	for name, have := range files(t, fsys) {
		if name == at.name {
			have = have[:w.end-at.base]
		}
		if !bytes.Equal(have, want[name]) {
			t.Errorf("segment %s differs", name)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("%d segments are missing", len(want))
	}
}

// A rotten segment, one whose header is damaged and one that is lost become those of
// another member again, while the log is read and written on, and stay so.
func TestDamagedSegmentsAreMadeAnewFromACopy(t *testing.T) {
	w := newWounded(t)
	w.b.Close()
	w.rot(t, w.sealed[0], headerLen+frameLen+20)
	w.rot(t, w.sealed[1], 3)
	if err := w.mem.Remove(testDir + "/" + w.sealed[3]); err != nil {
		t.Fatal(err)
	}
	w.b = openFollower(t, w.mem, 3)
	w.b.Commit(w.end)
	s, found := w.wounds(t)
	if len(found) != 3 || found[0].To != found[1].From {
		t.Fatalf("found %+v", found)
	}
	for i, x := range found {
		if err := w.b.Mend(t.Context(), x.From, from(w.a)); err != nil {
			t.Fatalf("wound %d: %v", i, err)
		}
		s.Mended(x)
		w.a.write(61+i, 200)
		w.ship(t)
	}
	if left := s.Wounds(); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
	if _, left := w.wounds(t); len(left) > 0 {
		t.Errorf("after another look: %+v", left)
	}
	if got := scan(t, w.b.Log, 0); !slices.Equal(got, sequence(1, 63)) {
		t.Errorf("read: %v", got)
	}
	w.b.Close()
	w.sound(t, w.mem)
	if again := open(t, followOptions(w.mem, 4)); again.End() != w.end {
		t.Errorf("opened again it ends at %d, want %d", again.End(), w.end)
	}
}

// A power cut at any moment of it leaves the damaged segment or the whole one, and nothing
// else is touched.
func TestACrashWhileASegmentIsMadeAnewDoesNoHarm(t *testing.T) {
	w := newWounded(t)
	w.rot(t, w.sealed[1], headerLen+frameLen+20)
	_, found := w.wounds(t)
	if len(found) != 1 {
		t.Fatalf("found %+v", found)
	}
	before := files(t, w.mem)[w.sealed[1]]
	rng := rand.New(rand.NewPCG(7, 7))
	var images []*disk.Mem
	w.mem.AfterOp(func(int) { images = append(images, w.mem.Crash(rng)) })
	if err := w.b.Mend(t.Context(), found[0].From, from(w.a)); err != nil {
		t.Fatal(err)
	}
	w.mem.AfterOp(nil)
	healed := 0
	for i, image := range append(images, w.mem.Crash(rng)) {
		at := &wounded{a: w.a, b: open(t, followOptions(image, 9)), mem: image, end: w.end}
		at.b.Start()
		at.b.Commit(w.end)
		if at.b.End() != w.end {
			t.Fatalf("cut %d: the log ends at %d, want %d", i, at.b.End(), w.end)
		}
		switch _, left := at.wounds(t); {
		case len(left) == 0:
			healed++
			at.sound(t, image)
		case len(left) > 1 || left[0].From != found[0].From || !bytes.Equal(files(t, image)[w.sealed[1]], before):
			t.Fatalf("cut %d: %+v: neither the old file nor the new one", i, left)
		}
		at.b.Close()
		if names, err := image.List(testDir); err != nil || slices.Contains(names, mendName) {
			t.Errorf("cut %d: %v, %v", i, names, err)
		}
	}
	if healed == 0 || healed > len(images) {
		t.Errorf("whole after %d of %d cuts", healed, len(images)+1)
	}
}

// What the disk does not return as it was written is not put in the place of the damaged
// file: the new one is read again before.
func TestAMendedSegmentIsReadBeforeItIsUsed(t *testing.T) {
	w := newWounded(t)
	w.rot(t, w.sealed[1], headerLen+frameLen+20)
	w.b.Close()
	faulty := disk.NewFaulty(w.mem)
	o := followOptions(w.mem, 3)
	o.FS = faulty
	w.b = open(t, o)
	w.b.Start()
	w.b.Commit(w.end)
	_, found := w.wounds(t)
	if len(found) != 1 {
		t.Fatalf("found %+v", found)
	}
	before := files(t, w.mem)[w.sealed[1]]
	rotten := false
	faulty.Set(func(op disk.Op, name string) error {
		if op == disk.OpRead && strings.HasSuffix(name, mendName) && !rotten { // the disk has lost a byte since
			rotten = true
			flip(t, w.mem, mendName, headerLen+frameLen+20)
		}
		return nil
	})
	err := w.b.Mend(t.Context(), found[0].From, from(w.a))
	var bad *CorruptError
	if !errors.As(err, &bad) {
		t.Errorf("it was put in its place: %v", err)
	}
	faulty.Set(nil)
	if have := files(t, w.mem)[w.sealed[1]]; !bytes.Equal(have, before) {
		t.Error("the file has changed")
	}
	if names, err := w.mem.List(testDir); err != nil || slices.Contains(names, mendName) {
		t.Errorf("left over: %v, %v", names, err)
	}
	if err := w.b.Mend(t.Context(), found[0].From, from(w.a)); err != nil {
		t.Fatal(err)
	}
	if _, left := w.wounds(t); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

// What is not what stood there is not taken, and the damaged file stays as it is: the
// wrong part, another store's, one that is damaged as well, and a part that is not sealed.
func TestASegmentIsNotMadeOfAnythingElse(t *testing.T) {
	w := newWounded(t)
	w.rot(t, w.sealed[1], headerLen+frameLen+20)
	_, found := w.wounds(t)
	other := openMaster(t, disk.NewMem(), 5)
	for n := range 60 {
		other.write(n+1, 100+37*n%700)
	}
	other.Commit(other.Synced())
	before := files(t, w.mem)
	base := found[0].From
	gone := errors.New("it does not answer")
	for name, c := range map[string]struct {
		from   record.Position
		source Source
		want   error
	}{
		"another store": {base, from(other), ship.ErrRefused},
		"another part": {base, func(ctx context.Context, p record.Position) (ship.Stretch, error) {
			return w.a.ReadRaw(ctx, 0, 700, nil)
		}, ship.ErrRefused},
		"less": {base, func(context.Context, record.Position) (ship.Stretch, error) { return ship.Stretch{}, nil }, ship.ErrRefused},
		"damaged bytes": {base, func(ctx context.Context, p record.Position) (ship.Stretch, error) {
			st, err := w.a.ReadRaw(ctx, p, 700, nil)
			st.Frames[len(st.Frames)/2] ^= 1
			return st, err
		}, ship.ErrRefused},
		"nobody":     {base, func(context.Context, record.Position) (ship.Stretch, error) { return ship.Stretch{}, gone }, gone},
		"not sealed": {(*w.b.segments.Load())[len(*w.b.segments.Load())-1].base, from(w.a), ErrNoWound},
		"not a base": {base + 8, from(w.a), ErrNoWound},
	} {
		if err := w.b.Mend(t.Context(), c.from, c.source); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.mem.SetLimit(w.mem.Used() + 100)
	if err := w.b.Mend(t.Context(), base, from(w.a)); !errors.Is(err, ErrFull) {
		t.Errorf("without room: %v", err)
	}
	w.mem.SetLimit(0)
	for name, want := range before {
		if have := files(t, w.mem)[name]; !bytes.Equal(have, want) {
			t.Errorf("segment %s has changed", name)
		}
	}
	if names, err := w.mem.List(testDir); err != nil || slices.Contains(names, mendName) {
		t.Errorf("left over: %v, %v", names, err)
	}
}
