package gossip

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/hashicorp/memberlist"

	"github.com/mqrouter/mqrouter/zone"
)

func sampleMeta() Meta {
	return Meta{
		Role: zone.RoleBroker, Draining: true, Start: 0x0102030405060708, Epoch: zone.Epoch{Term: 1, Number: 17},
		City: "shanghai", Zone: "sh-a", Group: "sh-a-1", Peer: "127.0.0.1:7101", QUIC: "[::1]:7201",
	}
}

func TestMetaBytesNeverChange(t *testing.T) {
	const want = "01010101020304050607080000000000000001000000000000001108" + "7368616e67686169" +
		"04" + "73682d61" + "06" + "73682d612d31" + "0e" + "3132372e302e302e313a37313031" + "0a" + "5b3a3a315d3a37323031"
	m := sampleMeta()
	b, err := m.Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(b); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	got, err := DecodeMeta(b)
	if err != nil || got != m {
		t.Errorf("round trip: %+v, %v", got, err)
	}
	for n := range b {
		if _, err := DecodeMeta(b[:n]); !errors.Is(err, ErrMetaMalformed) {
			t.Errorf("%d of %d bytes: %v", n, len(b), err)
		}
	}
	m.Term, m.Leads = 9, true
	withTerm, err := m.Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(withTerm); got != "020103"+want[6:]+"0000000000000009" {
		t.Errorf("with a term: got %s", got)
	}
	if got, err := DecodeMeta(withTerm); err != nil || got != m {
		t.Errorf("round trip with a term: %+v, %v", got, err)
	}
	for n := range withTerm {
		if _, err := DecodeMeta(withTerm[:n]); !errors.Is(err, ErrMetaMalformed) {
			t.Errorf("%d of %d bytes with a term: %v", n, len(withTerm), err)
		}
	}
	m.Away = "b,c"
	withAway, err := m.Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(withAway); got != "030103"+want[6:]+"0000000000000009"+"03622c63" {
		t.Errorf("with who is away: got %s", got)
	}
	if got, err := DecodeMeta(withAway); err != nil || got != m {
		t.Errorf("round trip with who is away: %+v, %v", got, err)
	}
	for n := range withAway {
		if _, err := DecodeMeta(withAway[:n]); !errors.Is(err, ErrMetaMalformed) {
			t.Errorf("%d of %d bytes with who is away: %v", n, len(withAway), err)
		}
	}
	later := append([]byte{4}, withAway[1:]...)
	if got, err := DecodeMeta(append(later, "a later field"...)); err != nil || got != m {
		t.Errorf("a later version: %+v, %v", got, err)
	}
	if _, err := DecodeMeta(append([]byte{0}, b[1:]...)); !errors.Is(err, ErrMetaMalformed) {
		t.Errorf("version 0: %v", err)
	}
	if _, err := DecodeMeta(make([]byte, MaxMeta+1)); !errors.Is(err, ErrMetaMalformed) {
		t.Errorf("oversized: %v", err)
	}
}

func TestG4_MetaOfLongNamesFitsOrFailsBeforeTheStart(t *testing.T) {
	text := func(n int) string { return strings.Repeat("x", n) }
	fits := Meta{City: zone.City(text(64)), Zone: zone.Zone(text(64)), Group: zone.Group(text(64)), Peer: text(140), QUIC: text(140)}
	if b, err := fits.Encode(nil); err != nil || len(b) > MaxMeta {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	crowded := fits
	crowded.Term, crowded.Leads, crowded.Away = 1, true, text(200)
	if b, err := crowded.Encode(nil); err != nil || len(b) > MaxMeta {
		t.Errorf("a hint without room: %d bytes, %v", len(b), err)
	} else if got, err := DecodeMeta(b); err != nil || got.Away != "" || got.Term != 1 {
		t.Errorf("it is %+v, %v", got, err)
	}
	for _, m := range []Meta{{City: zone.City(text(256))}, {Peer: text(255), QUIC: text(255)}} {
		if _, err := m.Encode(nil); !errors.Is(err, ErrMetaTooLarge) {
			t.Errorf("%v, want ErrMetaTooLarge", err)
		}
	}
}

func TestNamesAreTakenApart(t *testing.T) {
	full := joinName("sh-router-1", 0xabc)
	if n, s, ok := splitName(full); n != "sh-router-1" || s != 0xabc || !ok {
		t.Errorf("%q: %q %x %v", full, n, s, ok)
	}
	for _, bad := range []string{"", "a", "~1", "a~", "a~x", "a~1~2", "a~11112222333344445", strings.Repeat("x", maxName+1) + "~1"} {
		if _, _, ok := splitName(bad); ok {
			t.Errorf("%q accepted", bad)
		}
	}
}

func TestMalformedNodesAreNotMembers(t *testing.T) {
	m := sampleMeta()
	good, err := m.Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	name := joinName("n", m.Start)
	d := &directory{stats: &counters{}, changed: make(chan struct{}, 1), members: map[string]Member{}}
	bad := []*memberlist.Node{
		{Name: "n", Addr: []byte{10, 0, 0, 1}, Meta: good},
		{Name: name, Addr: []byte{10, 0, 0}, Meta: good},
		{Name: name, Addr: []byte{10, 0, 0, 1}, Meta: good[:10]},
		{Name: name, Addr: []byte{10, 0, 0, 1}},
		{Name: joinName("n", 5), Addr: []byte{10, 0, 0, 1}, Meta: good},
	}
	for i, n := range bad {
		if d.NotifyAlive(n) == nil {
			t.Errorf("node %d accepted", i)
		}
		d.NotifyJoin(n)
	}
	if got := d.stats.stats().Malformed; got != uint64(2*len(bad)) || len(d.list()) != 0 {
		t.Errorf("%d counted, members %+v", got, d.list())
	}
	ok := &memberlist.Node{Name: name, Addr: []byte{10, 0, 0, 1}, Port: 7, Meta: good}
	if err := d.NotifyAlive(ok); err != nil {
		t.Error(err)
	}
}

func FuzzMeta(f *testing.F) {
	m := sampleMeta()
	b, err := m.Encode(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeMeta(b)
		if err != nil {
			return
		}
		again, err := m.Encode(nil)
		if err != nil {
			t.Fatalf("accepted, then refused: %v", err)
		}
		if back, err := DecodeMeta(again); err != nil || back != m {
			t.Errorf("%+v became %+v, %v", m, back, err)
		}
	})
}
