package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

// recoveryResult is how long a broker with retained messages takes to open.
type recoveryResult struct {
	Messages int           `json:"messages"`
	Size     int           `json:"body_bytes"`
	Fill     time.Duration `json:"fill"`
	Close    time.Duration `json:"close"`
	Clean    time.Duration `json:"open_after_close"`
	Crashed  time.Duration `json:"open_after_crash"`
}

func newBenchRecovery(e *env) *cobra.Command {
	var (
		dir            string
		messages, size int
	)
	c := &cobra.Command{
		Use:   "recovery",
		Short: "Measure opening a broker that retains many messages",
		Long: `Fill a broker of the sample topology, in a folder that is removed afterwards,
and measure opening it after a clean close, and after more messages and no close.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if messages < 1 || size < 1 {
				return usageError{fmt.Errorf("messages and size must be above zero")}
			}
			r, err := measureRecovery(c.Context(), dir, messages, size)
			if err != nil {
				return err
			}
			return e.show(r, func(w io.Writer) {
				fmt.Fprintf(w, "%d messages of %d bytes: filled in %v, closed in %v, opened in %v after a close and in %v after a crash\n",
					r.Messages, r.Size, r.Fill.Round(time.Millisecond), r.Close.Round(time.Millisecond), r.Clean.Round(time.Millisecond), r.Crashed.Round(time.Millisecond))
			})
		},
	}
	c.Flags().StringVar(&dir, "dir", os.TempDir(), "folder on the disk to measure")
	c.Flags().IntVar(&messages, "messages", 10_000_000, "retained messages")
	c.Flags().IntVar(&size, "size", 200, "bytes of a body")
	return c
}

func measureRecovery(ctx context.Context, dir string, messages, size int) (recoveryResult, error) {
	r := recoveryResult{Messages: messages, Size: size}
	t, err := zone.Parse(sample.YAML, "sample")
	if err != nil {
		return r, err
	}
	tmp, err := os.MkdirTemp(dir, "mqrouter-recovery-")
	if err != nil {
		return r, fmt.Errorf("bench: %w", err)
	}
	defer os.RemoveAll(tmp) //nolint:errcheck // a leftover in a temporary folder
	self := t.Zones()[0].Groups[0].Nodes[0]
	open := func(dir string) (*broker.Broker, time.Duration, error) {
		begin := time.Now()
		b, err := broker.Open(ctx, broker.Options{FS: disk.OS{}, Dir: dir, Node: self, Topology: t, Logger: slog.New(slog.DiscardHandler)})
		return b, time.Since(begin), err
	}
	b, _, err := open(tmp)
	if err != nil {
		return r, err
	}
	begin := time.Now()
	if err := fill(ctx, b, t, messages, size); err != nil {
		return r, err
	}
	r.Fill = time.Since(begin)
	begin = time.Now()
	if err := b.Close(); err != nil {
		return r, err
	}
	r.Close = time.Since(begin)
	if b, r.Clean, err = open(tmp); err != nil {
		return r, err
	}
	// A crash leaves what is on the disk while the broker runs: a copy of it.
	if err := fill(ctx, b, t, 100_000, size); err != nil {
		return r, err
	}
	crashed := tmp + "-crashed"
	defer os.RemoveAll(crashed) //nolint:errcheck // a leftover in a temporary folder
	if err := likeness(crashed, tmp); err != nil {
		return r, fmt.Errorf("bench: %w", err)
	}
	if err := b.Close(); err != nil {
		return r, err
	}
	if b, r.Crashed, err = open(crashed); err != nil {
		return r, err
	}
	return r, b.Close()
}

// likeness makes dst a copy of a broker's folder. The segments of the log but the
// newest are full and will not change: they are linked where that is possible.
func likeness(dst, src string) error {
	return filepath.WalkDir(src, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src, path)
		if err != nil {
			return err
		}
		to := filepath.Join(dst, rel)
		if d.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		if full, err := followed(path); err == nil && full && os.Link(path, to) == nil {
			return nil
		}
		return copyFile(to, path)
	})
}

// followed reports whether path is a segment of a log with one behind it.
func followed(path string) (bool, error) {
	segments, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*.log"))
	return len(segments) > 0 && filepath.Ext(path) == ".log" && path != slices.Max(segments), err
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

func fill(ctx context.Context, b *broker.Broker, t *zone.Topology, messages, size int) error {
	const batch = 1000
	body := newBodies(load{Size: size, Body: "random"}, 0).next(nil)
	msgs := make([]broker.Message, batch)
	out := make([]broker.PublishResult, batch)
	for done := 0; done < messages; done += batch {
		n := min(batch, messages-done)
		for i := range n {
			msgs[i] = broker.Message{Topic: t.FindTopic("orders"), ID: fmt.Sprintf("01%032X", done+i), Body: body, Born: time.Now(), Queue: broker.AnyQueue}
		}
		if err := b.Publish(ctx, msgs[:n], out[:n]); err != nil {
			return err
		}
		for i := range n {
			if out[i].Err != nil {
				return out[i].Err
			}
		}
	}
	return nil
}
