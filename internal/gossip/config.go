package gossip

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/mqrouter/mqrouter/zone"
)

// Preset is a set of timings for a kind of network.
type Preset uint8

// The presets. With three nodes a death is seen after about 4 to 8 s (LAN) and
// 8 to 16 s (WAN); what must be faster watches its own progress.
const (
	LAN Preset = iota // inside a city, round trips below about 50 ms
	WAN               // between cities, round trips up to about 500 ms
)

// CityPool is the label of a city's pool: its brokers and routers.
func CityPool(deployment string, city zone.City) string {
	return deployment + "/city/" + string(city)
}

// WANPool is the label of the pool of all routers of a deployment.
func WANPool(deployment string) string { return deployment + "/wan" }

// Config tells a pool what to be.
type Config struct {
	// Pool is the label; see CityPool and WANPool. Required, at most 255 bytes.
	Pool string
	// Name is the node's stable name. Required, without "~".
	Name zone.Node
	// Bind is the host:port to listen on, UDP and TCP; an empty host means all
	// addresses. Port 0 takes a free one. Required unless Transport is given.
	Bind string
	// Advertise is the host:port told to the others; empty means what is bound.
	// Required when Bind means all addresses. Host names are resolved once, at
	// Open: a node that moves is started again.
	Advertise string
	// Key is the pool's encryption key: 16, 24 or 32 bytes. Required. SetKeys
	// changes it later.
	Key []byte
	// OldKeys are keys that are still accepted while a key is being changed.
	OldKeys [][]byte
	// Seeds returns addresses (host:port) to join through. It is called at
	// every attempt, from one goroutine, and may include the node itself. Nil
	// means none.
	Seeds func() []string
	// Meta is what the node tells about itself at first; see Pool.SetMeta.
	Meta Meta
	// Preset picks the timings; the zero value is LAN.
	Preset Preset
	// LeaveTimeout bounds how long Close waits for its farewell to be sent;
	// 0 means two seconds.
	LeaveTimeout time.Duration
	// Transport replaces the sockets, for simulated networks. The pool shuts
	// it down.
	Transport memberlist.Transport
	// Rand draws the jitter and the choice of seeds; only the pool's own
	// goroutine uses it. Nil takes a seeded one. memberlist's own randomness
	// cannot be passed in.
	Rand *rand.Rand
	// Logger receives what memberlist and the pool have to say; nil discards.
	Logger *slog.Logger
}

// Validate reports every fault of the configuration, joined.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("gossip: "+format, args...)) }
	if c.Pool == "" || len(c.Pool) > memberlist.LabelMaxSize {
		bad("pool label has %d bytes, want 1 to %d", len(c.Pool), memberlist.LabelMaxSize)
	}
	if c.Name == "" || len(c.Name) > maxName {
		bad("node name has %d bytes, want 1 to %d", len(c.Name), maxName)
	}
	if _, _, ok := splitName(string(c.Name) + "~1"); !ok && c.Name != "" {
		bad("node name %q must not contain %q", c.Name, "~")
	}
	for i, k := range append([][]byte{c.Key}, c.OldKeys...) {
		if err := memberlist.ValidateKey(k); err != nil {
			bad("key %d has %d bytes, want 16, 24 or 32", i, len(k))
		}
	}
	if c.Transport == nil {
		host, err := hostOf(c.Bind)
		ip, ipErr := netip.ParseAddr(host)
		switch {
		case err != nil:
			bad("bind address %q is not host:port", c.Bind)
		case (host == "" || (ipErr == nil && ip.IsUnspecified())) && c.Advertise == "":
			bad("bind address %q needs an address to advertise", c.Bind)
		}
	}
	if c.Advertise != "" {
		host, err := hostOf(c.Advertise)
		if err != nil || host == "" {
			bad("advertised address %q is not host:port", c.Advertise)
		}
	}
	if c.Preset > WAN {
		bad("unknown preset %d", c.Preset)
	}
	if _, err := c.Meta.Encode(nil); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// timing holds what the presets differ in.
type timing struct {
	probeInterval, probeTimeout time.Duration
	gossipInterval              time.Duration
	pushPull                    time.Duration
	stream                      time.Duration // deadline of one dial and of one stream
	dead                        time.Duration // how long the dead are still told
	suspicion                   int           // multiplier of probeInterval * max(1, log10(nodes))
	gossipNodes                 int
	alone                       time.Duration // mean pause between seed attempts without any other member
	company                     time.Duration // the same with other members but some seed missing
}

// timing returns the preset's values. They are tighter than memberlist's own
// presets: pools are small (a city's nodes, or all routers), and a restarted
// node should be back within seconds.
func (p Preset) timing() timing {
	if p == WAN {
		return timing{
			probeInterval: 2 * time.Second, probeTimeout: time.Second,
			gossipInterval: 300 * time.Millisecond, pushPull: 30 * time.Second,
			stream: 5 * time.Second, dead: 60 * time.Second,
			suspicion: 3, gossipNodes: 4,
			alone: 2 * time.Second, company: 8 * time.Second,
		}
	}
	return timing{
		probeInterval: time.Second, probeTimeout: 300 * time.Millisecond,
		gossipInterval: 200 * time.Millisecond, pushPull: 15 * time.Second,
		stream: 3 * time.Second, dead: 30 * time.Second,
		suspicion: 3, gossipNodes: 3,
		alone: time.Second, company: 5 * time.Second,
	}
}

// memberlistConfig maps the preset to memberlist's knobs. Every field that
// matters is set, none is left to that library's defaults by accident.
func (p Preset) memberlistConfig() *memberlist.Config {
	t := p.timing()
	mc := memberlist.DefaultLANConfig()
	mc.ProbeInterval, mc.ProbeTimeout = t.probeInterval, t.probeTimeout
	mc.GossipInterval, mc.GossipNodes = t.gossipInterval, t.gossipNodes
	mc.GossipToTheDeadTime = t.dead
	mc.PushPullInterval = t.pushPull
	mc.TCPTimeout = t.stream
	mc.SuspicionMult = t.suspicion
	mc.SuspicionMaxTimeoutMult = 3
	mc.EnableCompression = false // metadata is tiny and mostly incompressible
	mc.RequireNodeNames = false
	mc.GossipVerifyIncoming, mc.GossipVerifyOutgoing = true, true
	return mc
}
