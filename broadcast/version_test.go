package broadcast

import (
	"math"
	"testing"
	"time"
)

func TestRankOrdersVersionThenDeleteThenValue(t *testing.T) {
	set := func(v uint64, value string) Rank {
		return (&Change{Op: OpSet, Key: "k", Version: v, Value: []byte(value)}).Rank()
	}
	del := func(v uint64) Rank { return (&Change{Op: OpDelete, Key: "k", Version: v}).Rank() }
	// 2^53 and the next are one and the same number in a double.
	for _, c := range []struct{ less, more Rank }{
		{set(1, "z"), set(2, "a")},
		{set(9, "x"), set(10, "x")},
		{set(7, "x"), del(7)},
		{del(7), set(8, "x")},
		{set(1<<53, "x"), set(1<<53+1, "x")},
		{set(math.MaxUint64-1, "x"), set(math.MaxUint64, "x")},
		{set(math.MaxUint64, "x"), del(math.MaxUint64)},
	} {
		if c.less >= c.more {
			t.Errorf("%s is not below %s", c.less, c.more)
		}
		if len(c.less) != RankLen || !c.less.Valid() || !c.more.Valid() {
			t.Errorf("%s or %s has not the form of a rank", c.less, c.more)
		}
	}
	if a, b := set(5, "a"), set(5, "b"); a == b {
		t.Error("two values have one rank")
	}
	if again := set(5, "a"); again != set(5, "a") || set(math.MaxUint64, "").Version() != math.MaxUint64 || !del(3).Deleted() || set(3, "").Deleted() {
		t.Error("a rank does not tell what it was made of")
	}
	if got, want := set(42, "gold"), Rank("00000000000000000042"+"0"+"02654854652520285030"); got != want {
		t.Errorf("rank %s, pinned is %s", got, want)
	}
	for _, bad := range []Rank{"", "1", set(1, "x") + "0", "x" + set(1, "x")[1:], set(1, "x")[:20] + "2" + set(1, "x")[21:]} {
		if bad.Valid() || bad.Version() != 0 {
			t.Errorf("%q passes for a rank", bad)
		}
	}
}

// Whatever way a change takes, over a relay or straight, and whenever it comes: one
// that is older than what the cache has, a delete included, changes nothing.
func TestO3_FenceRefusesWhatIsOlder(t *testing.T) {
	now := time.UnixMilli(1_000_000_000)
	rank := func(op Op, v uint64) Rank { return (&Change{Op: op, Version: v}).Rank() }
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	var never time.Time
	for name, c := range map[string]struct {
		have    Stored
		op      Op
		version uint64
		expires time.Time
		stored  time.Time
		want    Verdict
	}{
		"first":                       {Stored{}, OpSet, 1, never, now, Applied},
		"newer":                       {Stored{Rank: rank(OpSet, 1)}, OpSet, 2, never, now, Applied},
		"same":                        {Stored{Rank: rank(OpSet, 2)}, OpSet, 2, never, now, Superseded},
		"older":                       {Stored{Rank: rank(OpSet, 3)}, OpSet, 2, never, now, Superseded},
		"old set after a delete":      {Stored{Rank: rank(OpDelete, 2)}, OpSet, 1, never, now, Superseded},
		"set of the delete's version": {Stored{Rank: rank(OpDelete, 2)}, OpSet, 2, never, now, Superseded},
		"set after a delete":          {Stored{Rank: rank(OpDelete, 2)}, OpSet, 3, never, now, Applied},
		"delete":                      {Stored{Rank: rank(OpSet, 2)}, OpDelete, 2, never, now, AppliedAsGone},
		"delete of nothing":           {Stored{}, OpDelete, 2, never, now, AppliedAsGone},
		"flushed":                     {Stored{Generation: 5}, OpSet, 5, never, now, Superseded},
		"after the flush":             {Stored{Generation: 5}, OpSet, 6, never, now, Applied},
		"beyond the horizon":          {Stored{}, OpSet, 1, never, ago(time.Hour + 1), AppliedAsGone},
		"at the horizon":              {Stored{}, OpSet, 1, never, ago(time.Hour), Applied},
		"old, but known":              {Stored{Rank: rank(OpSet, 1)}, OpSet, 2, never, ago(48 * time.Hour), Applied},
		"its time is over":            {Stored{}, OpSet, 1, now, now, AppliedAsGone},
		"its time is not over":        {Stored{}, OpSet, 1, now.Add(1), now, Applied},
	} {
		if got := Fence(c.have, rank(c.op, c.version), c.op, ago(time.Hour), c.expires, c.stored, now); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
