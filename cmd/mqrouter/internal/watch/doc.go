// Package watch turns samples of a deployment's status into a picture that a
// person reads: what is wrong first, what changed since the last sample, and how
// fast things move.
//
// A [Model] takes samples and works out rates and since when a node is silent;
// Frame lays a picture out for a screen of some size, or for a log. Both are
// pure: the time comes with each sample, and nothing here asks a node or
// touches a terminal, which is the command's work.
//
// The package starts no goroutines and a Model is not safe for concurrent use.
// Equal samples give equal frames.
package watch
