// Package simnet is a network of hosts in memory and simulated time: TCP
// connections, UDP sockets and the transport of gossip over one set of paths,
// with faults that a seed decides. Only tests import it; it is made for bubbles
// of testing/synctest.
//
// It owns: hosts and their addresses, the delivery of every byte in an order
// that depends on nothing but the seed and what was sent, and the faults: delay,
// loss, duplication, reordering, bounded rates, cuts of one direction, hosts that
// lose power. It knows nothing of what is carried.
//
// # Paths
//
// A [Path] says how bytes travel from one host to another; each direction has its
// own, so a cut of one of them is a one-way cut. Random draws belong to a
// direction between two hosts: what others send does not shift them.
//
//   - Packets are lost, repeated, overtaken, and dropped where a bounded queue is
//     full: at the rate limit of the path, and in the socket of the receiver.
//   - Connections deliver everything in order or break: what a path loses or cuts
//     is sent again with a pause that doubles, until [giveUp], which resets the
//     connection. A reader that does not read stops the writer once a window of
//     bytes is under way.
//
// # Hosts
//
// [Host.Crash] takes a host off the network as a loss of power does: nothing
// that it sends leaves any more, and its peers hear nothing, or a reset if the
// machine lives on. What still runs on it fails fast. A new host takes over the
// address.
//
// # Goroutines
//
// [Net.Run] delivers, on the goroutine that calls it. Nothing else starts any,
// but for the timers of deadlines.
//
// # Order
//
// Two events never happen at one instant: each is put off to the next free
// nanosecond, in the order of sending.
package simnet
