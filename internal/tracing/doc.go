// Package tracing is what the stations of a message share about traces: how a
// trace context is read and written, who decides whether a message is traced,
// and how a span is made.
//
// A message is traced from its publish to its delivery. The context of the
// publish span is written into the record, which never changes after that, so
// every later station reads it from the record itself:
//
//	publish   front end of the origin's broker; child of the client's context
//	outbound  the origin's flow sender, one for each destination, until settled
//	link      each router on the way; child of the outbound span
//	landing   the destination's broker, committed
//	receive   front end of the destination's broker, one for each delivery
//	apply     a cache reader
//
// All but link are children of what the record carries; a consumer's own span is
// a child of the receive span, whose context the client gets with the message.
// Routers decode no batch: they read the context that stands behind it (see
// package wire).
//
// The decision is made once, at the publish, by a [Sampler]. Nothing here
// allocates or takes a lock for a message that is not traced; the checks read
// one character of the record. A batch with many traced messages gets spans for
// the first [MaxPerBatch]; the rest is counted.
//
// The package never exports and starts no goroutine: spans go to the
// [trace.Tracer] that it was given. Everything in it is safe for concurrent use.
package tracing
