// Package datagram reads a UDP socket for quic.Transport: many datagrams of a system
// call, and no more at a time than connections can take.
//
// It owns: how datagrams are read from the socket and taken apart, and when. It never
// looks into one, drops none but what is longer than the reader's buffers, changes none
// but its ECN mark, and writes nothing. A mark is for whoever sends: a queue in the
// socket is everybody's.
//
// # Many at a time
//
// On Linux the kernel joins datagrams of a sender that follow each other and are of
// one size (UDP generic receive offload, UDP_GRO of udp(7)), so that one way through
// the kernel and one system call bring up to 64 KiB; here they are cut again. It says
// as well how many the socket has dropped (SO_RXQ_OVFL), and when each came
// (SO_TIMESTAMPNS): a reader that is late is not a path that is long.
//
// Neither is believed blindly. The socket's drops hold datagrams with a wrong checksum,
// which any stranger can send; they count as drops for want of room only if the kernel has
// counted one of these too (/proc/thread-self/net/snmp, snmp6). And for a second after the
// wall clock was set nothing is said of when datagrams came.
//
// # No more than connections can take
//
// quic-go drops what does not fit into the queue of a connection, 256 packets, and
// takes that for congestion. The goroutine that reads a socket fills that queue within
// a millisecond, while the connection's own waits for a processor: often for this very
// one, since who is woken is run next where its waker ran. So the reader steps back
// after each 64 packets and lets what it has woken run first, and it waits while the
// connections that a Watch tells of have not taken what they were given 128 packets
// ago; in vain for a twentieth of its time at most, whoever sends what. What comes
// meanwhile waits in the socket's buffer, which has room for thousands; when a queue
// stands there, packets are marked (ECN), so that senders slow down.
//
// # Goroutines
//
// None. A Conn is read by one goroutine at a time; writing is the socket's, from any
// number of them.
//
// # Bounds
//
// Four buffers of 64 KiB a socket; eight of 2 KiB where the kernel joins nothing. The
// socket's own buffer, of which the kernel is asked to make 16 MiB, and a few numbers for
// each address that is watched.
package datagram
