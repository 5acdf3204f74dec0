package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// rawResult is what a bare loop of write and fdatasync reaches.
type rawResult struct {
	Batch     int           `json:"records_per_sync"`
	Size      int           `json:"record_bytes"`
	Records   int           `json:"records"`
	PerSecond float64       `json:"per_second"`
	Syncs     float64       `json:"syncs_per_second"`
	Mean      time.Duration `json:"mean_sync"`
}

func newBenchRaw(e *env) *cobra.Command {
	var (
		dir      string
		batches  []int
		size     int
		duration time.Duration
	)
	c := &cobra.Command{
		Use:   "raw",
		Short: "Measure the disk alone: one write and one fdatasync for so many records",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			var all []rawResult
			for _, n := range batches {
				if n < 1 || size < 1 || n*size > rawFileBytes || duration <= 0 {
					return usageError{fmt.Errorf("batch, size and duration must be above zero, a write at most %d bytes", rawFileBytes)}
				}
				r, err := rawLoop(dir, n, size, duration)
				if err != nil {
					return err
				}
				all = append(all, r)
			}
			return e.show(all, func(w io.Writer) {
				t := newTable("RECORDS PER SYNC", "BYTES", "RECORDS/S", "SYNCS/S", "MEAN SYNC")
				for _, r := range all {
					t.row(r.Batch, r.Size, fmt.Sprintf("%.0f", r.PerSecond), fmt.Sprintf("%.0f", r.Syncs), age(r.Mean))
				}
				t.print(w)
			})
		},
	}
	c.Flags().StringVar(&dir, "dir", os.TempDir(), "folder on the disk to measure")
	c.Flags().IntSliceVar(&batches, "batch", []int{1, 16, 256}, "records for one sync; one run for each number")
	c.Flags().IntVar(&size, "size", 1024, "bytes of a record")
	c.Flags().DurationVar(&duration, "duration", 5*time.Second, "length of a run")
	return c
}

// rawFileBytes is the size of the preallocated file. When it is full it is
// allocated anew, off the clock: a log writes each block once, and that costs the
// file system more than writing again where data was.
const rawFileBytes = 256 << 20

func freshFile(f disk.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	if err := f.Preallocate(rawFileBytes); err != nil {
		return err
	}
	return f.Sync()
}

func rawLoop(dir string, batch, size int, duration time.Duration) (rawResult, error) {
	tmp, err := os.MkdirTemp(dir, "mqrouter-raw-")
	if err != nil {
		return rawResult{}, fmt.Errorf("bench: %w", err)
	}
	defer os.RemoveAll(tmp) //nolint:errcheck // a leftover in a temporary folder
	f, err := disk.OS{}.Create(tmp + "/raw")
	if err != nil {
		return rawResult{}, fmt.Errorf("bench: %w", err)
	}
	defer f.Close()
	buf := make([]byte, batch*size)
	r := rawResult{Batch: batch, Size: size}
	var took time.Duration
	syncs := 0
	for took < duration {
		if err := freshFile(f); err != nil {
			return r, fmt.Errorf("bench: %w", err)
		}
		begin := time.Now()
		for off := int64(0); off+int64(len(buf)) <= rawFileBytes && took+time.Since(begin) < duration; off += int64(len(buf)) {
			if _, err := f.WriteAt(buf, off); err != nil {
				return r, fmt.Errorf("bench: %w", err)
			}
			if err := f.Sync(); err != nil {
				return r, fmt.Errorf("bench: %w", err)
			}
			syncs++
		}
		took += time.Since(begin)
	}
	r.Records = syncs * batch
	r.PerSecond, r.Syncs, r.Mean = float64(r.Records)/took.Seconds(), float64(syncs)/took.Seconds(), took/time.Duration(max(syncs, 1))
	return r, nil
}
