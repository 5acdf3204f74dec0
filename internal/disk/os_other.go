//go:build !linux

package disk

import "os"

// dataSync uses os.File.Sync, which on macOS asks the drive to flush its cache
// (F_FULLFSYNC); a plain fsync there does not survive a power cut.
func dataSync(f *os.File) error { return f.Sync() }

func fullSync(f *os.File) error { return f.Sync() }

// preallocate makes the file longer without reserving blocks: a full disk
// shows at the write, which the log handles too.
func preallocate(f *os.File, _, size int64) error { return f.Truncate(size) }

// forget does nothing: there is no such call.
func forget(*os.File, int64, int64) {}
