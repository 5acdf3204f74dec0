// Package rocketmqclient is a small RocketMQ 5 client: a Producer, a
// SimpleConsumer and a PullConsumer over internal/rocketmqpb.
//
// It is honest before it is helpful: every call makes one request (a receive, one
// long poll), nothing is retried or buffered behind the caller's back, and what
// the server answered comes back as it was. A refusal is a *StatusError, a request
// without an answer an *OpError; after an *OpError of a send nobody knows whether
// the message was stored, and sending it again under the same Message.ID lets the
// server see that it is the same message. The next call passes over an endpoint that
// did not answer the last one, while another is in the route, and routes are asked for
// again at once then, at most once a second.
//
// A client owns its connections (Config.Connections for each endpoint), one
// goroutine that refreshes routes and sends heartbeats, and one goroutine for the
// Telemetry stream of each endpoint. Close ends and joins them all. Routes,
// endpoints, connections and message sizes are bounded.
//
// Order: requests of one goroutine are answered in turn, so messages that it sends
// one after another are stored in that order as far as they reach one broker.
// Nothing is promised between goroutines.
package rocketmqclient
