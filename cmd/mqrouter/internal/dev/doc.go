// Package dev runs a whole deployment on one machine: every router, broker and
// cache reader of a topology on loopback addresses, with a development PKI and
// gossip key of its own, in this process or each in one of its own. It is what
// `mqrouter dev` starts, and nothing that a real deployment needs.
//
// Everything lives in one folder, from which a second start goes on:
//
//	topology.yaml   the sample; edit it, raise the epoch, and nodes follow
//	pki/            authority, gossip key, a certificate for each node
//	nodes/NAME/     the log, indexes and snapshots of a broker
//	mqrouter.log    what the nodes log
//	logs/NAME.log   instead, for a node that is a process
//	pids/NAME       its pid, while it runs
//	masters/GROUP   the pid of the node that leads a broker group with replicas
//	locks/NAME      locked by the dev that supervises it
//
// # Processes
//
// With [Options].Processes the program starts itself once for each node, as
// `mqrouter broker`, `router` or `cachesync`, and supervises: it tells which node
// died and of what, starts it again after a pause that doubles up to half a
// minute while deaths follow each other, and at the end stops brokers and cache
// readers before routers. A process that does not stop in time is killed; a
// second signal kills all. Of broker groups with replicas it tells who becomes master,
// and keeps that one's pid. On Linux the kernel kills the processes when dev
// itself dies; elsewhere they outlive a dev that is killed with SIGKILL.
//
// # Goroutines
//
// Run starts one goroutine for each node, for each process one that waits for
// its end, for each broker group with replicas one that asks who is master, and with
// processes one thread that starts them; it joins them all.
package dev
