package gossip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// defaultLeave lets the farewell go out as often as memberlist repeats it in
	// a small pool: four times, a gossip interval apart.
	defaultLeave = 2 * time.Second
	// seedsPerRound bounds the seeds tried in one round: push and pull with a
	// few brings the whole state, and a city with hundreds of dead seeds must
	// not be dialled all at once.
	seedsPerRound = 3
	// wakeUpdate is how long UpdateNode may wait for its broadcast: not at
	// all, it goes out with the next gossip.
	wakeUpdate = time.Nanosecond
)

// Pool is the membership of one node in one pool. It is safe for concurrent
// use.
type Pool struct {
	ml     *memberlist.Memberlist
	keys   *memberlist.Keyring
	fence  *fence
	dir    *directory
	stats  *counters
	seeds  func() []string
	timing timing
	leave  time.Duration
	rng    *rand.Rand // only the join loop
	logger *slog.Logger
	addr   netip.AddrPort
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex // guards meta and closed; memberlist is called under it (SetMeta), which calls back into the directory only
	meta   Meta
	closed bool
}

// Open starts a pool: it listens, and joins the seeds in the background for
// ever. It does not wait for any of them.
func Open(cfg Config) (*Pool, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Meta.Start == 0 {
		cfg.Meta.Start = uint64(time.Now().UnixNano())
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Rand == nil {
		cfg.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())) //nolint:gosec // jitter, not secrecy
	}
	if cfg.LeaveTimeout == 0 {
		cfg.LeaveTimeout = defaultLeave
	}
	p := &Pool{
		stats: &counters{}, seeds: cfg.Seeds, timing: cfg.Preset.timing(), leave: cfg.LeaveTimeout,
		rng: cfg.Rand, logger: cfg.Logger.With("pool", cfg.Pool), meta: cfg.Meta,
	}
	if err := p.start(&cfg); err != nil {
		return nil, fmt.Errorf("gossip: open pool %s: %w", cfg.Pool, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.wg.Go(func() { p.joinLoop(ctx) })
	return p, nil
}

func (p *Pool) start(cfg *Config) error {
	meta, err := cfg.Meta.Encode(nil)
	if err != nil {
		return err
	}
	full := joinName(cfg.Name, cfg.Meta.Start)
	p.dir = &directory{
		self: full, node: cfg.Name, stats: p.stats,
		changed: make(chan struct{}, 1), members: make(map[string]Member),
	}
	p.dir.meta.Store(&meta)
	admit, err := newAdmission(cfg.Pool, append([][]byte{cfg.Key}, cfg.OldKeys...))
	if err != nil {
		return err
	}
	keys, err := memberlist.NewKeyring(cfg.OldKeys, cfg.Key)
	if err != nil {
		return err
	}
	inner := cfg.Transport
	if inner == nil {
		bind, err := resolveOwn(cfg.Bind)
		if err != nil {
			return err
		}
		if inner, err = listen(bind, p.stats); err != nil {
			return err
		}
	}
	p.keys, p.fence = keys, newFence(inner, admit, p.stats)

	mc := cfg.Preset.memberlistConfig()
	mc.Name, mc.Label = full, cfg.Pool
	mc.Keyring, mc.Transport = keys, p.fence
	mc.Delegate, mc.Events, mc.Alive = p.dir, p.dir, p.dir
	mc.Logger = newStdLogger(p.logger, p.stats)
	mc.AdvertiseAddr, mc.AdvertisePort = "", 0
	if cfg.Advertise != "" {
		a, err := resolveOwn(cfg.Advertise)
		if err != nil {
			return errors.Join(err, p.fence.Shutdown())
		}
		mc.AdvertiseAddr, mc.AdvertisePort = a.Addr().String(), int(a.Port())
	}
	p.ml, err = memberlist.Create(mc)
	if err != nil {
		return errors.Join(err, p.fence.Shutdown())
	}
	for _, m := range p.dir.list() {
		if m.Self {
			p.addr = m.Addr
		}
	}
	return nil
}

// Addr is the address told to the others.
func (p *Pool) Addr() netip.AddrPort { return p.addr }

// Members returns the living members, this node included, by name. Of several
// living starts of one node only the newest is returned. A member may be dead
// for some seconds before the pool sees it.
func (p *Pool) Members() []Member { return p.dir.list() }

// Changes receives a value after members came, went or changed; several
// changes may come as one. It has one reader and is never closed.
func (p *Pool) Changes() <-chan struct{} { return p.dir.changed }

// Stats returns what was refused since Open.
func (p *Pool) Stats() Stats { return p.stats.stats() }

// SetMeta changes what the node tells about itself; it reaches the others with
// the next gossip. Start cannot be changed. It fails with ErrMetaTooLarge,
// leaving everything as it was, and with ErrClosed. change must not call back
// into the pool.
func (p *Pool) SetMeta(change func(*Meta)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	m := p.meta
	change(&m)
	m.Start = p.meta.Start
	if m == p.meta {
		return nil
	}
	b, err := m.Encode(nil)
	if err != nil {
		return err
	}
	p.meta = m
	p.dir.meta.Store(&b)
	_ = p.ml.UpdateNode(wakeUpdate) // its only error is that it did not wait
	return nil
}

// Close says farewell, so that the others see the node leave at once, and
// shuts the pool down. It waits for its goroutines, at most LeaveTimeout plus
// a moment. A second Close returns nil.
func (p *Pool) Close() error { return p.shutdown(true) }

// Abort shuts the pool down without a farewell, as a crash would: the others
// notice by probing.
func (p *Pool) Abort() error { return p.shutdown(false) }

func (p *Pool) shutdown(leave bool) error {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	p.mu.Unlock()
	if !first {
		return nil
	}
	p.cancel()
	p.fence.stopStreams()
	p.wg.Wait()
	if leave {
		if err := p.ml.Leave(p.leave); err != nil {
			// Not a failure of Close: the others notice by probing.
			p.logger.Debug("gossip farewell not fully sent", "err", err)
		}
	}
	p.dir.deaf.Store(true)
	return p.ml.Shutdown()
}

// joinLoop tries the seeds that are not alive, for ever: after a partition
// that lasted longer than memberlist remembers the dead, only a seed brings the
// halves together again.
func (p *Pool) joinLoop(ctx context.Context) {
	failing := false
	for ctx.Err() == nil {
		missing := p.missingSeeds(ctx)
		p.rng.Shuffle(len(missing), func(i, j int) { missing[i], missing[j] = missing[j], missing[i] })
		failed := 0
		for i, seed := range missing {
			if i == seedsPerRound || ctx.Err() != nil {
				break
			}
			if _, err := p.ml.Join([]string{seed.String()}); err != nil && ctx.Err() == nil {
				failed++
				p.stats.joinFailures.Add(1)
				if !failing {
					p.logger.Info("gossip seed not reached, trying for ever", "peer", seed.String(), "err", strings.Join(strings.Fields(err.Error()), " ")) // its text has several lines
				}
			}
		}
		failing = failed > 0
		pause := p.timing.company
		if len(p.dir.addresses()) <= 1 {
			pause = p.timing.alone
		}
		// Half to one and a half times the mean, so that nodes that lost each
		// other together do not come back together.
		t := time.NewTimer(pause/2 + time.Duration(p.rng.Int64N(int64(pause))))
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
}

// missingSeeds resolves the seeds and returns those that are not living
// members.
func (p *Pool) missingSeeds(ctx context.Context) []netip.AddrPort {
	if p.seeds == nil {
		return nil
	}
	alive := p.dir.addresses()
	var missing []netip.AddrPort
	for _, seed := range p.seeds() {
		addrs, err := resolve(ctx, seed, p.timing.stream)
		if err != nil {
			p.stats.joinFailures.Add(1)
			p.logger.Debug("gossip seed not resolved", "peer", seed, "err", err)
			continue
		}
		if slices.ContainsFunc(addrs, func(a netip.AddrPort) bool { return alive[a] }) {
			continue
		}
		missing = append(missing, addrs...)
	}
	return missing
}
