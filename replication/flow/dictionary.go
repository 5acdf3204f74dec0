package flow

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/klauspost/compress/dict"
	"github.com/klauspost/compress/zstd"

	"github.com/mqrouter/mqrouter/replication/wire"
)

const (
	// dictionarySize is the most that training gathers for one, bytes; the tables
	// around it take 200 more. For records of up to 1 KiB, 16 KiB gain nothing over
	// 4 KiB (deploy/notes/0028).
	dictionarySize = 8 << 10
	// dictionaryRatio is the size of samples packed with a dictionary, in parts of
	// what they take without, above which it is not used.
	dictionaryRatio = 0.85
	// dictionaryWindow is how far back a batch with a dictionary looks: over itself
	// and the dictionary. Bytes.
	dictionaryWindow = 32 << 10
	// heldOut is one of how many samples a dictionary is judged by and not made of.
	heldOut = 4
	// minSamples is the number of samples below which nothing is learnt from them.
	minSamples = 32
	// firstID is the lowest id that zstd leaves to private use, RFC 8878 section 5.
	firstID = 1 << 15
)

// dictionary is what the batches of a topic are packed with. Immutable, and safe
// for concurrent use.
type dictionary struct {
	id      uint32
	content []byte // as it goes over the wire
	encoder *zstd.Encoder
	saves   float64 // of each byte of a small batch, in parts, on samples that it was not made of
}

var (
	// errUseless says that a dictionary for the samples would not pay.
	errUseless = errors.New("flow: a dictionary does not pay")
	// errWrong says that what was packed with a dictionary does not come back.
	errWrong = errors.New("flow: what is packed with a dictionary does not come back")
)

// train makes a dictionary of the samples, each as it stands in a batch. plain
// packs as batches without one are packed. The error is errUseless, or says why none
// could be made; samples of any content make no more of it. It takes some 20 ms for
// 64 KiB.
func train(samples [][]byte, plain *zstd.Encoder) (*dictionary, error) {
	if len(samples) < minSamples {
		return nil, fmt.Errorf("flow: %d samples for a dictionary, %d are needed", len(samples), minSamples)
	}
	var made, judges [][]byte
	for i, s := range samples {
		if i%heldOut == heldOut-1 {
			judges = append(judges, s)
		} else {
			made = append(made, s)
		}
	}
	content, err := build(made)
	if err != nil {
		return nil, err
	}
	d, err := newDictionary(content)
	if err != nil {
		return nil, err
	}
	return d, d.judge(judges, plain)
}

// newDictionary returns the dictionary of a content that build has made, which is not
// judged yet.
func newDictionary(content []byte) (*dictionary, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2),
		zstd.WithEncoderCRC(false), zstd.WithWindowSize(dictionaryWindow), zstd.WithLowerEncoderMem(true), zstd.WithEncoderDict(content))
	return &dictionary{content: content, id: binary.LittleEndian.Uint32(content[4:]), encoder: enc}, err
}

// build makes a dictionary's content, whose id is taken from it.
func build(samples [][]byte) (content []byte, err error) {
	// The builder has met odd samples with a division by zero more than once; what
	// clients send must not end the process.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("flow: building a dictionary failed: %v", p)
		}
	}()
	content, err = dict.BuildZstdDict(samples, dict.Options{
		MaxDictSize: dictionarySize, HashBytes: 6, ZstdDictID: firstID, ZstdLevel: zstd.SpeedFastest,
	})
	if err != nil {
		return nil, err
	}
	if len(content) < 8 || len(content) > wire.MaxDictionary {
		return nil, fmt.Errorf("flow: the dictionary has %d bytes", len(content))
	}
	sum := sha256.Sum256(content)
	id := firstID + binary.LittleEndian.Uint32(sum[:])%(1<<31-firstID)
	binary.LittleEndian.PutUint32(content[4:], id)
	return content, nil
}

// judge packs the samples with the dictionary and without. It fails with errUseless
// when that makes too little of a difference, and with errWrong.
func (d *dictionary) judge(samples [][]byte, plain *zstd.Encoder) error {
	dec, err := newDictionaryDecoder(d.content)
	if err != nil {
		return err
	}
	defer dec.Close()
	var raw, with, without int
	var buf, back []byte
	for _, s := range samples {
		buf = d.encoder.EncodeAll(s, buf[:0])
		back, err = dec.DecodeAll(buf, slices.Grow(back[:0], len(s)))
		if err != nil || !bytes.Equal(back, s) {
			return errors.Join(errWrong, err)
		}
		raw, with = raw+len(s), with+len(buf)
		without += sizeWithout(s, plain, &buf)
	}
	if float64(with) > dictionaryRatio*float64(without) {
		return errUseless
	}
	d.saves = float64(without-with) / float64(raw)
	return nil
}

// sizeWithout returns the bytes that data takes in a batch without a dictionary.
// buf is memory to use.
func sizeWithout(data []byte, plain *zstd.Encoder, buf *[]byte) int {
	if len(data) < minPacked {
		return len(data)
	}
	*buf = plain.EncodeAll(data, (*buf)[:0])
	if float64(len(*buf)) > goodRatio*float64(len(data)) {
		return len(data)
	}
	return len(*buf)
}

// newDictionaryDecoder returns a decoder of what was packed with a dictionary. It
// fails when the content is none. DecodeAll writes no more than the capacity it is
// given and is safe for concurrent use.
func newDictionaryDecoder(content []byte) (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true),
		zstd.WithDecoderMaxMemory(wire.MaxRawSize), zstd.WithDecoderLowmem(true), zstd.WithDecoderDicts(content))
}
