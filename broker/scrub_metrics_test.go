package broker

import (
	"context"
	"fmt"
	"path"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/ship"
)

// counted returns what a counter has come to.
func counted(t *testing.T, reader sdkmetric.Reader, name string) int64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &rm); err != nil {
		t.Fatal(err)
	}
	n := int64(0)
	for _, scope := range rm.ScopeMetrics {
		for _, m := range scope.Metrics {
			if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == name {
				for _, p := range sum.DataPoints {
					n += p.Value
				}
			}
		}
	}
	return n
}

// sealedBytes is what of a log's segments but the last is entries.
func sealedBytes(t *testing.T, fs disk.FS, dir string) int64 {
	t.Helper()
	n, last := int64(0), int64(-1)
	for _, name := range append(sealed(t, fs, dir), newest(t, fs, dir)) {
		base, err := strconv.ParseInt(strings.TrimSuffix(path.Base(name), path.Ext(name)), 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		if last >= 0 {
			n += base - last - 64 // without the header
		}
		last = base
	}
	return n
}

func newest(t *testing.T, fs disk.FS, dir string) string {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	last := ""
	for _, n := range names {
		if strings.HasSuffix(n, ".log") {
			last = max(last, n)
		}
	}
	return last
}

// The metric of the check counts what it has read, every byte of a round once, and no more
// in a second than may be read: operators see by it how long a round takes.
func TestWhatIsCheckedIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate = 64 << 10
		limits := testLimits()
		limits.SegmentBytes, limits.TrimEvery, limits.TailBytes = 64<<10, 10_000*time.Hour, -1
		limits.ScrubRate, limits.ScrubFirst, limits.ScrubEvery = rate, time.Minute, 10*time.Hour
		fs, reader := disk.NewMem(), sdkmetric.NewManualReader()
		s := begin(&station{t: t, fs: fs, node: "rz02-a-1", topo: sample(t), limits: limits, meter: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test")})
		for i := range 300 {
			m := s.message("orders", fmt.Sprint(i))
			m.Body = make([]byte, 1<<10)
			s.publish(m)
		}
		all := sealedBytes(t, fs, path.Join(s.dir, "log"))
		if all < 4*rate {
			t.Fatalf("%d bytes are sealed: the test shows nothing", all)
		}
		time.Sleep(time.Minute - time.Second)
		if n := counted(t, reader, "mqrouter.log.scrubbed"); n != 0 {
			t.Errorf("%d bytes are checked before the first round", n)
		}
		for second := range int64(3) {
			time.Sleep(time.Second)
			if n := counted(t, reader, "mqrouter.log.scrubbed"); n > (second+1)*rate+scrubChunk {
				t.Errorf("%d bytes are checked in %d s, at %d a second", n, second, rate)
			}
		}
		time.Sleep(time.Minute)
		if n := counted(t, reader, "mqrouter.log.scrubbed"); n != all {
			t.Errorf("a round has checked %d bytes of %d", n, all)
		}
		time.Sleep(10 * time.Hour)
		if n := counted(t, reader, "mqrouter.log.scrubbed"); n != 2*all {
			t.Errorf("two rounds have checked %d bytes, twice %d", n, all)
		}
	})
}

// A segment that was made anew is counted, and one that could not be is not.
func TestWhatIsMadeAnewIsCounted(t *testing.T) {
	limits := testLimits()
	limits.SegmentBytes, limits.ScrubRate, limits.TailBytes = 64<<10, -1, -1
	topo, db, reader := sample(t), disk.NewMem(), sdkmetric.NewManualReader()
	a := openMember(t, disk.NewMem(), topo, limits)
	a.promote(1)
	l := newLink(a)
	a.answers()
	a.publishN("orders", "before", 3)
	l.close()
	copyStore(t, a, db)
	b := openMember(t, db, topo, limits)
	b.Close()
	b.meter = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test")
	b.start()
	l = newLink(a, b)
	for i := range 300 {
		m := a.message("orders", fmt.Sprint(i))
		m.Body = make([]byte, 1<<10)
		a.publish(m)
	}
	l.close()
	dir := path.Join(b.dir, "log")
	rot(t, db, path.Join(dir, sealed(t, db, dir)[1]), 30<<10)
	for done := false; !done; {
		var err error
		if _, _, done, err = b.scrub.Step(t.Context(), 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	wounds := b.Wounds()
	if len(wounds) != 1 {
		t.Fatalf("found %+v", wounds)
	}
	if err := b.Mend(t.Context(), wounds[0], func(context.Context, record.Position) (ship.Stretch, error) { return ship.Stretch{}, ship.ErrRefused }); err == nil {
		t.Error("it is made of nothing")
	}
	if n := counted(t, reader, "mqrouter.log.mended"); n != 0 || len(b.Wounds()) != 1 {
		t.Errorf("%d are counted without a source", n)
	}
	if err := b.Mend(t.Context(), wounds[0], func(ctx context.Context, p record.Position) (ship.Stretch, error) {
		return a.Log().ReadRaw(ctx, p, 1<<20, nil)
	}); err != nil {
		t.Fatal(err)
	}
	if n := counted(t, reader, "mqrouter.log.mended"); n != 1 || len(b.Wounds()) != 0 {
		t.Errorf("%d are counted, %d wounds are left", n, len(b.Wounds()))
	}
}
