package flow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// memberChange makes a record one of many changes of member data: JSON of at least
// so many bytes.
func memberChange(rng *rand.Rand, r *record.Record, size int) {
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	body := fmt.Appendf(nil, `{"memberId":"%016x","name":"%s %s","level":"%s","points":%d,"email":"user%d@example.com","address":{"city":"%s","street":"%d %s street","zip":"%05d"},"flags":["verified","%s"]`,
		rng.Uint64(), pick("Anna", "Li", "Wei", "Omar", "Ines"), pick("Smith", "Zhang", "Khan", "Lopez"), pick("gold", "silver", "platinum", "basic"),
		rng.IntN(1e5), rng.IntN(1e6), pick("Shanghai", "Berlin", "Hangzhou", "Lima"), rng.IntN(300), pick("Main", "Lake", "Hill"), rng.IntN(1e5), pick("vip", "new", "blocked"))
	for len(body) < size-1 {
		body = fmt.Appendf(body, `,"attribute%d":%d`, len(body)%17, rng.IntN(1e9))
	}
	r.Body = append(body, '}')
	r.Keys = []string{fmt.Sprintf("member:%016x", rng.Uint64())}
	r.MessageID = fmt.Sprintf("01%032X", rng.Uint64())
	r.Properties = []record.Property{{Key: "version", Value: fmt.Sprint(rng.IntN(1e6))}, {Key: "op", Value: "set"}}
}

// encodedRecord returns a record of topic "t" as it stands in a batch.
func encodedRecord(tb testing.TB, compose func(r *record.Record)) []byte {
	r := record.Record{
		Type: record.TypeMessage, Topic: "t", Kind: zone.KindNormal, Class: zone.ClassUrgent, Target: "ch", Channel: true,
		Stored: time.Unix(1764500000, 0), Born: time.Unix(1764500000, 0),
	}
	compose(&r)
	b, err := record.AppendRecord(nil, &r)
	if err != nil {
		tb.Fatal(err)
	}
	return wire.AppendItem(nil, b)
}

func memberSamples(tb testing.TB, seed uint64, n, size int) [][]byte {
	rng := rand.New(rand.NewPCG(seed, 7))
	var list [][]byte
	for range n {
		list = append(list, encodedRecord(tb, func(r *record.Record) { memberChange(rng, r, size) }))
	}
	return list
}

// simDictionary is of records as the simulation publishes them, and goes out with
// the first batch that it is for.
func simDictionary(tb testing.TB) *dictionary {
	content, err := simContent()
	if err != nil {
		tb.Fatal(err)
	}
	d, err := newDictionary(content)
	if err != nil {
		tb.Fatal(err)
	}
	d.saves = 1e6
	return d
}

var simContent = sync.OnceValues(func() ([]byte, error) {
	var samples [][]byte
	for i := range 200 {
		r := record.Record{
			Type: record.TypeMessage, Topic: "t", Kind: zone.KindNormal, Class: zone.ClassBulk, Target: "b", Tag: "ok",
			Stored: time.Unix(int64(i), 0), Born: time.Unix(int64(i), 0), MessageID: fmt.Sprintf("m%d", i), Body: make([]byte, i),
		}
		b, err := record.AppendRecord(nil, &r)
		if err != nil {
			return nil, err
		}
		samples = append(samples, wire.AppendItem(nil, b))
	}
	return build(samples)
})

func TestTrainingMakesWhatPays(t *testing.T) {
	enc, err := newEncoder()
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{200, 500, 1000} {
		d, err := train(memberSamples(t, 1, 64<<10/(size+330), size), enc)
		if err != nil {
			t.Fatalf("changes of %d bytes: %v", size, err)
		}
		var raw, with, without int
		var buf []byte
		dec, err := newDictionaryDecoder(d.content)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range memberSamples(t, 2, 200, size) {
			out := d.encoder.EncodeAll(s, nil)
			if back, err := dec.DecodeAll(out, make([]byte, 0, len(s))); err != nil || !bytes.Equal(back, s) {
				t.Fatalf("a change of %d bytes does not come back: %v", size, err)
			}
			raw, with, without = raw+len(s), with+len(out), without+sizeWithout(s, enc, &buf)
		}
		dec.Close()
		t.Logf("records of %d bytes: %d in a frame without, %d with a dictionary of %d bytes", raw/200, without/200, with/200, len(d.content))
		if float64(with) > 0.8*float64(without) {
			t.Errorf("records of %d bytes: %d bytes with a dictionary, %d without", raw/200, with/200, without/200)
		}
		if got := float64(without-with) / float64(raw); got < d.saves-0.05 || got > d.saves+0.05 {
			t.Errorf("records of %d bytes: %.2f of their bytes are saved, %.2f were expected", raw/200, got, d.saves)
		}
	}
}

func TestTrainingTakesAnySamples(t *testing.T) {
	enc, err := newEncoder()
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	random := make([][]byte, 200)
	for i := range random {
		random[i] = make([]byte, 300)
		for j := range random[i] {
			random[i][j] = byte(rng.Uint32())
		}
	}
	if _, err := train(random, enc); err == nil {
		t.Error("a dictionary is said to pay for random bytes")
	}
	for i := range random {
		copy(random[i], "the first bytes of each are the same") // 36 of 300
	}
	if _, err := train(random, enc); !errors.Is(err, errUseless) {
		t.Errorf("a dictionary for a ninth of the bytes: %v", err)
	}
	repeat := func(n int, b []byte) (list [][]byte) {
		for range n {
			list = append(list, b)
		}
		return list
	}
	for name, samples := range map[string][][]byte{
		"none": nil, "one": repeat(1, []byte("a")), "empty": repeat(100, nil), "of a byte": repeat(100, []byte("a")),
		"of seven bytes": repeat(100, []byte("abcdefg")), "alike": repeat(100, bytes.Repeat([]byte("ABCD"), 256)),
		"zeros": repeat(100, make([]byte, 600)), "large": repeat(100, bytes.Repeat(random[0], 200)),
		"a few of one kind": append(repeat(40, []byte("abcdefgh")), random[:4]...),
	} {
		if d, err := train(samples, enc); err == nil && len(d.content) > wire.MaxDictionary {
			t.Errorf("samples %s: a dictionary of %d bytes", name, len(d.content))
		}
	}
}

// FuzzTraining makes dictionaries of pieces of arbitrary bytes: none may panic, and
// what one packs must come back.
func FuzzTraining(f *testing.F) {
	f.Add(bytes.Join(memberSamples(f, 1, 60, 200), nil), uint16(500))
	f.Add(bytes.Repeat([]byte("ABCD"), 5000), uint16(90))
	f.Add(make([]byte, 20000), uint16(8))
	enc, err := newEncoder()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte, size uint16) {
		var samples [][]byte
		for n := min(int(size)+1, maxSample); len(b) > 0 && len(samples) < 1000; b = b[min(n, len(b)):] {
			samples = append(samples, b[:min(n, len(b))])
		}
		// judge has all of them come back; what does not is an error that says so.
		if _, err := train(samples, enc); err != nil && errors.Is(err, errWrong) {
			t.Error(err)
		}
	})
}

// FuzzDictionary brings arbitrary bytes as a dictionary and as what it packed: none
// may panic or write beyond what it may.
func FuzzDictionary(f *testing.F) {
	d := simDictionary(f)
	packed := d.encoder.EncodeAll(make([]byte, 300), nil)
	f.Add((&wire.Dictionary{ID: d.id, Content: d.content}).Append(nil), packed)
	f.Add((&wire.Dictionary{ID: d.id, Content: d.content[:len(d.content)/2]}).Append(nil), packed)
	f.Add((&wire.Dictionary{ID: d.id, Content: d.content[:8]}).Append(nil), packed)
	f.Fuzz(func(t *testing.T, frame, data []byte) {
		p, err := wire.ParseDictionary(frame)
		if err != nil {
			return
		}
		var all decoders
		x, err := all.take(&p)
		if err != nil {
			return
		}
		if out, err := x.zstd.DecodeAll(data, make([]byte, 0, 4096)); err == nil && len(out) > 4096 {
			t.Errorf("%d bytes written", len(out))
		}
		all.drop(x)
		if all.count() != 0 {
			t.Error("a dictionary is kept for nobody")
		}
	})
}

func TestDictionariesAreSharedAndBounded(t *testing.T) {
	enc, err := newEncoder()
	if err != nil {
		t.Fatal(err)
	}
	d, err := train(memberSamples(t, 1, 100, 200), enc)
	if err != nil {
		t.Fatal(err)
	}
	in, err := NewInbox(InboxOptions{Sink: newMemSink(rand.New(rand.NewPCG(1, 1)), "b"), City: "B"})
	if err != nil {
		t.Fatal(err)
	}
	var taken []*decoder
	for i := range maxDecoders {
		c := bytes.Clone(d.content)
		c[len(c)-1], c[len(c)-2] = byte(i), 'x' // another history
		for range 2 {
			x, err := in.dicts.take(&wire.Dictionary{ID: d.id, Content: c})
			if err != nil {
				t.Fatal(err)
			}
			taken = append(taken, x)
		}
		if keeps := in.keepsDictionaries(); (keeps == 0) != (i+1 >= fewDecoders) {
			t.Errorf("%d dictionaries: the next session may bring %d", i+1, keeps)
		}
	}
	if taken[0] != taken[1] || in.dicts.count() != maxDecoders {
		t.Errorf("one dictionary is kept twice: %d for %d", in.dicts.count(), maxDecoders)
	}
	var r *RefusedError
	if _, err := in.dicts.take(&wire.Dictionary{ID: d.id, Content: d.content}); !errors.As(err, &r) || r.Code != wire.CodeUnsupported {
		t.Errorf("one more: %v", err)
	}
	if _, err := in.dicts.take(&wire.Dictionary{ID: d.id, Content: d.content[:20]}); !errors.As(err, &r) {
		t.Errorf("a part of one: %v", err)
	}
	for _, x := range taken {
		in.dicts.drop(x)
	}
	if in.dicts.count() != 0 || in.keepsDictionaries() != maxTopics {
		t.Errorf("%d are kept for nobody", in.dicts.count())
	}
}

func TestDictionaryThatNobodyAskedForIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, err := NewInbox(InboxOptions{Sink: newMemSink(rand.New(rand.NewPCG(1, 1)), "b"), City: "B", Limits: Limits{keepDictionaries: -1}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		x, y := Pipe()
		p := start(ctx)
		p.wg.Go(func() { _ = in.Serve(p.ctx, y) })
		defer p.kill()
		o, d := testOpen(0), simDictionary(t)
		for _, f := range []wire.Frame{
			{Type: wire.TypeOpen, Payload: o.Append(nil)},
			{Type: wire.TypeDictionary, Payload: (&wire.Dictionary{ID: d.id, Content: d.content}).Append(nil)},
		} {
			f.Session, f.Class = 7, zone.ClassBulk
			if err := x.Send(ctx, f); err != nil {
				t.Fatal(err)
			}
		}
		f, err := x.Recv(ctx)
		for err == nil && f.Type != wire.TypeRefuse {
			f, err = x.Recv(ctx)
		}
		if r, parsed := wire.ParseRefuse(f.Payload); err != nil || parsed != nil || r.Code != wire.CodeUnsupported {
			t.Errorf("answer %+v, %v", r, err)
		}
	})
}

func TestDictionaryIsSentWhenItHasPaidForItself(t *testing.T) {
	d := &dictionary{content: make([]byte, 4000), saves: 0.5}
	e := &dictionary{content: make([]byte, 4000), saves: 0.5}
	s := shelf{keeps: 1}
	for i := range 20 { // 200 bytes saved by each
		use, has := s.worth(d, 400)
		if has || use != (i == 19) {
			t.Fatalf("batch %d: use %v, has %v", i, use, has)
		}
	}
	s.sent(d)
	if use, has := s.worth(d, 400); !use || !has {
		t.Errorf("it was sent: use %v, has %v", use, has)
	}
	for range 20 {
		s.worth(e, 400)
	}
	s.sent(e)
	if use, has := s.worth(d, 400); use || has {
		t.Errorf("the destination keeps one, and not this one any more: use %v, has %v", use, has)
	}
}
