package flow

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// FuzzInbox feeds a session frames of a hostile origin: nothing may panic,
// hang, land more than the memory allows or keep memory.
func FuzzInbox(f *testing.F) {
	b := wire.Batch{First: 1, Count: 1, Lineage: 0xa, LineageEpoch: 1, Path: []zone.City{"A"}, Data: wire.AppendItem(nil, []byte("no record"))}
	b.RawSize = uint32(len(b.Data))
	g := wire.Gap{First: 1, Through: 9, Lineage: 0xa, LineageEpoch: 1}
	p := wire.Probe{Nonce: 1}
	s := wire.Seal{Flow: testFlow(0)}
	o := testOpen(0)
	f.Add(o.Append(nil), uint8(wire.TypeBatch), b.Append(nil), uint8(wire.TypeGap), g.Append(nil))
	f.Add(o.Append(nil), uint8(wire.TypeGap), g.Append(nil), uint8(wire.TypeSkip), g.Append(nil))
	f.Add(o.Append(nil), uint8(wire.TypeProbe), p.Append(nil), uint8(wire.TypeSeal), s.Append(nil))
	b.Codec, b.Data, b.RawSize = wire.CodecZstd, []byte{0x28, 0xb5, 0x2f, 0xfd, 4, 0, 0}, 100
	f.Add(o.Append(nil), uint8(wire.TypeBatch), b.Append(nil), uint8(wire.TypeEnd), []byte{})
	d := simDictionary(f)
	data := wire.AppendItem(nil, []byte("no record"))
	b.Codec, b.Dictionary, b.Data, b.RawSize = wire.CodecZstd, d.id, d.encoder.EncodeAll(data, nil), uint32(len(data))
	f.Add(o.Append(nil), uint8(wire.TypeDictionary), (&wire.Dictionary{ID: d.id, Content: d.content}).Append(nil), uint8(wire.TypeBatch), b.Append(nil))
	f.Fuzz(func(t *testing.T, open []byte, t1 uint8, p1 []byte, t2 uint8, p2 []byte) {
		sink := newMemSink(rand.New(rand.NewPCG(1, 1)), "b")
		sink.delay = 0
		in, err := NewInbox(InboxOptions{Sink: sink, City: "B", Limits: Limits{MemoryBytes: 1 << 20}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		x, y := Pipe()
		done := start(ctx)
		done.wg.Go(func() { sink.run(ctx) })
		served := make(chan struct{})
		done.wg.Go(func() {
			defer close(served)
			_ = in.Serve(ctx, y)
		})
		frames := []wire.Frame{{Type: wire.TypeOpen, Payload: open}, {Type: wire.Type(t1), Payload: p1}, {Type: wire.Type(t2), Payload: p2}, {Type: wire.TypeEnd, Payload: (&wire.End{}).Append(nil)}}
		for _, fr := range frames {
			fr.Session, fr.Class = 7, zone.ClassBulk
			if x.Send(ctx, fr) != nil {
				break
			}
		}
		<-served
		if sink.most > 1<<20 {
			t.Errorf("%d bytes with the sink", sink.most)
		}
		cancel()
		done.wg.Wait()
	})
}
