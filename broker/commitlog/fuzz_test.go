package commitlog

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"math"
	"testing"
)

// FuzzMeta opens a log whose META file has other bytes: at some place, or, when
// sealed, as the content of a slot that is newer than all and whose checksum is
// right. Whatever they are, the log opens or says what is wrong; and as long as
// they are mere damage, it holds what was acknowledged when it opens.
func FuzzMeta(f *testing.F) {
	mem, _ := written(f, 2, 40, 4<<10)
	file, err := mem.Open(testDir + "/" + metaName)
	if err != nil {
		f.Fatal(err)
	}
	whole := make([]byte, 2*metaSlot)
	if n, err := file.ReadAt(whole, 0); n < metaSlot {
		f.Fatal(err)
	}
	slot := bytes.TrimRight(whole[:metaSlot], "\x00")
	f.Add(slot, uint32(0), false)
	f.Add(slot, uint32(metaSlot), false)
	f.Add(make([]byte, 64), uint32(0), false)
	f.Add([]byte{0xff}, uint32(9), false)
	json := slot[metaHeadLen:]
	f.Add(json, uint32(1), true)
	f.Add(bytes.Replace(json, []byte(`"Begin":0`), []byte(`"Begin":99999999`), 1), uint32(1), true)
	f.Add(bytes.Replace(json, []byte(`"Lanes":4`), []byte(`"Lanes":-4`), 1), uint32(1), true)
	f.Add([]byte(`{"Lineage":[{"Epoch":18446744073709551615,"First":18446744073709551615}]}`), uint32(1), true)
	f.Fuzz(func(t *testing.T, b []byte, at uint32, sealed bool) {
		mem, entries := written(t, 4, 40, 4<<10)
		if sealed {
			b, at = sealedSlot(b), at%2*metaSlot
		}
		if at < 2*metaSlot {
			file, err := mem.Open(testDir + "/" + metaName)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := file.WriteAt(b[:min(len(b), 2*metaSlot-int(at))], int64(at)); err != nil {
				t.Fatal(err)
			}
		}
		h, err := tryOpen(t, testOptions(mem, 2))
		if err != nil {
			return
		}
		defer h.Close()
		got := 0
		err = h.Scan(context.Background(), 0, math.MaxUint64, func(e Entry) error {
			for _, want := range entries {
				if e.Position == want.Position {
					got++
				}
			}
			return nil
		})
		if !sealed && (err != nil || got != len(entries)) {
			t.Errorf("%d of %d entries are read, %v", got, len(entries), err)
		}
	})
}

// sealedSlot makes a slot that counts, of any content.
func sealedSlot(json []byte) []byte {
	json = json[:min(len(json), metaSlot-metaHeadLen)]
	b := append([]byte{}, metaMagic[:]...)
	b = binary.LittleEndian.AppendUint64(b, 1<<40)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(json)))
	sum := crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, json)
	return append(binary.LittleEndian.AppendUint32(b, sum), json...)
}
