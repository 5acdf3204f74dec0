package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"

	"github.com/mqrouter/mqrouter/zone"
)

// EnvPrefix starts the name of every environment variable that is read: the
// key data-dir is MQROUTER_DATA_DIR.
const EnvPrefix = "MQROUTER"

// Node is the configuration of one node. Addresses to advertise come from the
// topology, under the node's name; here is only what differs per machine.
type Node struct {
	Name     string `mapstructure:"name"`     // the node's name in the topology
	Topology string `mapstructure:"topology"` // path of the topology file
	DataDir  string `mapstructure:"data-dir"` // brokers: where the log lives; coordinators: where the store does
	PKI      string `mapstructure:"pki"`      // folder with ca.pem, NAME.pem, NAME-key.pem
	KeyFile  string `mapstructure:"gossip-key-file"`
	// Bind replaces the host of every address that the node listens on, for
	// machines whose advertised address is not local. Empty: listen on the
	// advertised address.
	Bind      string        `mapstructure:"bind"`
	Plaintext bool          `mapstructure:"plaintext"`    // brokers: accept RocketMQ clients without TLS
	ACL       string        `mapstructure:"acl"`          // brokers: path of the access file; empty: everybody may do everything
	Admin     string        `mapstructure:"admin-listen"` // overrides the topology's admin address
	AdminTLS  bool          `mapstructure:"admin-tls"`    // mutual TLS on the admin address
	Grace     time.Duration `mapstructure:"grace"`        // how long a stop may take to drain

	LogLevel  string `mapstructure:"log-level"`  // debug, info, warn, error
	LogFormat string `mapstructure:"log-format"` // text or json

	// SegmentSize is the size of a log segment, by which the log is trimmed:
	// brokers only, at least a segment is preallocated ahead. Empty: 64MiB.
	SegmentSize string `mapstructure:"segment-size"`

	// ScrubRate is how much of the sealed log is checked in a second, in the background:
	// brokers only. Empty: 8MiB.
	ScrubRate string `mapstructure:"scrub-rate"`

	Limits Limits `mapstructure:",squash"` // brokers only

	Link Link `mapstructure:",squash"` // routers only

	Trace Trace `mapstructure:",squash"`

	// LeaveGroup: of a broker whose group has one node now and had several: the last
	// epoch of its log. 0 = it never had, or has left already.
	LeaveGroup uint64 `mapstructure:"leave-group"`

	Consul Consul `mapstructure:",squash"` // brokers in a city whose coordinator is Consul

	// Cache readers only.
	Group         string `mapstructure:"group"`          // consumer group of the subscription
	Redis         string `mapstructure:"redis"`          // host:port, or a comma-separated list of a cluster; empty: in-process cache
	RedisPassword string `mapstructure:"redis-password"` // empty: none
	RedisPrefix   string `mapstructure:"redis-prefix"`   // namespace of the keys
}

// Flags declares the flags of a node on fs. Which keys a role uses is said in
// its own help text.
func Flags(fs *pflag.FlagSet, role string) {
	fs.String("config", "", "configuration file (YAML); every key is the name of a flag")
	fs.String("name", "", "name of this node in the topology")
	fs.String("topology", "", "topology file")
	fs.String("pki", "", "folder with ca.pem and this node's NAME.pem and NAME-key.pem")
	fs.String("gossip-key-file", "", "file with the gossip keys, base64, the one in use first; empty: gossip.key in the folder of --pki")
	fs.String("bind", "", "listen on this host instead of the advertised ones, for example 0.0.0.0")
	fs.String("admin-listen", "", "admin address to listen on; default: the one in the topology")
	fs.Bool("admin-tls", false, "mutual TLS on the admin address; needed for one that is not loopback")
	fs.Duration("grace", 15*time.Second, "how long a stop may take to drain")
	fs.String("log-level", "info", "debug, info, warn or error")
	fs.String("log-format", "text", "text or json")
	TraceFlags(fs)
	switch role {
	case "broker":
		fs.String("data-dir", "", "folder of the commit log, its indexes and snapshots")
		fs.String("segment-size", "64MiB", "size of a log segment, 16MiB to 1GiB: the log takes and gives back disk space by whole ones")
		fs.String("scrub-rate", "8MiB", "how much of the older log is read and checked in a second, in the background; off: nothing is, and nothing is healed from another node")
		fs.String("acl", "", "file that says which RocketMQ clients may do what, re-read when it changes; empty: all may do everything")
		limitFlags(fs)
		fs.Uint64("leave-group", 0, "last epoch of this broker's log, to start it as its group's only node when the group had several: the refusal to start says which one")
		consulFlags(fs)
		fs.Bool("plaintext", true, "accept RocketMQ clients without TLS on the client port, beside those with TLS")
	case "router":
		linkFlags(fs)
	case "coordinator":
		fs.String("data-dir", "", "folder of the voter's store")
	case "cachesync":
		fs.String("group", "", "consumer group (cache: true) whose subscription this cache follows")
		fs.String("redis", "", "Redis to keep fresh: host:port, comma-separated for a cluster; empty: an in-process cache")
		fs.String("redis-password", "", "password of the Redis (better in MQROUTER_REDIS_PASSWORD)")
		fs.String("redis-prefix", "", "prefix of every key in the Redis; in a cluster with a hash tag, such as {member}:")
	}
}

// Load reads the configuration of a node. The flags must have been declared
// with Flags and parsed.
func Load(fs *pflag.FlagSet) (Node, error) {
	v := viper.New()
	v.SetEnvPrefix(EnvPrefix)
	v.SetEnvKeyReplacer(strings.NewReplacer("-", "_"))
	v.AutomaticEnv()
	if err := v.BindPFlags(fs); err != nil {
		return Node{}, fmt.Errorf("config: %w", err)
	}
	if path := v.GetString("config"); path != "" {
		v.SetConfigFile(path)
		v.SetConfigType("yaml")
		if err := v.ReadInConfig(); err != nil {
			return Node{}, fmt.Errorf("config: %s: %w", path, err)
		}
		if err := unknownKeys(path, fs); err != nil {
			return Node{}, err
		}
	}
	var n Node
	if err := v.Unmarshal(&n, func(c *mapstructure.DecoderConfig) {
		c.DecodeHook = mapstructure.StringToTimeDurationHookFunc()
	}); err != nil {
		return Node{}, fmt.Errorf("config: %w", err)
	}
	return n, nil
}

// unknownKeys refuses keys of the file that are no flag of this command.
func unknownKeys(path string, fs *pflag.FlagSet) error {
	file := viper.New()
	file.SetConfigFile(path)
	file.SetConfigType("yaml")
	if err := file.ReadInConfig(); err != nil {
		return fmt.Errorf("config: %s: %w", path, err)
	}
	var errs []error
	for _, key := range file.AllKeys() {
		if key == "config" || fs.Lookup(key) == nil {
			errs = append(errs, fmt.Errorf("config: %s: unknown key %q; the keys are the names of this command's flags (see --help)", path, key))
		}
	}
	return errors.Join(errs...)
}

// Validate reports every fault of a node's configuration; role is broker,
// router, cachesync or coordinator.
func (n Node) Validate(role string) error {
	var errs []error
	need := func(value, key, what string) {
		if value == "" {
			errs = append(errs, fmt.Errorf("config: %s is not set: give --%s, %s or the key in the file: %s",
				key, key, variable(key), what))
		}
	}
	need(n.Name, "name", "the node's name in the topology")
	need(n.Topology, "topology", "the path of the topology file")
	need(n.PKI, "pki", "a folder with certificates (mqrouter pki issue makes one)")
	switch role {
	case "broker":
		need(n.DataDir, "data-dir", "the folder of the commit log")
		if _, err := n.SegmentBytes(); err != nil {
			errs = append(errs, err)
		}
		if _, err := n.ScrubBytes(); err != nil {
			errs = append(errs, err)
		}
		errs = append(errs, n.Limits.validate(), n.Consul.validate())
	case "router":
		errs = append(errs, n.Link.validate())
	case "coordinator":
		need(n.DataDir, "data-dir", "the folder of the voter's store")
	case "cachesync":
		need(n.Group, "group", "the consumer group with cache: true in the topology")
	}
	if _, err := ParseLevel(n.LogLevel); err != nil {
		errs = append(errs, err)
	}
	if n.LogFormat != "text" && n.LogFormat != "json" {
		errs = append(errs, fmt.Errorf("config: log-format %q: write text or json", n.LogFormat))
	}
	if err := n.Trace.Settings().Validate(); err != nil {
		errs = append(errs, err)
	}
	if n.Grace < 0 || n.Grace > 10*time.Minute {
		errs = append(errs, fmt.Errorf("config: grace %v: write a duration from 0s to 10m", n.Grace))
	}
	if n.Admin != "" {
		if _, _, err := net.SplitHostPort(n.Admin); err != nil {
			errs = append(errs, fmt.Errorf("config: admin-listen %q: write host:port", n.Admin))
		}
	}
	return errors.Join(errs...)
}

// Bounds of a log segment, in bytes: several of the largest messages have to
// fit, and one is preallocated at the start.
const (
	minSegment = 16 << 20
	maxSegment = 1 << 30
)

// SegmentBytes returns the size of a log segment in bytes; 0 is the log's default.
func (n Node) SegmentBytes() (int64, error) {
	if n.SegmentSize == "" {
		return 0, nil
	}
	size, err := zone.ParseSize(n.SegmentSize)
	if err == nil && (size < minSegment || size > maxSegment) {
		err = errors.New("it is out of bounds")
	}
	if err != nil {
		return 0, fmt.Errorf("config: segment-size %q: %w; write a size from 16MiB to 1GiB", n.SegmentSize, err)
	}
	return size, nil
}

// ScrubBytes returns ScrubRate in bytes a second: 0 for the default, -1 for none.
func (n Node) ScrubBytes() (int64, error) {
	switch n.ScrubRate {
	case "":
		return 0, nil
	case "off":
		return -1, nil
	}
	rate, err := zone.ParseSize(n.ScrubRate)
	if err == nil && (rate < 64<<10 || rate > 1<<30) {
		err = errors.New("it is out of bounds")
	}
	if err != nil {
		return 0, fmt.Errorf("config: scrub-rate %q: %w; write a size from 64KiB to 1GiB, or off", n.ScrubRate, err)
	}
	return rate, nil
}

// Listen returns the address to listen on for an advertised one: the same, or
// with the host of Bind.
func (n Node) Listen(advertised string) string {
	if n.Bind == "" || advertised == "" {
		return advertised
	}
	_, port, err := net.SplitHostPort(advertised)
	if err != nil {
		return advertised
	}
	return net.JoinHostPort(n.Bind, port)
}

// ParseLevel turns the name of a log level into a level.
func ParseLevel(name string) (slog.Level, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(name)); err != nil {
		return 0, fmt.Errorf("config: log-level %q: write debug, info, warn or error", name)
	}
	return l, nil
}
