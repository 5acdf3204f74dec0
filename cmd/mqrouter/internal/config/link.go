package config

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/mqrouter/mqrouter/router/link"
	"github.com/mqrouter/mqrouter/router/link/fec"
	"github.com/mqrouter/mqrouter/zone"
)

// Link says how a router uses the paths to other cities. The zero value of a field
// takes the default of package link.
type Link struct {
	// Connections is how many QUIC connections the sessions of a bulk link may have
	// at a time.
	Connections int `mapstructure:"link-connections"`
	// Correction is "auto": losses are repaired under QUIC as far as there are any; or
	// "off". Empty: auto.
	Correction string `mapstructure:"link-correction"`
	// Extra is the most that parity adds to each byte of a node with much to send, in
	// percent. 0: DefaultLinkExtra.
	Extra int `mapstructure:"link-correction-extra"`
	// Rate is the most that is sent to one router in a second, a size. Empty or "0":
	// any.
	Rate string `mapstructure:"link-rate-limit"`
	// Windows is the memory for windows of bulk sessions beyond one each, a size. "0":
	// none. Empty: link.DefaultWindowMemory.
	Windows string `mapstructure:"link-window-memory"`
}

// DefaultLinkExtra and the bounds of Link.Extra, in percent. Above the most a path
// is better left than corrected.
const (
	DefaultLinkExtra = 25
	maxLinkExtra     = 100
)

// Bounds of a link's rate in bytes a second: below the least one of the largest
// frames would take longer than a peer waits for its rest.
const (
	minLinkRate = 256 << 10
	maxLinkRate = 100 << 30
)

// Bounds of a router's memory for windows in bytes: the least is one that a few
// peers get windows from.
const (
	minLinkWindows = 64 << 20
	maxLinkWindows = 64 << 30
)

// linkFlags declares the flags of Link on fs.
func linkFlags(fs *pflag.FlagSet) {
	fs.Int("link-connections", link.DefaultParallel, "QUIC connections that the bulk sessions to one router of another city may have at a time, 1 to 16; there are as many as pay, which needs both ends")
	fs.String("link-correction", "auto", "auto: repair losses on the way to other cities with parity, as much as the measured loss needs, where both ends do; or off")
	fs.Int("link-correction-extra", DefaultLinkExtra, "most that parity may add to the bytes of a router with much to send, in percent, 1 to 100; one with less than 3 MiB a second to send may add up to 120, and less and less up to 24 MiB a second")
	fs.String("link-window-memory", "512MiB", "most memory for what bulk sessions of all other routers may have on their way here beyond 2 MiB each, from 64MiB on; half of it is in use at a time; 0: none")
	fs.String("link-rate-limit", "0", "most bytes a second that are sent to one router of another city, headers, repeats and parity included, such as 12MiB, from 256KiB on; 0: any")
}

// validate reports every fault.
func (l Link) validate() error {
	var errs []error
	if l.Connections < 0 || l.Connections > link.MaxParallel {
		errs = append(errs, fmt.Errorf("config: link-connections %d: write a number from 1 to %d; 0 stands for %d", l.Connections, link.MaxParallel, link.DefaultParallel))
	}
	switch l.Correction {
	case "", "off", "auto":
	default:
		errs = append(errs, fmt.Errorf("config: link-correction %q: write auto or off", l.Correction))
	}
	if l.Extra < 0 || l.Extra > maxLinkExtra {
		errs = append(errs, fmt.Errorf("config: link-correction-extra %d: write percent from 1 to %d; 0 stands for %d", l.Extra, maxLinkExtra, DefaultLinkExtra))
	}
	if _, err := l.RateBytes(); err != nil {
		errs = append(errs, err)
	}
	if _, err := l.WindowBytes(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// WindowBytes returns Windows as link.Limits.WindowMemory takes it: below 0 = none.
func (l Link) WindowBytes() (int64, error) {
	switch l.Windows {
	case "":
		return 0, nil
	case "0":
		return -1, nil
	}
	n, err := zone.ParseSize(l.Windows)
	if err == nil && (n < minLinkWindows || n > maxLinkWindows) {
		err = errors.New("it is out of bounds")
	}
	if err != nil {
		return 0, fmt.Errorf("config: link-window-memory %q: %w; write a size from 64MiB to 64GiB, or 0 for none", l.Windows, err)
	}
	return n, nil
}

// RateBytes returns Rate in bytes a second; 0 = any.
func (l Link) RateBytes() (int64, error) {
	if l.Rate == "" || l.Rate == "0" {
		return 0, nil
	}
	rate, err := zone.ParseSize(l.Rate)
	if err == nil && (rate < minLinkRate || rate > maxLinkRate) {
		err = errors.New("it is out of bounds")
	}
	if err != nil {
		return 0, fmt.Errorf("config: link-rate-limit %q: %w; write a size from 256KiB to 100GiB, or 0 for none", l.Rate, err)
	}
	return rate, nil
}

// Correct returns the options of the correction layer; nil = off.
func (l Link) Correct() *fec.Options {
	if l.Correction == "off" {
		return nil
	}
	extra := l.Extra
	if extra == 0 {
		extra = DefaultLinkExtra
	}
	return &fec.Options{Extra: float64(extra) / 100}
}
