// Package admin is the operators' door of a node: an HTTP server with health,
// readiness, metrics and a small JSON interface, the client of that interface,
// and the types that both sides share.
//
// Paths:
//
//	GET /healthz              200 while the process serves
//	GET /readyz               200 when the node does its work, else 503 and the reasons;
//	                          a degraded node is ready and says what it lacks
//	GET /readyz/publish       200 when the broker stores what is published, else 503: a full disk
//	GET /metrics              Prometheus text, from the node's OpenTelemetry meters
//	GET /v1/status            Status of the node
//	GET /v1/topology          the topology file in force, as it was read
//	GET /v1/messages/{id}     where this node has seen a message id
//	GET /v1/cache/{key}       a cache entry (cachesync nodes)
//	GET /v1/dead-letters      dead-letter queues (brokers); with ?queue= a page of one:
//	                          from, limit, id, reason, city, destination, since, until, pending, body
//	POST /v1/dead-letters/replay  bring dead letters back
//	POST /v1/groups/reset     have a consumer group go on elsewhere (brokers)
//	POST /v1/flows/withdraw   give up what waits for a group that is gone (brokers)
//	GET /v1/waiting           a page of delayed or half messages that wait (brokers): kind, from, limit,
//	                          topic, id, since, until, due_from, due_until, gone, unreadable
//	POST /v1/waiting/order    drop delayed messages, commit or roll back half messages
//	POST /v1/brokergroup/switch    hand a broker group over to another node (its master)
//	POST /v1/brokergroup/failover  make a node the master without the one before (any member)
//	GET /v1/brokergroup/extent     count records between two positions of the log (members): from, to
//	GET /v1/tails             what a member's log had and its group has not; with ?id= a page of one:
//	                          from, after, limit, topic, message, all, whole
//	POST /v1/tails/offer      offer a part of one to the group's master again
//	POST /v1/tails/drop       remove one for ever
//
// The server binds loopback addresses only, unless it has a TLS configuration
// that asks for client certificates. What changes something is a POST with a
// body of JSON, so that no web page can send it in an operator's name, and over
// TLS it takes an operator's certificate.
//
// Connections are bounded; one more ends the one that has been without a request for
// longest, else the one that has had it for longest. So are pages of metrics and requests
// that read the log; one more ends one whose answer is not read, else it is refused (503).
//
// Goroutines: Run owns the listener's and joins it. Nothing here is ordered.
package admin
