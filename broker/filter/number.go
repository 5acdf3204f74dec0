package filter

import (
	"cmp"
	"strconv"
)

// number is a decimal number: an integer as far as it fits 64 bits.
type number struct {
	f       float64
	i       int64
	integer bool
}

func integer(i int64) number { return number{f: float64(i), i: i, integer: true} }

// compare orders two numbers. There is no NaN: none can be written.
func (n number) compare(o number) int {
	if n.integer && o.integer {
		return cmp.Compare(n.i, o.i)
	}
	return cmp.Compare(n.f, o.f)
}

// negate returns the opposite; that of the least integer is no integer.
func (n number) negate() number {
	if n.integer && -n.i != n.i || n.i == 0 && n.integer {
		return integer(-n.i)
	}
	return number{f: -n.f}
}

// maxDigits bounds the text of a number; bytes. Longer texts are none.
const maxDigits = 400

// parseNumber reads a decimal number with an optional sign, fraction and exponent.
// Other spellings that package strconv knows (hexadecimal, Inf, NaN, _) are none.
func parseNumber(b []byte) (number, bool) {
	if len(b) == 0 || len(b) > maxDigits {
		return number{}, false
	}
	whole, digits := true, false
	for i, c := range b {
		switch {
		case c >= '0' && c <= '9':
			digits = true
		case (c == '+' || c == '-') && i == 0:
		case (c == '+' || c == '-') && (b[i-1] == 'e' || b[i-1] == 'E'):
		case c == '.' || (c == 'e' || c == 'E') && digits:
			whole = false
		default:
			return number{}, false
		}
	}
	if whole && len(b) <= 20 {
		if i, err := strconv.ParseInt(string(b), 10, 64); err == nil {
			return integer(i), true
		}
	}
	f, err := strconv.ParseFloat(string(b), 64)
	return number{f: f}, err == nil
}
