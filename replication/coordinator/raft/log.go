package raft

import (
	"context"
	"io"
	"log" //nolint:depguard // the raft library takes nothing else; this file turns it into slog
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// hlog lets the raft library write to a slog.Logger. Its lines say little to an
// operator, so that each is one level lower than the library has it: what matters is
// told by the Voter itself.
type hlog struct {
	to   *slog.Logger
	name string
	args []any
}

var _ hclog.Logger = (*hlog)(nil)

func slogLevel(l hclog.Level) slog.Level {
	switch l {
	case hclog.Error:
		return slog.LevelWarn
	case hclog.Warn:
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

// Log implements hclog.Logger, and so do the others.
func (h *hlog) Log(l hclog.Level, msg string, args ...any) {
	h.to.Log(context.Background(), slogLevel(l), "raft library", append([]any{"text", msg}, args...)...)
}

func (h *hlog) Trace(string, ...any)          {}
func (h *hlog) Debug(msg string, args ...any) { h.Log(hclog.Debug, msg, args...) }
func (h *hlog) Info(msg string, args ...any)  { h.Log(hclog.Info, msg, args...) }
func (h *hlog) Warn(msg string, args ...any)  { h.Log(hclog.Warn, msg, args...) }
func (h *hlog) Error(msg string, args ...any) { h.Log(hclog.Error, msg, args...) }

func (h *hlog) is(l hclog.Level) bool { return h.to.Enabled(context.Background(), slogLevel(l)) }

func (h *hlog) IsTrace() bool { return false }
func (h *hlog) IsDebug() bool { return h.is(hclog.Debug) }
func (h *hlog) IsInfo() bool  { return h.is(hclog.Info) }
func (h *hlog) IsWarn() bool  { return h.is(hclog.Warn) }
func (h *hlog) IsError() bool { return h.is(hclog.Error) }

func (h *hlog) ImpliedArgs() []any { return h.args }

func (h *hlog) With(args ...any) hclog.Logger {
	return &hlog{to: h.to.With(args...), name: h.name, args: append(append([]any(nil), h.args...), args...)}
}

func (h *hlog) Name() string { return h.name }

func (h *hlog) Named(name string) hclog.Logger {
	return &hlog{to: h.to, name: h.name + name, args: h.args}
}

func (h *hlog) ResetNamed(name string) hclog.Logger { return &hlog{to: h.to, name: name, args: h.args} }

func (h *hlog) SetLevel(hclog.Level) {}

func (h *hlog) GetLevel() hclog.Level { return hclog.Debug }

func (h *hlog) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return log.New(io.Discard, "", 0)
}

func (h *hlog) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return io.Discard }
