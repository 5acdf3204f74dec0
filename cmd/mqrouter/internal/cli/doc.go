// Package cli is the command line of mqrouter: one file per command, each
// thin. A command reads its flags, calls one room or asks nodes over their
// admin address, and prints. Exit codes: 0 done, 1 failed, 2 wrong use.
package cli
