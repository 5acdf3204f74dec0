// Package rocketmq is the front end of a broker: the RocketMQ 5 gRPC protocol as
// the official clients speak it, on one port for TLS and plaintext.
//
// It owns the listener (listener.go), the protocol's limits (limits.go), the table
// of codes (code.go), what is known of connected clients (registry.go) and the
// translation of every RPC into calls of a [Store]. It never stores, orders or
// routes a message itself, makes no receipt handles, and keeps nothing that a
// restart would miss: a client that meets a fresh server with any RPC first is
// served, with defaults in place of the settings that are not known yet.
//
// Business errors are a Status in the answer under gRPC status OK; a gRPC error
// would make clients treat the whole node as broken. Only the Telemetry stream is
// refused by a gRPC error, and what there is no memory for while it arrives, or must not
// be unpacked.
//
// # Memory
//
// The bytes of requests, over all connections, are bounded (memory.go), and so is what
// they become when they are decoded (weight.go): one that would take half of all is
// PAYLOAD_TOO_LARGE, a stream's RESOURCE_EXHAUSTED. Large headers count as well. Without
// room a send is answered with TOO_MANY_REQUESTS; a request of any kind that has been
// arriving for too long meanwhile ends with DEADLINE_EXCEEDED, the other gRPC error.
// So does a receive, a pull, or a Telemetry stream with a question about a half message,
// that its client does not read.
//
// What clients do not read of their answers is bounded for each connection and over all
// (answers.go): a message without room is not read from the log, and those of an answer
// that broke off are given back. Settings that are kept to be repeated have an eighth of
// it; those that do not fit are not repeated. Who reads nothing loses its connection, so
// that it keeps nobody else from receiving.
//
// # Floods
//
// The number of connections, of clients that are known and of calls that wait is
// bounded, and a place that nobody uses is given to who comes: a connection without
// calls (idle.go), a client id that was used once or is gone (registry.go), the call that
// has waited for longest, as if its time were over (polls.go). When all are in use, the
// address that has most connections, clients, Telemetry streams or requests that are
// arriving gives some up to an address that has fewer (crowd.go, arriving.go). So one
// address keeps nobody out, but its own; many do, and what calls cost is not shared out
// by address: that is for what stands before.
//
// # The end of a client
//
// What a push consumer received is renewed while it lives. Its end is seen by its
// goodbye, by its Telemetry stream that breaks and does not come back within seconds,
// or by its silence, for each call is life (gone.go); the Store is told, and what it held comes back as another
// attempt. Its acknowledgements count until then. A client that is slow, with an open
// stream or heartbeats, keeps what it has.
//
// # Lost answers
//
// What a push consumer receives is renewed while the client lives. With a connection
// that breaks an answer may be lost, and a client that does not know of it never
// acknowledges: a delivery that is too young to have surely arrived is renewed only
// while the connection that brought it stands, too. It comes again when its time is
// over, or at once where the client repeats the attempt id. A client that reconnects
// soon after it received may see a message twice for that.
//
// # Traces
//
// A message that its client, or the Sampler, wants traced gets a publish span,
// whose context the record carries, and each of its deliveries a receive span,
// whose context the consumer gets (trace.go; package tracing has the whole).
//
// # Access
//
// With an AccessSource every call is judged before its handler: who it is, by the
// signature over its date header (credential.go), and whether that user may do it
// (access_needs.go lists what each request needs; one that is not listed is
// refused). A send is refused before its body is read. Streams are judged with each
// request that they bring, and again when the source changes: then a poll or a
// Telemetry stream that is allowed no more ends with the reason (access_stream.go).
// UNAUTHORIZED is for who is not known, FORBIDDEN for a missing permission; calls
// with a receipt handle are told INVALID_RECEIPT_HANDLE for the latter. Telemetry
// ends with gRPC UNAUTHENTICATED or PERMISSION_DENIED and the code's name in the text.
// A client id belongs to its user: the Store sees "access key|client id".
//
// An access key that there is not costs what a wrong signature does; who fails on
// and on is answered late, by address, and then read late (rest.go), and shuts out
// nobody with good credentials (access.go has the bounds).
//
// # Filters
//
// A consumer selects by tags or by an SQL92 expression (package filter has the
// language), evaluated at the Store; what does not match is settled for the group.
// Compiled expressions are kept, bounded (filter.go). One that is none is refused
// with ILLEGAL_FILTER_EXPRESSION when its Settings come, and at each receive.
//
// # Transactions
//
// The store decides and keeps the time; the front end only asks. A question about a
// half message goes to one stream of a producer whose Settings list the topic, or
// who has sent a half message of it; first those that were heard of within 35 s, of
// these who was sent the fewest questions since it last answered one, else in turn
// (producers.go). When its stream ends, the client is asked over the next of its own.
// Each stream has a bounded queue of questions, which its handler writes; the message is
// read when it is written, so that what was decided meanwhile is not asked. Who comes
// while nobody else could be asked is asked at once.
// A question counts when it is written, unless its stream ends within 35 s and its client
// was not heard of since: then it is lost, like one that was not written, and another
// producer is asked soon. Clients connect to every broker that a route names, so each
// broker asks over its own streams only.
//
// # Sends that come again
//
// A copy of a message of an idempotent topic is answered like the first one. The
// same id with other content is ILLEGAL_MESSAGE_ID; a home that does not answer and
// a window that is full are TOO_MANY_REQUESTS.
//
// # Order
//
// A FIFO topic takes FIFO messages only, each with a message group, whatever queue
// the client chose: clients disagree on the hash, and the Store decides. Settings say
// fifo to groups that read in order (zone.Topology.InOrder). Their assignment names
// each queue, and a push consumer gets one message by each receive: clients work a
// batch off one after the other, so that in a larger one a slow message group holds
// up others. A repeated attempt id is passed on to the Store. A PRIORITY topic takes
// NORMAL messages, too, as priority 0: that is how the Node.js client sends it.
//
// # Replicas
//
// A node that is not the master of its broker group serves its clients with a
// [Forwarder]: each call goes on to the master's front end as it came, over a
// connection of the client's own, with its metadata and what is left of its time, and
// the answer back. It decodes nothing, so signatures hold and newer fields pass. It adds
// the client's address and whether its connection lacks TLS, in headers that are taken
// out of what clients send. The master believes them on a connection for which a member
// of the group has shown its certificate (Options.Fellow), and judges by them as if the
// client had come itself. While
// there is no master a call waits with its request unread, until shortly before its
// client gives it up; then, and when the master is lost in the middle of a call, the
// answer is TOO_MANY_REQUESTS: try again. Telemetry ends with UNAVAILABLE, the third
// gRPC error, and so does a receive of which a part was passed on already. What clients
// do not read of their answers is bounded at the replica as at the master, which cannot
// see it: a call beyond a connection's share ends with RESOURCE_EXHAUSTED
// (forward_answers.go).
//
// Routes name the nodes that serve (Options.Fronts), each as a broker of its own.
// Clients refresh them every 30 s, and assignments every 5 s; what fails until then is
// tried at another name in the same route. A new master is dialled for few clients at a
// time (forward_dial.go), so that the handshakes of all do not keep each from ending.
//
// # Lite topics
//
// A LITE topic takes LITE messages only, each with a lite topic, which stands where a
// message group would. SyncLiteSubscription, at any broker, says which ones a client
// wants; the Store keeps it, and forgets it when the client says that it ends or is
// silent. Settings tell a lite consumer its limits, and refuse one of a topic without
// lite topics, and a plain one of a group that gets them by name (UNSUPPORTED). A
// receive brings several messages, each of another lite topic, unless the group says
// fifo. What an exclusive group takes from a client, the client's newest stream says
// (lite.go); who does not read it, or has none here, is told with its next
// SyncLiteSubscription.
//
// # What is refused
//
// SQL filters over properties of the system other than TAGS (UNSUPPORTED). Requests that
// gRPC has compressed (INTERNAL, a gRPC error): see compressed.go.
//
// # Goroutines
//
// gRPC runs one goroutine for each call. Besides these, Run owns the accept loop,
// one goroutine for each connection whose first bytes are awaited or whose TLS
// handshake runs (bounded, one deadline), the expiry of clients, one that tells of
// those that are gone, one that looks for connections that read nothing, one that follows
// the AccessSource, and one reader for each Telemetry stream; it joins them all.
// The handler of a Telemetry stream is the stream's only writer. Run of a Forwarder
// owns the same of the listener's, one that follows the master, and one reader for
// each call that it passes on.
//
// # Sequence
//
// Messages of one SendMessage reach the Store in one call and in the request's
// order. Messages of one receive are sent in the Store's order. Nothing else is
// promised here: the order of a topic is the Store's.
package rocketmq
