package broadcast

import "testing"

// FuzzMark reads watermarks from a cache that somebody else may have written to.
func FuzzMark(f *testing.F) {
	m := Mark{Flow: channelFlow("rz01-a", 1), Lineage: 2, Epoch: 3, Number: 4}
	f.Add(m.Field(), m.Value())
	f.Add("", "")
	f.Add(m.Field()+"|", "18446744073709551616")
	f.Fuzz(func(t *testing.T, field, value string) {
		m, err := ParseMark(field, value)
		if err != nil {
			return
		}
		if again, err := ParseMark(m.Field(), m.Value()); err != nil || again != m {
			t.Errorf("%+v became %+v, %v", m, again, err)
		}
	})
}
