// Package broker is the core of a zone's broker: the deterministic fold of its
// commit log, and what clients and other sites ask of it.
//
// It owns the fold (queue indexes, flows and their numbers, cursors, prefixes,
// consumer progress, dead letters), its snapshots, publishing, receiving, and
// both ends of the group's flows. The log itself is package commitlog, index
// files are package queue, the state of a consumer group is package consumer,
// the client protocol is package rocketmq.
//
// It never speaks a client's protocol, dials nobody, and never reads a clock or
// the live topology while it folds.
package broker
