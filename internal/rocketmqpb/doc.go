// Package rocketmqpb is the RocketMQ 5 client protocol: the messages, enumerations
// and gRPC service of the protobuf package apache.rocketmq.v2.
//
// It owns the .proto files, written from the protocol's public facts (names and
// numbers), and the Go code generated from them by generate.sh, which is
// committed; generate.sh --check fails when the two differ. It also owns the gRPC
// codec of both ends, which gives and takes the same bytes as gRPC's own with
// fewer copies. It never interprets anything: what a server answers is in
// broker/rocketmq, what a client sends in internal/rocketmqclient. It starts no
// goroutines.
//
// The protobuf names are those of the official definitions. A binary that also
// links the official Go client would register them twice, which the protobuf
// runtime refuses at start.
package rocketmqpb

//go:generate ./generate.sh
