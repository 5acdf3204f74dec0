// Package masters answers where the master of a broker group is now.
//
// It owns: what was heard of the masters of groups with several nodes ([Directory]),
// and the form in which a node says that it is not the master ([Refusal]). It never
// decides who is master (package coordinator does), never opens a connection, and is
// never asked for a group of one node in vain: that answer costs nothing.
//
// # What counts
//
// Two things tell of masters. A hint is what a member says of itself in gossip: it
// leads the group in an epoch. A refusal is what a member answers to who takes it for
// the master: it is not, that one is, in that epoch. Epochs of a group ascend and each
// has one master, so the higher epoch counts; between equal ones the refusal, which
// was given to this very node a moment ago. All of it is hearsay: the wrong node
// refuses, since a master checks its lease before it answers. An epoch whose master was
// taken away never gets it back; a member that is taken for the master of an epoch and
// denies it is not asked first in that epoch again. One that is about to lead answers
// with something else than a refusal of this kind.
//
// A refusal that names nobody (an election is under way, or the member knows no
// better) says one thing: not here. The next member in the topology's order is asked
// then, so that whoever asks again, after a back-off, gets round to all of them.
//
// # Goroutines
//
// None.
//
// # Order
//
// None. A Directory is safe for concurrent use.
package masters
