// Package peer connects the nodes of one city: identity, certificates, TCP with
// mutual TLS, greeting, and connections that carry the frames of many sessions.
package peer
