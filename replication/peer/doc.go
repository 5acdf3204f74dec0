// Package peer connects the nodes of one city: identity, certificates, TCP with
// mutual TLS, greeting, and connections that carry the frames of many sessions.
//
// It owns: the identity in certificates ([Identity], [Authority], [CertStore],
// [TLS], which links between cities use too), and in-city connections
// ([Dialer], [Listener], [Session]). It never looks into the payload of a
// session's frame and never decides where a flow goes.
//
// # Connection
//
// A connection belongs to one (node, destination city, class): a stalled
// destination stops nobody else. One deadline covers connect, TLS and greeting;
// a stranger's bytes before the end of the greeting are bounded in number and
// time, and so are the handshakes at a time. The dialling side says Hello
// first; the answer is Hello or Refuse:
//
//	dialler                      listener
//	TCP connect
//	TLS 1.3, both certificates
//	Hello (session 0)    -->
//	                     <--     Hello | Refuse (session 0)
//	Open, Want, Seal, Call, Follow --> begins the session that its header names
//	frames of sessions  <-->
//	Probe, ProbeReply   <-->     session 0, keeps the connection alive
//	                     <--     Drain, session 0: given on to every session
//	End (session 0)     <-->     the connection is over
//
// A node may serve other protocols on the same address, told apart by ALPN
// ([Options].Others, [DialOther]); such a connection leaves the package after TLS.
//
// What Hello says must agree with the certificate. Only the dialling side opens
// sessions. A frame of an unknown session that begins none is skipped unread, and
// so is a Call of who is no broker of the same zone, and a Follow of who is not,
// by certificate and topology, another member of the same broker group.
//
// # Sessions
//
// A [Session] is a wire.Stream. Send copies the frame into the connection's
// write buffer, which one goroutine empties in large writes; when the buffer
// stays full for [Timing].Write, the session is reset with CodeSlowPeer. Frames
// received wait in the session's queue, which the flow's credit keeps below its
// bound; one above it resets the session and never blocks the connection.
//
// # Goroutines
//
// A connection owns a reader and a writer, a Listener one goroutine for each
// listening socket, connection and accepted session, a Dialer one for each
// connection attempt. Close of Dialer and Listener joins all of them.
//
// # Order
//
// Frames of a session arrive in the order sent. Between sessions there is none.
package peer
