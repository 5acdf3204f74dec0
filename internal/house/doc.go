// Package house holds the tests of the tree itself: which room may import
// which, how long a file may be, and what no comment may contain. It has no
// code of its own.
package house
