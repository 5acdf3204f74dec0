package zone

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const day = 24 * time.Hour

// parseDuration reads what time.ParseDuration reads, and whole days: 7d.
func parseDuration(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return 0, err
		}
		return time.Duration(n) * day, nil
	}
	return time.ParseDuration(s)
}

// FormatDuration writes a duration as topologies and flags have it, in the shortest form
// that they read: 720h, 1h30m, 90s.
func FormatDuration(d time.Duration) string {
	if d%time.Hour == 0 && d != 0 {
		return strconv.FormatInt(int64(d/time.Hour), 10) + "h"
	}
	if s, ok := strings.CutSuffix(d.String(), "m0s"); ok {
		return s + "m"
	}
	return d.String()
}

// sizeUnits are the units of sizes, the greatest first. Only binary units
// exist: "4MB" would leave open which one is meant.
var sizeUnits = []struct {
	name  string
	bytes int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

var errSize = errors.New("a size such as 512B, 64KiB, 4MiB or 1GiB is needed")

// ParseSize reads a number of bytes with a binary unit, or a bare number. The
// error says what would be right.
func ParseSize(s string) (int64, error) {
	digits := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
	unit := strings.TrimSpace(s[len(digits):])
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 {
		return 0, errSize
	}
	if unit == "" {
		return n, nil
	}
	for _, u := range sizeUnits {
		if u.name != unit {
			continue
		}
		if n > (1<<63-1)/u.bytes {
			return 0, errSize
		}
		return n * u.bytes, nil
	}
	if binary := strings.ToUpper(unit[:1]) + "iB"; len(unit) <= 3 && strings.ContainsAny(binary[:1], "KMGT") {
		return 0, fmt.Errorf("units are B, KiB, MiB, GiB and TiB; did you mean %d%s?", n, binary)
	}
	return 0, errSize
}

// formatSize writes the shortest form that ParseSize reads without loss.
func formatSize(n int64) string {
	for _, u := range sizeUnits {
		if n >= u.bytes && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}
