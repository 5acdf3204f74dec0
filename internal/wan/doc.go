// Package wan emulates a long path between two sites on one machine: two network
// namespaces with a TUN device each, and this process between them. What sites send
// arrives later, or not: unlike a relay for UDP it carries whatever the kernel
// sends, so that the kernel's TCP meets the same losses as a protocol above UDP.
//
// It owns: the namespaces, their devices, the packets on their way, and which of
// them are lost. It never looks at payloads, reorders nothing, and is no part of a
// node: benchmarks and tests use it. It needs Linux, CAP_NET_ADMIN and CAP_SYS_ADMIN
// (root) and /dev/net/tun, and says [ErrNotPermitted] without.
//
// # A direction
//
//	site's device -> loss -> bottleneck (rate, queue) -> delay -> other site's device
//
// Packets of up to 64 KiB that the kernel leaves to the device to cut (TCP and UDP
// segmentation offload) are judged segment by segment, as if they had been cut, and
// what remains goes on in runs that are as long as possible: losses are those of
// real packets, at the price of large ones, which is what hosts pay whose network
// cards cut and join packets. Options.Single has every packet come on its own
// instead: dearer for TCP and UDP alike, and a run does not arrive at once when its
// last packet is due, which matters at a slow bottleneck.
//
// # Goroutines
//
// Two for each direction, each on a thread of its own: one takes packets from the
// device, one puts them into the other when they are due, in order. [Net.Close]
// joins them. [Site.Do] runs a function on a thread in a site's namespace, which
// ends with it.
//
// # Bounds
//
// A direction holds what was sent within its delay and the time in its queue, at
// most 256 MiB; more is dropped and counted.
package wan
