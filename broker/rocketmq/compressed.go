package rocketmq

import (
	"errors"
	"io"

	"google.golang.org/grpc"
)

// Requests that gRPC has compressed are refused: none of the clients sends them, and a
// few kilobytes become megabytes before anything else is asked of a request. Bodies that
// a client compresses itself are not touched by that.

// errCompressed is told to who sends such a request.
var errCompressed = errors.New("requests must not be compressed by gRPC")

// refusing stands for the one compression of which gRPC's own is in the binary, as the
// exporter of traces links it. Others are unknown to gRPC, which says so.
type refusing struct{}

// Type implements grpc.Decompressor.
func (refusing) Type() string { return "gzip" }

// Do implements grpc.Decompressor. It reads nothing.
func (refusing) Do(io.Reader) ([]byte, error) { return nil, errCompressed }

// uncompressed is the option of a server that refuses compressed requests.
func uncompressed() grpc.ServerOption {
	return grpc.RPCDecompressor(refusing{}) //nolint:staticcheck // the successor registers for the whole process, its clients as well
}
