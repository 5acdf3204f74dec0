package flow

import (
	"crypto/sha256"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/mqrouter/mqrouter/replication/wire"
)

const (
	// maxDecoders is how many different dictionaries an Inbox keeps. Each takes 0.2 MB,
	// most of it the decoder's buffers.
	maxDecoders = 64
	// fewDecoders is how many of these there may be when a session is still told that
	// it may bring some. The others are for what the sessions before were told.
	fewDecoders = 48
)

// decoders are the dictionaries of an Inbox by their content: the lanes and flows of
// an origin share what they bring. Safe for concurrent use.
type decoders struct {
	mu sync.Mutex
	by map[[sha256.Size]byte]*decoder // guarded by mu
}

// decoder reads what was packed with one dictionary.
type decoder struct {
	id    uint32
	key   [sha256.Size]byte
	zstd  *zstd.Decoder
	users int // guarded by decoders.mu
}

// take returns the decoder of a dictionary. Who took it gives it back with drop.
func (p *decoders) take(d *wire.Dictionary) (*decoder, error) {
	key := sha256.Sum256(d.Content)
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.by[key]
	if x == nil {
		if len(p.by) >= maxDecoders {
			return nil, refused(wire.CodeUnsupported, "%d other dictionaries are kept here, which is all that are", maxDecoders)
		}
		dec, err := newDictionaryDecoder(append([]byte(nil), d.Content...))
		if err != nil {
			return nil, refused(wire.CodeMalformed, "dictionary %08x of %d bytes: %v", d.ID, len(d.Content), err)
		}
		if p.by == nil {
			p.by = make(map[[sha256.Size]byte]*decoder)
		}
		x = &decoder{id: d.ID, key: key, zstd: dec}
		p.by[key] = x
	}
	x.users++
	return x, nil
}

// drop gives back a decoder.
func (p *decoders) drop(x *decoder) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if x.users--; x.users == 0 {
		delete(p.by, x.key)
		x.zstd.Close()
	}
}

func (p *decoders) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.by)
}

// keepsDictionaries returns how many dictionaries a session that begins may bring.
func (in *Inbox) keepsDictionaries() int {
	if in.lim.keepDictionaries < 0 || in.dicts.count() >= fewDecoders {
		return 0
	}
	return in.lim.keepDictionaries
}

// takeDictionary takes a dictionary for the batches that follow, and drops the oldest
// of the session when it has as many as Accept said.
func (x *inbound) takeDictionary(p *wire.Dictionary) error {
	if x.keeps == 0 {
		return refused(wire.CodeUnsupported, "a dictionary, which the session was not told to bring")
	}
	d, err := x.in.dicts.take(p)
	if err != nil {
		return err
	}
	x.dicts = append(x.dicts, d)
	if len(x.dicts) > x.keeps {
		x.in.dicts.drop(x.dicts[0])
		x.dicts = append(x.dicts[:0], x.dicts[1:]...)
	}
	return nil
}

// dropDictionaries gives back those of a session that has ended.
func (x *inbound) dropDictionaries() {
	for _, d := range x.dicts {
		x.in.dicts.drop(d)
	}
	x.dicts = nil
}

// decoderOf returns what reads the data of a batch with a dictionary, 0 = none.
func (x *inbound) decoderOf(id uint32) (*zstd.Decoder, error) {
	if id == 0 {
		return x.in.decoder, nil
	}
	for i := len(x.dicts) - 1; i >= 0; i-- { // of two with one id, the newer
		if x.dicts[i].id == id {
			return x.dicts[i].zstd, nil
		}
	}
	return nil, refused(wire.CodeMalformed, "dictionary %08x did not come before its batch", id)
}
