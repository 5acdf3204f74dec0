// Package pki makes the files with which the nodes of a deployment prove who
// they are: the authority and the gossip key of a deployment, and a
// certificate for each node of its topology. It has no goroutines.
package pki
