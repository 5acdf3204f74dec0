package ship

import (
	"context"

	"github.com/mqrouter/mqrouter/replication/wire"
)

// eachAck gives f the acknowledgements that a replica sends, one after the other, until
// f or the stream returns an error, which it returns. A replica that drains finds the
// next master by itself; any other frame breaches the protocol.
func eachAck(ctx context.Context, stream wire.Stream, f func(wire.ShipAck) error) error {
	for {
		frame, err := stream.Recv(ctx)
		if err != nil {
			return err
		}
		switch frame.Type {
		case wire.TypeShipAck:
		case wire.TypeDrain:
			continue
		default:
			return breach("a replica sent " + frame.Type.String())
		}
		a, err := wire.ParseShipAck(frame.Payload)
		if err != nil {
			return err
		}
		if err := f(a); err != nil {
			return err
		}
	}
}
