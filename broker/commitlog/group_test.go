package commitlog

import (
	"bytes"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/ship"
)

// followOptions are testOptions of a log that follows.
func followOptions(fsys disk.FS, seed uint64) Options {
	o := testOptions(fsys, seed)
	o.Follow, o.QueueBytes = true, 1<<20
	return o
}

// openFollower opens a log to follow and starts its delivery.
func openFollower(t testing.TB, fsys disk.FS, seed uint64) *harness {
	t.Helper()
	h := open(t, followOptions(fsys, seed))
	h.Start()
	return h
}

// openMaster opens an empty log to follow and promotes it.
func openMaster(t testing.TB, fsys disk.FS, seed uint64) *harness {
	t.Helper()
	h := openFollower(t, fsys, seed)
	h.promote(h.Epoch()+1, record.LineageID(seed)<<8+1)
	return h
}

func (h *harness) promote(epoch uint64, id record.LineageID) {
	h.t.Helper()
	if err := h.Promote(context.Background(), epoch, id); err != nil {
		h.t.Fatalf("promote: %v", err)
	}
}

// write appends one entry and returns when it is durable at the master.
func (h *harness) write(n, size int) {
	h.t.Helper()
	out, err := h.send(&Batch{Entries: []Entry{numbered(n, size)}, Ack: AckSynced})
	if err == nil {
		err = <-out
	}
	if err != nil {
		h.t.Fatalf("write of %d: %v", n, err)
	}
	h.settle()
}

// settle returns when the writer has written its lineage and synced everything.
func (h *harness) settle() {
	c := make(chan struct{}, 1)
	defer h.Notify(c)()
	for h.Synced() < h.End() || h.End() == h.Present().First {
		<-c
	}
}

// adopt makes an empty store of the master's on a disk.
func adopt(t testing.TB, fsys disk.FS, master *harness) {
	t.Helper()
	o := ship.Origin{Incarnation: master.Incarnation(), Lanes: master.Lanes(), Begin: master.Begin()}
	for _, row := range master.Lineage() {
		if row.First <= o.Begin {
			o.Lineage = append(o.Lineage, row)
		}
	}
	if err := Create(followOptions(fsys, 0), o); err != nil {
		t.Fatalf("create: %v", err)
	}
}

// align cuts the replica back to what it has in common with the master, as
// shipping does. It returns false when that would take back what is committed.
func align(t testing.TB, master, replica *harness) bool {
	t.Helper()
	ms, rs := master.Lineage(), replica.Lineage()
	n := 0
	for n < len(ms) && n < len(rs) && ms[n] == rs[n] {
		n++
	}
	end := func(h *harness, rows []LineageStart) record.Position {
		if n < len(rows) {
			return rows[n].First
		}
		return h.End()
	}
	to := min(end(master, ms), end(replica, rs))
	if n == len(rs) && to == replica.End() {
		return true
	}
	err := replica.Truncate(context.Background(), to)
	if errors.Is(err, ship.ErrCommitted) {
		return false
	}
	if err != nil {
		t.Fatalf("truncate to %d: %v", to, err)
	}
	return true
}

// ship1 sends one stretch of at most limit bytes; false when there is nothing.
func ship1(t testing.TB, master, replica *harness, limit int) (bool, error) {
	t.Helper()
	from := replica.End()
	for _, row := range master.Lineage() {
		if last := replica.Present(); row.First == from && row.Epoch > last.Epoch {
			if err := replica.AddLineage(context.Background(), row); err != nil {
				return false, err
			}
		}
	}
	s, err := master.ReadRaw(context.Background(), from, limit, nil)
	if err != nil {
		t.Fatalf("read from %d: %v", from, err)
	}
	if len(s.Frames) == 0 {
		return false, nil
	}
	return true, replica.AppendRaw(context.Background(), s)
}

// shipAll sends everything and makes it durable.
func shipAll(t testing.TB, master, replica *harness) {
	t.Helper()
	for {
		more, err := ship1(t, master, replica, 1500)
		if err != nil {
			t.Fatalf("ship: %v", err)
		}
		if !more {
			break
		}
	}
	if _, err := replica.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// raw returns the bytes of a log up to an end.
func raw(t testing.TB, h *harness, to record.Position) []byte {
	t.Helper()
	var all []byte
	for from := h.Begin(); from < to; {
		s, err := h.readRaw(context.Background(), from, to, 4<<10, nil)
		if err != nil || len(s.Frames) == 0 {
			t.Fatalf("raw bytes at %d of %d: %d, %v", from, to, len(s.Frames), err)
		}
		all, from = append(all, s.Frames...), s.Next
	}
	return all
}

// files returns the segment files of a disk, without the times in their headers
// and the zeros at their ends.
func files(t testing.TB, fsys disk.FS) map[string][]byte {
	t.Helper()
	list, err := listSegments(fsys, testDir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for _, s := range list {
		f, err := fsys.Open(testDir + "/" + s.name)
		if err != nil {
			t.Fatal(err)
		}
		size, _ := f.Size()
		b := make([]byte, size)
		if _, err := f.ReadAt(b, 0); err != nil {
			t.Fatal(err)
		}
		f.Close()
		clear(b[24:64])
		all[s.name] = b[:max(trimZeros(b), headerLen)]
	}
	return all
}

func TestReplicaIsItsMasterByteForByte(t *testing.T) {
	ma, mb := disk.NewMem(), disk.NewMem()
	a := openMaster(t, ma, 1)
	for n := range 40 {
		a.write(n+1, 50+37*n%700)
	}
	adopt(t, mb, a)
	b := openFollower(t, mb, 2)
	shipAll(t, a, b)
	if got, want := b.numbers(), []int(nil); !slices.Equal(got, want) {
		t.Fatalf("delivered before the commit: %v", got)
	}
	if _, err := b.ReadAt(a.Lineage()[0].First+headerLen, 0); !errors.Is(err, ErrBeyondEnd) {
		t.Errorf("read before the commit: %v", err)
	}
	end := min(a.Synced(), b.Synced())
	a.Commit(end)
	b.Commit(end)
	a.write(41, 100) // its mark tells the replica
	shipAll(t, a, b)
	same := files(t, ma)
	for name, want := range files(t, mb) {
		if !bytes.Equal(same[name], want) {
			t.Errorf("segment %s differs", name)
		}
		delete(same, name)
	}
	if len(same) > 0 || !slices.Equal(a.Lineage(), b.Lineage()) || a.Incarnation() != b.Incarnation() {
		t.Errorf("left over %d segments; lineages %v and %v", len(same), a.Lineage(), b.Lineage())
	}
	b.Close()
	again := open(t, followOptions(mb, 3))
	if again.Committed() < end || again.End() != a.End() {
		t.Errorf("after opening again committed %d of %d, end %d of %d", again.Committed(), end, again.End(), a.End())
	}
	if got := scan(t, again.Log, 0); !slices.Equal(got, sequence(1, 40)) {
		t.Errorf("committed: %v", got)
	}
}

// What comes from memory is given by the limit, not write by write.
func TestAStretchFromMemoryHoldsManyWrites(t *testing.T) {
	o := followOptions(disk.NewMem(), 1)
	o.SegmentBytes, o.TailBytes = 1<<20, 1<<20
	h := open(t, o)
	h.Start()
	h.promote(1, 257)
	for n := range 40 {
		h.write(n+1, 100)
	}
	all := raw(t, h, h.End())
	for _, limit := range []int{1, 200, 1000, 1 << 20} {
		var got []byte
		stretches := 0
		for from := h.Begin(); from < h.End(); stretches++ {
			s, err := h.ReadRaw(t.Context(), from, limit, nil)
			if err != nil || len(s.Frames) == 0 {
				t.Fatalf("limit %d at %d: %d bytes, %v", limit, from, len(s.Frames), err)
			}
			if first, ok := parseFrame(s.Frames, max(from, headerLen)); !ok || len(s.Frames) > max(limit, first.size()) {
				t.Errorf("limit %d: %d bytes at %d", limit, len(s.Frames), from)
			}
			got, from = append(got, s.Frames...), s.Next
		}
		if !bytes.Equal(got, all) {
			t.Errorf("limit %d: %d bytes differ from the log's %d", limit, len(got), len(all))
		}
		if most := 1 + 2*len(all)/limit; stretches > most && limit >= 1000 {
			t.Errorf("limit %d: %d bytes in %d stretches, want %d at most", limit, len(all), stretches, most)
		}
	}
}

// What a power cut leaves knows what was committed by the marks in it.
func TestMarksTellWhatIsCommittedAfterAPowerCut(t *testing.T) {
	ma, mb := disk.NewMem(), disk.NewMem()
	a := openMaster(t, ma, 1)
	a.write(1, 100)
	adopt(t, mb, a)
	b := openFollower(t, mb, 2)
	shipAll(t, a, b)
	end := b.Synced()
	a.Commit(end)
	a.write(2, 100)
	shipAll(t, a, b)
	for seed := range uint64(20) {
		h := open(t, followOptions(mb.Crash(rand.New(rand.NewPCG(seed, 5))), 9))
		if h.Committed() != end || h.End() != b.Synced() {
			t.Errorf("seed %d: committed %d of %d, end %d of %d", seed, h.Committed(), end, h.End(), b.Synced())
		}
		h.Close()
	}
}

func TestFollowerRefusesWhatDoesNotFollow(t *testing.T) {
	a := openMaster(t, disk.NewMem(), 1)
	for n := range 12 {
		a.write(n+1, 300)
	}
	mb := disk.NewMem()
	adopt(t, mb, a)
	b := openFollower(t, mb, 2)
	other := openMaster(t, disk.NewMem(), 3)
	other.write(1, 300)
	blank := openFollower(t, disk.NewMem(), 4)
	read := func(h *harness, from record.Position) ship.Stretch {
		s, err := h.ReadRaw(context.Background(), from, 1000, nil)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := read(a, 0)
	mc := disk.NewMem()
	if err := Create(followOptions(mc, 0), ship.Origin{Incarnation: a.Incarnation(), Lanes: 4}); err != nil {
		t.Fatal(err)
	}
	if err := openFollower(t, mc, 5).AppendRaw(context.Background(), first); !errors.Is(err, ship.ErrRefused) {
		t.Errorf("without a lineage: %v", err)
	}
	if err := blank.AppendRaw(context.Background(), first); !errors.Is(err, ship.ErrRefused) || blank.Incarnation() != 0 {
		t.Errorf("in an empty store: %v", err)
	}
	if _, err := ship1(t, a, b, 1000); err != nil {
		t.Fatal(err)
	}
	good := read(a, b.End())
	damage := func(at int) ship.Stretch {
		s := good
		s.Frames = bytes.Clone(s.Frames)
		s.Frames[at] ^= 1
		return s
	}
	end := b.End()
	cases := map[string]ship.Stretch{
		"a repeated stretch":        first,
		"a hole":                    read(a, good.Next),
		"another store's":           read(other, 0),
		"a damaged header":          damage(9),
		"a damaged payload":         damage(frameLen + 70),
		"a last byte cut off":       {From: good.From, Next: good.Next, Frames: good.Frames[:len(good.Frames)-1]},
		"a last frame's header":     {From: good.From, Next: good.Next, Frames: good.Frames[:frameLen-8]},
		"no frames":                 {From: good.From, Next: good.From},
		"a wrong end":               {From: good.From, Next: good.Next + 8, Frames: good.Frames},
		"a segment that is not one": {From: good.From, Base: true, Next: good.Next, Frames: good.Frames},
	}
	for what, s := range cases {
		if err := b.AppendRaw(context.Background(), s); !errors.Is(err, ship.ErrRefused) {
			t.Errorf("%s: %v", what, err)
		}
		if b.End() != end || b.Err() != nil {
			t.Fatalf("%s: end %d of %d, %v", what, b.End(), end, b.Err())
		}
	}
	row := LineageStart{Epoch: 9, ID: 9, First: end - 8}
	if err := b.AddLineage(context.Background(), row); !errors.Is(err, ship.ErrRefused) {
		t.Errorf("a lineage that begins elsewhere: %v", err)
	}
	row = LineageStart{Epoch: 1, ID: 9, First: end}
	if err := b.AddLineage(context.Background(), row); !errors.Is(err, ship.ErrRefused) {
		t.Errorf("a lineage of an old epoch: %v", err)
	}
	if err := b.AppendRaw(context.Background(), good); err != nil {
		t.Errorf("the good one: %v", err)
	}
	if err := a.AppendRaw(context.Background(), good); !errors.Is(err, ErrNotStarted) {
		t.Errorf("append to a master: %v", err)
	}
	if err := b.Append(context.Background(), &Batch{Entries: []Entry{numbered(1, 1)}}); !errors.Is(err, ErrNotStarted) {
		t.Errorf("publish to a replica: %v", err)
	}
	if err := b.Promote(context.Background(), 1, 7); !errors.Is(err, ErrEpoch) {
		t.Errorf("promote in an old epoch: %v", err)
	}
}

func TestTruncateTakesBackWhatIsNotCommitted(t *testing.T) {
	ma, mb := disk.NewMem(), disk.NewMem()
	a := openMaster(t, ma, 1)
	for n := range 10 {
		a.write(n+1, 300)
	}
	adopt(t, mb, a)
	b := openFollower(t, mb, 2)
	shipAll(t, a, b)
	a.Commit(b.Synced())
	b.Commit(b.Synced())
	split := a.End()
	for n := range 30 { // over several segments
		a.write(n+11, 300)
	}
	shipAll(t, a, b)
	if err := b.Truncate(context.Background(), split-8); !errors.Is(err, ship.ErrCommitted) {
		t.Errorf("below the commit: %v", err)
	}
	if err := b.Truncate(context.Background(), split+8); !errors.Is(err, ship.ErrRefused) {
		t.Errorf("inside a frame: %v", err)
	}
	if err := b.Truncate(context.Background(), b.End()+32); !errors.Is(err, ship.ErrRefused) {
		t.Errorf("beyond the end: %v", err)
	}
	if err := b.Truncate(context.Background(), split); err != nil || b.End() != split || b.Synced() != split {
		t.Fatalf("truncate: %v, end %d of %d", err, b.End(), split)
	}
	b.promote(7, 77)
	b.write(11, 400)
	a.Close()
	c := openFollower(t, ma, 3)
	if !align(t, b, c) || c.End() != split {
		t.Fatalf("end %d of %d", c.End(), split)
	}
	shipAll(t, b, c)
	end := c.Synced()
	b.Commit(end)
	c.Commit(end)
	if got, want := raw(t, c, end), raw(t, b, end); !bytes.Equal(got, want) {
		t.Error("the old master differs from the new one")
	}
	c.Close()
	if got := scan(t, open(t, followOptions(ma, 4)).Log, 0); !slices.Equal(got, sequence(1, 11)) {
		t.Errorf("the old master holds %v", got)
	}
}

// The moments of Done differ only in a group with replicas.
func TestDoneComesWhenItIsAskedFor(t *testing.T) {
	a := openMaster(t, disk.NewMem(), 1)
	a.settle()
	outs := map[Ack]<-chan error{}
	for _, ack := range []Ack{AckCommitted, AckQuorum, AckSynced} {
		out, err := a.send(&Batch{Entries: []Entry{numbered(int(ack)+1, 10)}, Ack: ack})
		if err != nil {
			t.Fatal(err)
		}
		outs[ack] = out
	}
	if err := <-outs[AckSynced]; err != nil {
		t.Fatal(err)
	}
	a.settle()
	if len(outs[AckQuorum])+len(outs[AckCommitted]) > 0 || len(a.numbers()) > 0 {
		t.Error("something was acknowledged or delivered too early")
	}
	a.Acked(a.Synced())
	if err := <-outs[AckQuorum]; err != nil {
		t.Fatal(err)
	}
	if len(outs[AckCommitted]) > 0 || len(a.numbers()) > 0 {
		t.Error("something was acknowledged or delivered before the commit")
	}
	a.Commit(a.Synced())
	if err := <-outs[AckCommitted]; err != nil || !slices.Equal(a.numbers(), sequence(1, 3)) {
		t.Errorf("%v, delivered %v", err, a.numbers())
	}
}

// What a master may no longer acknowledge it does not.
func TestDeposedMasterAcknowledgesNothing(t *testing.T) {
	a := openMaster(t, disk.NewMem(), 1)
	out, err := a.send(&Batch{Entries: []Entry{numbered(1, 10)}})
	if err != nil {
		t.Fatal(err)
	}
	a.settle()
	gone := errors.New("lease is over")
	a.Depose(gone)
	if err := <-out; !errors.Is(err, ErrStopped) || !errors.Is(err, gone) {
		t.Errorf("waiting batch: %v", err)
	}
	a.Commit(a.Synced())
	if err := a.append(numbered(2, 10)); !errors.Is(err, gone) {
		t.Errorf("next batch: %v", err)
	}
	if !errors.Is(a.Err(), gone) {
		t.Errorf("err: %v", a.Err())
	}
}

// A group that does not commit holds its publishers back instead of its memory.
func TestWhatIsNotCommittedIsBounded(t *testing.T) {
	o := followOptions(disk.NewMem(), 1)
	o.QueueBytes = 16 << 10
	a := open(t, o)
	a.Start()
	a.promote(1, 1)
	a.settle()
	ctx, cancel := context.WithCancel(context.Background())
	refused := make(chan error, 1)
	go func() {
		for n := 1; ; n++ {
			if err := a.Append(ctx, &Batch{Entries: []Entry{numbered(n, 1000)}}); err != nil {
				refused <- err
				return
			}
		}
	}()
	limit := record.Position(a.options.QueueBytes)
	for c := make(chan struct{}, 1); a.Usage().Full == 0; { // the queue is full as well
		stop := a.Notify(c)
		select {
		case <-c:
		default:
		}
		stop()
	}
	if held := a.End() - a.Committed(); held > limit+record.Position(a.options.MaxBatchBytes)+headerLen*2 {
		t.Errorf("%d bytes are not committed, bound %d", held, limit)
	}
	cancel()
	if err := <-refused; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestFailedSyncStopsAFollower(t *testing.T) {
	a := openMaster(t, disk.NewMem(), 1)
	a.write(1, 100)
	mb := disk.NewMem()
	adopt(t, mb, a)
	f := disk.NewFaulty(mb)
	b := openFollower(t, f, 2)
	if _, err := ship1(t, a, b, 1000); err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	f.Set(func(op disk.Op, _ string) error {
		if op == disk.OpSync {
			return boom
		}
		return nil
	})
	synced := b.Synced()
	if _, err := b.Sync(context.Background()); !errors.Is(err, ErrStopped) || !errors.Is(err, boom) {
		t.Errorf("sync: %v", err)
	}
	f.Set(nil)
	if p, err := b.Sync(context.Background()); !errors.Is(err, ErrStopped) || p != synced || !errors.Is(b.Err(), boom) {
		t.Errorf("sync after: %d, %v; %v", p, err, b.Err())
	}
	if err := b.Promote(context.Background(), 5, 5); !errors.Is(err, ErrStopped) {
		t.Errorf("promote: %v", err)
	}
	b.Commit(math.MaxUint64)
	if b.Committed() > synced {
		t.Errorf("committed %d, durable %d", b.Committed(), synced)
	}
}
