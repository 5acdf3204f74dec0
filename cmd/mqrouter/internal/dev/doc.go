// Package dev runs a whole deployment in one process: every router, broker and
// cache reader of a topology on loopback addresses, with a development PKI and
// gossip key of its own. It is what `mqrouter dev` starts, and nothing that a
// real deployment needs.
//
// Everything lives in one folder, from which a second start goes on:
//
//	topology.yaml   the sample; edit it, raise the epoch, and nodes follow
//	pki/            authority, gossip key, a certificate for each node
//	nodes/NAME/     the log, indexes and snapshots of a broker
//	mqrouter.log    what the nodes log
//
// Run starts one goroutine for each node and joins them all.
package dev
