package broker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/internal/disk"
)

const (
	snapshotPrefix = "snapshot-"
	snapshotsKept  = 2
	secretName     = "handle.key"
	secretBytes    = 32
	tempSuffix     = ".tmp"
	// maxSmallFile bounds what is written and read whole in memory (bytes).
	maxSmallFile = 1 << 30
)

// snapshotLoop writes snapshots when enough log has come or enough time gone.
func (b *Broker) snapshotLoop() {
	b.loop(b.limits.SnapshotEvery, b.snapKick, func() time.Duration {
		if err := b.snapshot(b.ctx); err != nil && b.ctx.Err() == nil {
			b.metrics.snapshotFailed()
			b.logger.Warn("snapshot failed", "group", string(b.self), "err", err)
		}
		return b.limits.SnapshotEvery
	})
}

// snapshot writes a snapshot unless the newest one is of this position. The
// fold stands still only while the state is copied; the slow part, syncing
// indexes and file, runs beside it. It is called by one goroutine at a time.
func (b *Broker) snapshot(ctx context.Context) error {
	if err := b.failure(); err != nil {
		return err
	}
	began := b.now()
	b.mu.Lock()
	if b.state.position == b.snapAt {
		b.mu.Unlock()
		return nil
	}
	if err := b.indexes.Flush(); err != nil {
		b.mu.Unlock()
		return fmt.Errorf("flush of indexes: %w", err)
	}
	b.state.timers.shed(b.dueBefore.Load())
	b.indexes.ShedIdle()
	data, at, needs := b.state.encode(), b.state.position, b.state.indexNeeds()
	var cuts []cut
	if b.shared != nil {
		cuts = b.state.cutList()
	}
	b.mu.Unlock()
	held := b.now() - began
	if err := b.indexes.Sync(ctx); err != nil {
		return fmt.Errorf("sync of indexes: %w", err)
	}
	name := fmt.Sprintf("%s%020d", snapshotPrefix, at)
	if err := b.writeFile(name, data); err != nil {
		return err
	}
	b.mu.Lock()
	b.trimAt, b.snapAt = b.snapAt, at
	b.newest = &kept{name, cuts}
	b.trimNeeds, b.snapNeeds = b.snapNeeds, needs
	b.mu.Unlock()
	b.metrics.snapshot(time.Duration(held))
	if b.isLent() {
		return nil
	}
	if err := b.pruneSnapshots(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state.deleteDropped(b.trimAt)
}

// writeFile replaces a file in the broker's directory in one step.
func (b *Broker) writeFile(name string, data []byte) error {
	return replaceFile(b.fs, b.dir, name, data)
}

// replaceFile replaces a file in one step.
func replaceFile(fsys disk.FS, dir, name string, data []byte) error {
	if len(data) > maxSmallFile {
		return fmt.Errorf("%s would have %d bytes", name, len(data))
	}
	temp, final := path.Join(dir, name+tempSuffix), path.Join(dir, name)
	f, err := fsys.Create(temp)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = fsys.Rename(temp, final)
	}
	if err != nil {
		return errors.Join(err, fsys.Remove(temp))
	}
	return fsys.SyncDir(dir)
}

func (b *Broker) readFile(name string) ([]byte, error) {
	f, err := b.fs.Open(path.Join(b.dir, name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil || size == 0 {
		return nil, err
	}
	if size > maxSmallFile {
		return nil, fmt.Errorf("%s has %d bytes", name, size)
	}
	data := make([]byte, size)
	_, err = f.ReadAt(data, 0)
	return data, err
}

// snapshotNames returns the snapshots, newest first.
func (b *Broker) snapshotNames() ([]string, error) {
	names, err := b.fs.List(b.dir)
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(n string) bool {
		return !strings.HasPrefix(n, snapshotPrefix) || strings.HasSuffix(n, tempSuffix)
	})
	slices.Sort(names)
	slices.Reverse(names)
	return names, nil
}

// removeTemps removes files that a crash left half written.
func (b *Broker) removeTemps() error {
	names, err := b.fs.List(b.dir)
	for _, n := range names {
		if strings.HasSuffix(n, tempSuffix) {
			err = errors.Join(err, b.fs.Remove(path.Join(b.dir, n)))
		}
	}
	return err
}

func (b *Broker) pruneSnapshots() error {
	names, err := b.snapshotNames()
	if err != nil || len(names) <= snapshotsKept {
		return err
	}
	return b.removeSnapshots(names[snapshotsKept:])
}

func (b *Broker) removeSnapshots(names []string) error {
	var err error
	for _, n := range names {
		err = errors.Join(err, b.fs.Remove(path.Join(b.dir, n)))
	}
	return err
}

// restore makes the state from the newest usable snapshot and the log behind
// it, or from the whole log when that is all there.
func (b *Broker) restore(ctx context.Context) error {
	names, err := b.snapshotNames()
	if err != nil {
		return err
	}
	var refused error
	var sick *snapshotFile // the newest that only lacks indexes
	for i, name := range names {
		s, err := b.loadSnapshot(name)
		if err == nil {
			if err = s.cuts.open(b.indexes); err == nil {
				return b.resume(ctx, s, names[:i])
			}
			var corrupt *queue.CorruptError
			if sick == nil && errors.As(err, &corrupt) {
				sick = s
			}
			err = &SnapshotError{Name: name, What: "an index does not go with it", Err: err}
		}
		b.logger.Warn("snapshot is not used", "group", string(b.self), "err", err)
		refused = errors.Join(refused, err)
	}
	if begin := b.log.Begin(); begin > 0 { // trimmed
		if sick != nil {
			err := b.heal(ctx, sick)
			if err == nil {
				return b.resume(ctx, sick, names[:slices.Index(names, sick.name)])
			}
			refused = errors.Join(refused, err)
		}
		return errors.Join(&SnapshotError{Name: b.dir, What: fmt.Sprintf(
			"the log begins at %d, so the fold cannot be made without a snapshot; restore one, or remove the store to begin anew", begin), Damage: true}, refused)
	}
	if err := b.indexes.Recover(nil); err != nil {
		return err
	}
	return b.replay(ctx, b.emptyState())
}

// resume folds what follows the state of a snapshot; those newer are of no use.
func (b *Broker) resume(ctx context.Context, f *snapshotFile, newer []string) error {
	s := f.state
	// trimAt stays 0: until the next snapshot is written, the log keeps what
	// the one before this needs.
	b.snapAt, b.snapNeeds = s.position, s.indexNeeds()
	b.newest = &kept{f.name, f.cuts.list}
	if err := b.replay(ctx, s); err != nil {
		return err
	}
	return b.removeSnapshots(newer)
}

func (b *Broker) emptyState() *state {
	return newState(b.self, b.log.Incarnation(), b.indexes)
}

// snapshotFile is a snapshot as it was read: a state whose indexes are not open.
type snapshotFile struct {
	name  string
	state *state
	cuts  *cuts
}

// loadSnapshot reads one snapshot and checks that it is of this log.
func (b *Broker) loadSnapshot(name string) (*snapshotFile, error) {
	data, err := b.readFile(name)
	if err != nil {
		return nil, &SnapshotError{Name: name, What: "cannot be read", Err: err}
	}
	s := b.emptyState()
	cuts, err := s.decode(name, data)
	if err != nil {
		return nil, err
	}
	if err := b.checkLineage(s); err != nil {
		return nil, &SnapshotError{Name: name, What: "it is not of this log", Err: err}
	}
	return &snapshotFile{name, s, cuts}, nil
}

// checkLineage refuses a state that is of another log, or of a part of this
// one that is gone.
func (b *Broker) checkLineage(s *state) error {
	rows := b.log.Lineage()
	i := slices.IndexFunc(rows, func(r commitlog.LineageStart) bool { return r.Epoch == s.epoch && r.ID == s.lineage })
	switch {
	case i < 0:
		return fmt.Errorf("its lineage %x of epoch %d is not in the log's table", s.lineage, s.epoch)
	case s.position < rows[i].First || (i+1 < len(rows) && s.position > rows[i+1].First):
		return fmt.Errorf("position %d is outside its lineage", s.position)
	case b.shared != nil && s.position <= b.shared.Synced():
		b.shared.Commit(s.position) // only what was committed is in a snapshot
	case s.position > b.log.Committed():
		return fmt.Errorf("position %d is beyond the log's end %d", s.position, b.log.Committed())
	}
	if s.position < b.log.Begin() {
		return fmt.Errorf("the log begins at %d, behind its position %d", b.log.Begin(), s.position)
	}
	return nil
}

// replay folds the log from the state's position on.
func (b *Broker) replay(ctx context.Context, s *state) error {
	b.state = s
	began, from, entries := b.now(), s.position, 0
	fold := func(e commitlog.Entry) error {
		entries++
		_, err := s.apply(&e)
		if len(s.dirtyTopics)+len(s.dirtyFlows)+len(s.dirtyRelays) > 0 || s.halves.HasChanged() {
			b.takeDirty()
		}
		return err
	}
	var err error
	if b.cold {
		err = b.log.Scan(ctx, from, b.warmTo, fold)
	} else {
		err = b.log.Replay(ctx, from, fold)
	}
	if err != nil {
		return err
	}
	b.logger.Info("state restored", "group", string(b.self), "snapshot", uint64(from), "entries", entries,
		"took", time.Duration(b.now()-began))
	return nil
}

// loadSecret returns the secret that receipt handles are sealed with, made at
// the first start.
func (b *Broker) loadSecret() ([]byte, error) {
	secret, err := b.readFile(secretName)
	if err == nil && len(secret) == secretBytes {
		return secret, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	secret = make([]byte, secretBytes)
	if _, err := rand.Read(secret); err != nil {
		return nil, err
	}
	return secret, b.writeFile(secretName, secret)
}
