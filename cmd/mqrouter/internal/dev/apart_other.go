//go:build !linux

package dev

import "syscall"

// apart puts a process into a group of its own, so that Ctrl-C reaches dev alone
// and the order of the stop is dev's. This system has no signal for the death of
// a parent: nodes survive a dev that is killed with SIGKILL, and hold their ports
// until somebody ends them by their pid files.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
