package ship

import (
	"context"
	"fmt"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
)

// seed takes the files of a snapshot and becomes a copy of the master's store. It
// returns ErrReplaced when it has.
func (s *following) seed(ctx context.Context, answer wire.Frame) error {
	x, err := wire.ParseSeed(answer.Payload)
	if err != nil {
		return err
	}
	o := &s.f.o
	if x.Epoch != s.to.epoch {
		return breach(fmt.Sprintf("a master of epoch %d answered for epoch %d", x.Epoch, s.to.epoch))
	}
	begin, _, _, committed := s.f.positions()
	switch inc := o.Log.Incarnation(); {
	case inc == 0:
	case inc != x.Incarnation:
		return s.diverged("another store of the same name", 0)
	case committed > begin && x.Begin <= committed:
		return s.diverged("the master would replace what it could go on from", x.Begin)
	}
	if err := s.keep(ctx, &x); err != nil {
		return err
	}
	files := make([]File, len(x.Files))
	for i, f := range x.Files {
		files[i] = File{Name: f.Name, Size: int64(f.Size)}
	}
	o.Logger.Info("taking a snapshot of the master", "peer", string(s.to.master), "begin", x.Begin, "files", len(files))
	if err := o.Restore.Start(ctx, files); err != nil {
		return restoring("restore", err)
	}
	s.heard = time.Now()
	for i, f := range files {
		for off := int64(0); off < f.Size; {
			n, err := s.filePart(ctx, i, off, f.Size)
			if err != nil {
				return err
			}
			off += n
		}
	}
	origin := Origin{Incarnation: x.Incarnation, Lanes: int(x.Lanes), Begin: x.Begin, Lineage: x.Lineage}
	if err := o.Restore.Install(ctx, origin); err != nil {
		return restoring("install", err)
	}
	o.Logger.Info("store replaced by the master's", "peer", string(s.to.master), "begin", x.Begin)
	return ErrReplaced
}

// keep has the log save what it has and the master has not: the store is going to be
// replaced.
func (s *following) keep(ctx context.Context, x *wire.Seed) error {
	l := s.f.o.Log
	begin, end, _, _ := s.f.positions()
	if l.Incarnation() == 0 || begin == end {
		return nil
	}
	common, ok := commonEnd(extent{lineage: l.Lineage(), begin: begin, end: end}, extent{lineage: x.Lineage, begin: x.Begin, end: x.Begin})
	if !ok {
		common = begin
	}
	if err := l.Keep(ctx, common); err != nil {
		return restoring("keep", err)
	}
	return nil
}

// filePart takes the next part of a file and returns its length.
func (s *following) filePart(ctx context.Context, file int, off, size int64) (int64, error) {
	if err := s.ack(ctx); err != nil { // grants credit
		return 0, err
	}
	silence := time.NewTimer(s.f.o.Limits.Dial)
	defer silence.Stop()
	var f wire.Frame
	select {
	case next, open := <-s.frames:
		if !open {
			return 0, context.Cause(ctx)
		}
		f = next
	case <-silence.C:
		return 0, fmt.Errorf("ship: master %s has been silent for %s", s.to.master, s.f.o.Limits.Dial)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if f.Type != wire.TypePart {
		return 0, breach("a master sent " + f.Type.String())
	}
	p, err := wire.ParsePart(f.Payload)
	if err != nil {
		return 0, err
	}
	n := int64(len(p.Data))
	if int(p.File) != file || int64(p.Offset) != off || off+n > size {
		return 0, breach("parts of a snapshot do not fit each other")
	}
	if err := s.f.o.Restore.Write(ctx, file, off, p.Data); err != nil {
		return 0, restoring("restore", err)
	}
	s.credited += uint64(n)
	return n, nil
}
