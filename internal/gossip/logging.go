package gossip

import (
	"bytes"
	"context"
	"log" //nolint:depguard // memberlist takes nothing else; this file turns it into slog
	"log/slog"
	"strings"
	"time"

	"github.com/mqrouter/mqrouter/internal/loglimit"
)

// logBurst is how many lines of memberlist above debug level pass in a second;
// the rest is counted and told with the next line that passes. A flood of bad
// packets must not become a flood of log lines.
const logBurst = 20

// logAdapter is the writer behind memberlist's logger: it turns lines like
// "[WARN] memberlist: text" into slog records with constant text.
type logAdapter struct {
	logger *slog.Logger
	stats  *counters
	limit  loglimit.Limit
}

// newStdLogger returns a logger for memberlist that writes to l.
func newStdLogger(l *slog.Logger, stats *counters) *log.Logger {
	return log.New(&logAdapter{logger: l, stats: stats, limit: loglimit.Limit{Lines: logBurst, Window: time.Second}}, "", 0)
}

// Write implements io.Writer. log.Logger calls it once a line.
func (a *logAdapter) Write(line []byte) (int, error) {
	level, text := splitLine(string(bytes.TrimSpace(line)))
	// The one refusal that memberlist alone can see: a stream with the right
	// label that no key opens. TestT1_ForeignKeyIsRefusedAndCounted pins the text.
	if strings.HasPrefix(text, "failed to receive: ") && strings.Contains(text, "decrypt") {
		a.stats.foreignKey.Add(1)
	}
	ctx := context.Background()
	if !a.logger.Enabled(ctx, level) {
		return len(line), nil
	}
	dropped, pass := a.allow(level)
	if !pass {
		return len(line), nil
	}
	a.logger.LogAttrs(ctx, level, "memberlist", slog.String("text", text), slog.Int("suppressed", dropped))
	return len(line), nil
}

func (a *logAdapter) allow(level slog.Level) (suppressed int, pass bool) {
	if level <= slog.LevelDebug {
		return 0, true
	}
	return a.limit.Allow(time.Now())
}

// splitLine takes the level off a line. memberlist's errors are about single
// packets and peers, not about this node's work, so they are warnings here.
func splitLine(line string) (slog.Level, string) {
	level, text := slog.LevelInfo, line
	if tag, rest, ok := strings.Cut(line, " "); ok {
		switch tag {
		case "[DEBUG]":
			level, text = slog.LevelDebug, rest
		case "[INFO]":
			level, text = slog.LevelInfo, rest
		case "[WARN]", "[ERR]":
			level, text = slog.LevelWarn, rest
		}
	}
	return level, strings.TrimPrefix(text, "memberlist: ")
}
