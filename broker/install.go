package broker

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/ship"
)

const (
	// incomingPrefix begins the names of files of a store that is being received.
	incomingPrefix = "incoming-"
	// installName is there once they are all there: Open makes the store of them.
	// Its content is the origin, as JSON behind its CRC32C.
	installName = "INSTALL"
	// indexesName is the file that holds the indexes; see lentIndexes.
	indexesName = "indexes"
	lockName    = "LOCK" // of package commitlog
)

// Restore receives the store of a replica in a broker's directory. What stands
// there is not touched: Open replaces it once Install has returned nil. A Restore
// belongs to one goroutine.
type Restore struct {
	fs    disk.FS
	dir   string
	names []string
	files []disk.File
	sizes []int64
	at    []int64 // what was written, in order
}

var _ ship.Restore = (*Restore)(nil)

// NewRestore returns what receives into the directory of a broker, which may be
// open meanwhile.
func NewRestore(fsys disk.FS, dir string) *Restore { return &Restore{fs: fsys, dir: dir} }

// Start implements ship.Restore.
func (r *Restore) Start(ctx context.Context, files []ship.File) error {
	if err := r.Forget(ctx); err != nil {
		return err
	}
	for _, f := range files {
		if !isTransferred(f.Name) || f.Size < 0 {
			return &SnapshotError{Name: f.Name, What: "no file of a store"}
		}
		file, err := r.fs.Create(path.Join(r.dir, incomingPrefix+f.Name))
		if err != nil {
			return errors.Join(outOfSpace(err), r.Forget(ctx))
		}
		r.names, r.files, r.sizes, r.at = append(r.names, f.Name), append(r.files, file), append(r.sizes, f.Size), append(r.at, 0)
		if err := file.Preallocate(f.Size); err != nil {
			return errors.Join(outOfSpace(err), r.Forget(ctx))
		}
	}
	return nil
}

// isTransferred reports whether a file of that name belongs to a transfer.
func isTransferred(name string) bool {
	_, ok := snapshotPosition(name)
	return ok || name == secretName || name == indexesName
}

// snapshotPosition returns the position that a snapshot's name says.
func snapshotPosition(name string) (record.Position, bool) {
	digits, ok := strings.CutPrefix(name, snapshotPrefix)
	if !ok || len(digits) != 20 {
		return 0, false
	}
	p, err := strconv.ParseUint(digits, 10, 64)
	return record.Position(p), err == nil
}

// outOfSpace marks an error that says that the disk is full.
func outOfSpace(err error) error {
	if disk.IsFull(err) {
		return fmt.Errorf("%w: %w", ship.ErrFull, err)
	}
	return err
}

// Forget implements ship.Restore: one that was installed is taken back, too. INSTALL
// goes first, so that Open never meets an order without its files.
func (r *Restore) Forget(context.Context) error {
	var err error
	for _, f := range r.files {
		err = errors.Join(err, f.Close())
	}
	r.names, r.files, r.sizes, r.at = nil, nil, nil, nil
	if f, oerr := r.fs.Open(path.Join(r.dir, installName)); oerr == nil {
		err = errors.Join(err, f.Close(), r.fs.Remove(path.Join(r.dir, installName)), r.fs.SyncDir(r.dir))
	}
	return errors.Join(err, removeAll(r.fs, r.dir, func(n string) bool { return strings.HasPrefix(n, incomingPrefix) }))
}

// removeAll removes the files of a folder that drop names, and makes that durable.
func removeAll(fsys disk.FS, dir string, drop func(string) bool) error {
	names, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, n := range names {
		if drop(n) {
			err = errors.Join(err, fsys.Remove(path.Join(dir, n)))
		}
	}
	return errors.Join(err, fsys.SyncDir(dir))
}

// Write implements ship.Restore.
func (r *Restore) Write(_ context.Context, file int, off int64, p []byte) error {
	if file < 0 || file >= len(r.files) || off != r.at[file] || off+int64(len(p)) > r.sizes[file] {
		return &SnapshotError{Name: incomingPrefix, What: "a part is not what follows"}
	}
	if _, err := r.files[file].WriteAt(p, off); err != nil {
		return outOfSpace(err)
	}
	r.at[file] += int64(len(p))
	return nil
}

// Install implements ship.Restore. The store is replaced when the broker is opened
// next.
func (r *Restore) Install(_ context.Context, o ship.Origin) error {
	snapshot := o.Begin == 0
	for i, f := range r.files {
		if r.at[i] != r.sizes[i] {
			return &SnapshotError{Name: r.names[i], What: "a part is missing"}
		}
		if p, ok := snapshotPosition(r.names[i]); ok {
			snapshot = snapshot || p >= o.Begin
		}
		if err := f.Sync(); err != nil {
			return err
		}
	}
	if !snapshot {
		return &SnapshotError{Name: snapshotPrefix, What: fmt.Sprintf("none goes with a log that begins at %d", o.Begin)}
	}
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if err := r.fs.SyncDir(r.dir); err != nil {
		return err
	}
	sum := binary.LittleEndian.AppendUint32(nil, crc32.Checksum(text, castagnoli))
	return replaceFile(r.fs, r.dir, installName, append(sum, text...))
}

// finishInstall makes what was received the store. It may be interrupted at any
// moment, and begins again with the next Open. A store that cannot be made of it
// is left empty: it is received again then.
func (b *Broker) finishInstall(o Options) error {
	text, err := b.readFile(installName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var origin ship.Origin
	switch {
	case err != nil:
		return err
	case len(text) < 4 || binary.LittleEndian.Uint32(text) != crc32.Checksum(text[4:], castagnoli) || json.Unmarshal(text[4:], &origin) != nil:
		return &SnapshotError{Name: installName, What: "it is damaged; remove the broker's directory to begin anew", Damage: true}
	case b.member == nil:
		return &SnapshotError{Name: installName, What: "a store that was received belongs to a member of a group with replicas"}
	}
	log := path.Join(b.dir, "log")
	if err := b.fs.MkdirAll(log); err != nil {
		return err
	}
	lock, err := b.fs.Lock(path.Join(log, lockName)) // the log's own
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := b.clearStore(); err != nil {
		return err
	}
	if err := b.buildStore(origin, o); err != nil {
		b.logger.Error("the store that was received cannot be used, it is received again", "group", string(b.self), "err", err)
		if err := b.clearStore(); err != nil {
			return err
		}
	} else {
		b.logger.Info("store received", "group", string(b.self), "seq", uint64(origin.Begin))
	}
	if err := b.fs.Remove(path.Join(b.dir, installName)); err != nil {
		return err
	}
	if err := b.fs.SyncDir(b.dir); err != nil {
		return err
	}
	return removeAll(b.fs, b.dir, func(n string) bool { return strings.HasPrefix(n, incomingPrefix) })
}

// clearStore removes the store, but for what is being received.
func (b *Broker) clearStore() error {
	all := func(n string) bool { return n != lockName }
	return errors.Join(
		removeAll(b.fs, path.Join(b.dir, "log"), all),
		removeAll(b.fs, path.Join(b.dir, "index"), all),
		removeAll(b.fs, b.dir, func(n string) bool { return n == secretName || strings.HasPrefix(n, snapshotPrefix) }),
	)
}

// buildStore makes the store of what was received, which stays.
func (b *Broker) buildStore(origin ship.Origin, o Options) error {
	if err := commitlog.Create(commitlog.Options{FS: b.fs, Dir: path.Join(b.dir, "log"), Group: b.self, SegmentBytes: o.Limits.SegmentBytes}, origin); err != nil {
		return err
	}
	names, err := b.fs.List(b.dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		name, ok := strings.CutPrefix(n, incomingPrefix)
		_, isSnapshot := snapshotPosition(name)
		switch {
		case !ok:
		case name == indexesName:
			if err := b.buildIndexes(n); err != nil {
				return err
			}
		case isSnapshot, name == secretName:
			data, err := b.readFile(n)
			if err != nil {
				return err
			}
			if err := b.writeFile(name, data); err != nil {
				return err
			}
		}
	}
	return nil
}

// buildIndexes makes the indexes of the file.
func (b *Broker) buildIndexes(name string) error {
	store, err := queue.Open(queue.Options{FS: b.fs, Dir: path.Join(b.dir, "index")})
	if err != nil {
		return err
	}
	if err := store.Recover(map[string]uint64{}); err != nil {
		return errors.Join(err, store.Close())
	}
	f, err := b.fs.Open(path.Join(b.dir, name))
	if err != nil {
		return errors.Join(err, store.Close())
	}
	err = fillIndexes(store, f)
	if err == nil {
		err = store.Flush()
	}
	if err == nil {
		err = store.Sync(b.ctx)
	}
	return errors.Join(err, f.Close(), store.Close())
}

// fillIndexes reads what lentIndexes describes.
func fillIndexes(store *queue.Store, f disk.File) error {
	list, off, err := readIndexTable(f)
	if err != nil {
		return err
	}
	buf := make([]byte, lentBlockBytes)
	for _, x := range list {
		ix, err := store.Index(x.name)
		if err == nil {
			err = ix.Reset(x.first)
		}
		if err != nil {
			return err
		}
		for left := x.next - x.first; left > 0; {
			n := min(left, lentBlock)
			part := buf[:n*lentEntryBytes+lentSumBytes]
			if _, err := f.ReadAt(part, off); err != nil {
				return err
			}
			entries, sum := part[:n*lentEntryBytes], part[n*lentEntryBytes:]
			if crc32.Checksum(entries, castagnoli) != binary.LittleEndian.Uint32(sum) {
				return &SnapshotError{Name: indexesName, What: "entries are damaged"}
			}
			for e := entries; len(e) > 0; e = e[lentEntryBytes:] {
				if _, err := ix.Append(parseLentEntry(e)); err != nil {
					return err
				}
			}
			left, off = left-n, off+int64(len(part))
		}
	}
	return nil
}

// behindSnapshot reports whether the log ends before the newest snapshot: the store
// was received, and the log follows. It is folded once it has got there.
func (b *Broker) behindSnapshot() (bool, error) {
	if b.shared == nil {
		return false, nil
	}
	names, err := b.snapshotNames()
	if err != nil || len(names) == 0 {
		return false, err
	}
	p, ok := snapshotPosition(names[0])
	b.coldUntil = p
	return ok && p > b.shared.Synced(), nil
}

// warm makes the state of a store that was received, once its log has got to the
// snapshot: end is what was committed now. Who asks for the state waits meanwhile.
func (b *Broker) warm(end record.Position) error {
	if end < b.coldUntil {
		return nil
	}
	b.mu.Lock()
	b.warmTo = end
	err := b.restore(b.ctx)
	b.cold = err != nil
	b.mu.Unlock()
	return err
}
