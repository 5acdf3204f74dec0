package broadcast

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
)

// TestFormatIsPinned holds the message form of changes: clients in other
// languages depend on it. Never change a line.
func TestFormatIsPinned(t *testing.T) {
	for _, c := range []struct {
		change Change
		want   string
	}{
		{Change{Op: OpSet, Key: "member:1", Version: 7, Value: []byte("gold")}, `key="member:1" mqr.op="set" mqr.version="7" body="gold"`},
		{Change{Op: OpSet, Key: "m", Version: math.MaxUint64, Value: []byte{0, 255}, TTL: 90 * time.Second},
			`key="m" mqr.op="set" mqr.ttl="90000" mqr.version="18446744073709551615" body="\x00\xff"`},
		{Change{Op: OpSet, Key: "m", Version: 1}, `key="m" mqr.empty="true" mqr.op="set" mqr.version="1" body="-"`},
		{Change{Op: OpDelete, Key: "会员:1", Version: 8}, `key="会员:1" mqr.op="delete" mqr.version="8" body="-"`},
		{Change{Op: OpFlushPrefix, Key: "member:", Version: 1 << 53}, `key="member:" mqr.op="flush-prefix" mqr.version="9007199254740992" body="-"`},
	} {
		m, err := c.change.Format()
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		fmt.Fprintf(&b, "key=%q", m.Key)
		for _, name := range slices.Sorted(maps.Keys(m.Properties)) {
			fmt.Fprintf(&b, " %s=%q", name, m.Properties[name])
		}
		fmt.Fprintf(&b, " body=%q", m.Body)
		if b.String() != c.want {
			t.Errorf("got  %s\nwant %s", b.String(), c.want)
		}
		back, err := Parse([]string{m.Key}, m.Properties, m.Body)
		if err != nil || fmt.Sprint(back) != fmt.Sprint(c.change) {
			t.Errorf("parsed %v, %v; want %v", back, err, c.change)
		}
	}
}

func TestParseSaysWhatIsWrongAndWhere(t *testing.T) {
	type props = map[string]string
	good := props{PropertyOp: "set", PropertyVersion: "1"}
	with := func(name, value string) props {
		p := maps.Clone(good)
		p[name] = value
		return p
	}
	for name, c := range map[string]struct {
		keys  []string
		props props
		body  string
		field string
	}{
		"no key":             {nil, good, "v", "key"},
		"two keys":           {[]string{"a", "b"}, good, "v", "key"},
		"empty key":          {[]string{""}, good, "v", "key"},
		"long key":           {[]string{strings.Repeat("k", MaxKey+1)}, good, "v", "key"},
		"key is not text":    {[]string{"\xff"}, good, "v", "key"},
		"reserved key":       {[]string{"mqr:v:x"}, good, "v", "key"},
		"reserved namespace": {[]string{"mqr"}, with(PropertyOp, "flush-prefix"), "v", "key"},
		"no operation":       {[]string{"k"}, props{PropertyVersion: "1"}, "v", PropertyOp},
		"other operation":    {[]string{"k"}, with(PropertyOp, "SET"), "v", PropertyOp},
		"no version":         {[]string{"k"}, props{PropertyOp: "set"}, "v", PropertyVersion},
		"version 0":          {[]string{"k"}, with(PropertyVersion, "0"), "v", PropertyVersion},
		"version -1":         {[]string{"k"}, with(PropertyVersion, "-1"), "v", PropertyVersion},
		"version +1":         {[]string{"k"}, with(PropertyVersion, "+1"), "v", PropertyVersion},
		"version 1e3":        {[]string{"k"}, with(PropertyVersion, "1e3"), "v", PropertyVersion},
		"version 2^64":       {[]string{"k"}, with(PropertyVersion, "18446744073709551616"), "v", PropertyVersion},
		"ttl with unit":      {[]string{"k"}, with(PropertyTTL, "1s"), "v", PropertyTTL},
		"ttl too long":       {[]string{"k"}, with(PropertyTTL, "999999999999999"), "v", PropertyTTL},
		"ttl of a delete":    {[]string{"k"}, props{PropertyOp: "delete", PropertyVersion: "1", PropertyTTL: "5"}, "v", PropertyTTL},
		"empty maybe":        {[]string{"k"}, with(PropertyEmpty, "yes"), "v", PropertyEmpty},
		"value too large":    {[]string{"k"}, good, strings.Repeat("v", MaxValue+1), "body"},
	} {
		_, err := Parse(c.keys, c.props, []byte(c.body))
		var e *ChangeError
		if !errors.As(err, &e) || e.Field != c.field || e.Want == "" {
			t.Errorf("%s: %v, want a fault of %s", name, err, c.field)
		}
	}
}

// encoded returns a record with the change's message, as a broker stores it.
func encoded(t testing.TB, keys []string, props []record.Property, body []byte, enc record.Encoding) record.View {
	t.Helper()
	b, err := record.AppendRecord(nil, &record.Record{Type: record.TypeMessage, Topic: "member", Keys: keys, Properties: props, Body: body,
		Encoding: enc, MessageID: "m-1", Stored: time.UnixMilli(1_700_000_000_000)})
	if err != nil {
		t.Fatal(err)
	}
	v, err := record.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestParseRecordReadsBodiesThatClientsCompress(t *testing.T) {
	props := []record.Property{{Key: "other", Value: "x"}, {Key: PropertyVersion, Value: "4"}, {Key: PropertyOp, Value: "set"}}
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	w.Write([]byte("gold"))
	w.Close()
	for _, c := range []struct {
		body []byte
		enc  record.Encoding
	}{{[]byte("gold"), 0}, {[]byte("gold"), 1}, {zipped.Bytes(), gzipBody}} {
		got, err := ParseRecord(encoded(t, []string{"k"}, props, c.body, c.enc))
		if err != nil || string(got.Value) != "gold" || got.Version != 4 || got.Key != "k" || got.Stored.UnixMilli() != 1_700_000_000_000 {
			t.Errorf("encoding %d: %+v, %v", c.enc, got, err)
		}
	}
	var bomb bytes.Buffer
	w = gzip.NewWriter(&bomb)
	w.Write(make([]byte, MaxValue+1))
	w.Close()
	for name, v := range map[string]record.View{
		"unknown encoding": encoded(t, []string{"k"}, props, []byte("x"), 9),
		"not gzip":         encoded(t, []string{"k"}, props, []byte("x"), gzipBody),
		"cut gzip":         encoded(t, []string{"k"}, props, zipped.Bytes()[:zipped.Len()-3], gzipBody),
		"bomb":             encoded(t, []string{"k"}, props, bomb.Bytes(), gzipBody),
	} {
		_, err := ParseRecord(v)
		var e *ChangeError
		if !errors.As(err, &e) || e.Field != "body" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzParse holds that whatever is taken for a change is one: it formats, and
// parses to the same.
func FuzzParse(f *testing.F) {
	f.Add("member:1", "set", "7", "", "", []byte("gold"))
	f.Add("m", "delete", "18446744073709551615", "", "", []byte("-"))
	f.Add("m:", "flush-prefix", "1", "", "true", []byte("-"))
	f.Add("m", "set", "1", "90000", "true", []byte("x"))
	f.Fuzz(func(t *testing.T, key, op, version, ttl, empty string, body []byte) {
		props := map[string]string{PropertyOp: op, PropertyVersion: version}
		if ttl != "" {
			props[PropertyTTL] = ttl
		}
		if empty != "" {
			props[PropertyEmpty] = empty
		}
		c, err := Parse([]string{key}, props, body)
		if err != nil {
			var e *ChangeError
			if !errors.As(err, &e) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		m, err := c.Format()
		if err != nil {
			t.Fatalf("%+v parsed but does not format: %v", c, err)
		}
		back, err := Parse([]string{m.Key}, m.Properties, m.Body)
		if err != nil || back.Op != c.Op || back.Key != c.Key || back.Version != c.Version || back.TTL != c.TTL || !bytes.Equal(back.Value, c.Value) {
			t.Fatalf("%+v came back as %+v, %v", c, back, err)
		}
	})
}
