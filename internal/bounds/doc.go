// Package bounds is how every bounded queue and cap of a process tells how full it
// is, in one form, so that one rule and one panel show them all.
//
// It owns the form only. It never measures, holds no state and starts no
// goroutine.
package bounds
