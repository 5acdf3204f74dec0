// Package house holds the tests of the tree itself: which room may import
// which, how long a file may be, what no comment may contain, and that every key
// of a scenario in the name of a test is explained. It has no
// code of its own.
package house
