package dev

import "syscall"

// apart puts a process into a group of its own, so that Ctrl-C reaches dev alone
// and the order of the stop is dev's, and lets the kernel kill it when dev dies,
// whatever dev dies of.
func apart() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
