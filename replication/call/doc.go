// Package call lets the brokers of one zone ask each other: one request, one
// answer, over the in-city connections of package peer.
//
// It owns: the bounds of both sides, the errors ([Fault], [Error]) and the metrics.
// It never decides what a call means (package broker does), never looks into a
// body, and never repeats a call that may have been done: only its caller knows
// whether asking twice does harm. One that was refused because it met a node which is
// not its group's master was not looked at, and is made again while its caller waits.
//
// # A call
//
//	caller                                     answerer
//	Call (kind, time left, body)   -->         begins a session
//	                               <--         Reply (fault or body) | Refuse: not looked at
//	End                            -->         also early: nobody waits any more
//
// The number of the session is the number of the request. A call waits in no queue
// behind another one, but for the bytes of the connection, which carries calls only
// (class control). Who may call is judged by package peer before the body is read,
// by the certificate, and by the topology in force when the call is served;
// [ServerOptions].May leaves some kinds to some peers.
//
// # Bounds
//
// A body has at most wire.MaxCall bytes. A caller has [Options].PerGroup calls under
// way to each group, and more wait, each until its own end: a group that does not
// answer holds up nobody who asks another one. An answerer takes [Bounds].PerPeer
// calls of a peer and [Bounds].Bytes of bodies of all; above it refuses. A call
// ends shortly before its caller's context, at the latest after [MaxTime].
//
// # Goroutines
//
// None of its own outlives a method: Serve has one that watches for the end of the
// session, which it joins.
//
// # Order
//
// None between calls.
package call
