// Package link keeps the QUIC links of a router: one for each pair of (router
// of another city, class), over one UDP socket, with more connections than one
// where that pays.
//
// It owns: the socket's transport, dialling and accepting, the greeting, the
// probes, the streams of sessions and their bounds, and what is told about a
// link. It never looks into a payload other than those of its own control
// stream, never decides where a session goes, and writes nothing to disk.
//
// The socket is read by package datagram, below the correction of package fec: both
// are there so that QUIC sees fewer losses than there are, or none that are this
// machine's own fault.
//
// # A link
//
// Both ends dial, for ever; [State] says what a link is doing and machine (file
// state.go, pure) decides it. Of two connections that were made at about the
// same time both ends keep the one that the lower node name dialled; the other
// takes no new sessions and is closed when it has none. A connection of an
// earlier start of the peer is closed as soon as the new start has greeted. When a
// peer is said to have another address, it is dialled there beside the connection
// that is up, a few times; what comes up takes that one's place, and the older one
// is given up sooner when it is silent.
//
// A connection carries one control stream, opened by the dialler, and a
// bidirectional stream for each session, opened by either end:
//
//	dialler                                acceptor
//	control: Hello        -->
//	                      <--  control: Hello, or the connection is closed
//	                           with a wire.Code as its application error
//	control: Probe        <->  control: ProbeReply, each end every 500 ms
//	control: Reach        <->  the cities that the sender reaches, with each probe
//	control: Drain        <->  no new sessions, please
//	session: Via          -->  when it passes a third city
//	session: frames       <->  frames; End and FIN, or a reset with a wire.Code
//
// The control stream goes before the sessions' in every packet. One deadline
// covers dial, TLS and greeting. A connection whose probes are not
// answered for Timing.RedAfter is torn down, whatever its acknowledgements say,
// and dialled again: health is progress.
//
// # Side streams
//
// A session of class bulk whose own stream's window is too small for the path has
// side streams (file sides.go): unidirectional ones with a window each, which its
// sending end opens as its rate and the round trip need, and as the other end's
// greeting allows. Its own stream says where each frame is:
//
//	session: frame, Aside(s1), frame, Aside(s2), ...
//	s1:      number of the session's stream, frame, ...
//	s2:      likewise
//
// # Extra connections
//
// A link of class bulk may have extra connections for its sessions (file
// extras.go, and demand.go for how many, both pure). The end that needs them dials
// them, with a number in its greeting, and alone retires them:
//
//	dialler                                acceptor
//	control: Hello (extra n) -->       <-- control: Hello (extra n)
//	control: Probe        <->  control: ProbeReply
//	control: Drain        -->              no new sessions; closed when idle
//
// Both ends put new sessions on the extra connection with the fewest of theirs;
// while there is one, the link's own takes none. A session stays where it was
// opened; [Session.Displaced] tells who opened it that it would do better anew. A
// peer whose greeting takes no extra connections is dialled none, and links of
// class urgent have none.
//
// # Bounds
//
// Handshakes, attempts and connections of one link, connections altogether (of
// which extra ones leave half to others), sessions of a connection,
// frames and windows are capped, see [Limits]. The stream windows of a
// connection fit its connection window together, those of side streams included, so
// that streams that nobody reads do not stop the others. Limits.WindowMemory bounds
// what side streams may hold, of all connections together: a connection reserves its
// part when it greets. A stream that cannot pass a byte on for
// Timing.Write is reset. A completed stream counts until its handler returned.
// Limits.Rate bounds what is sent to a node: frames wait for it before they are
// begun (file rate.go), in the order of Send; urgent ones never for bulk ones.
//
// # Goroutines
//
// Manager.Run owns them all and joins them: one accept loop, one loop for each
// link, one goroutine for each attempt, three for each connection (control,
// accepting streams and side streams) and one for each accepted session, which runs the handler.
//
// # Order
//
// Frames of a session arrive in the order of Send, each once, or the stream
// ends. There is no order between sessions.
package link
