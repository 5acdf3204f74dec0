package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// SetAside moves the log of a store that is not open out of the way, so that the next
// Open of a member finds none and is given its master's: as the folder
// log.damaged-<time> beside it, whose name it returns; "" when there was none. What was derived from the log,
// indexes and snapshots, is removed. A power cut in between leaves a store without a
// log, which is as good, or the old one.
func SetAside(fsys disk.FS, dir string, at time.Time) (folder string, err error) {
	return moveLog(fsys, dir, "log.damaged-", at)
}

// Forsake removes the store, which is not open, of a member whose log has parted from
// its group's, once SetTailAside has saved what the group does not have: the next Open
// finds none and is given its master's. A power cut in between leaves the old one, or
// none and perhaps the folder log.parted-<time>, which nobody needs.
func Forsake(fsys disk.FS, dir string, at time.Time) error {
	folder, err := moveLog(fsys, dir, "log.parted-", at)
	if err != nil {
		return err
	}
	if err := removeAll(fsys, path.Join(dir, folder), func(string) bool { return true }); err != nil {
		return err
	}
	if fsys.Remove(path.Join(dir, folder)) != nil {
		return nil // an empty folder harms nobody
	}
	return fsys.SyncDir(dir)
}

// moveLog gives the log another name, and removes what was derived from it.
func moveLog(fsys disk.FS, dir, prefix string, at time.Time) (folder string, err error) {
	folder = fmt.Sprintf("%s%s", prefix, at.UTC().Format("20060102T150405Z"))
	switch err := fsys.Rename(path.Join(dir, "log"), path.Join(dir, folder)); {
	case errors.Is(err, fs.ErrNotExist): // a store that was received, and of which nothing is made yet
		folder = ""
	case err != nil:
		return "", err
	}
	if err := fsys.SyncDir(dir); err != nil {
		return "", err
	}
	if err := removeAll(fsys, path.Join(dir, "index"), func(n string) bool { return n != lockName }); err != nil {
		return "", err
	}
	return folder, removeAll(fsys, dir, func(n string) bool {
		return strings.HasPrefix(n, snapshotPrefix) || n == secretName || n == installName
	})
}
