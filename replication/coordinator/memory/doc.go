// Package memory keeps the terms of a coordinator in memory: the model that the
// drivers are compared with, and the coordinator of simulations. What it holds ends
// with the process, so it is no driver for a deployment.
//
// # Goroutines
//
// None of its own.
package memory
