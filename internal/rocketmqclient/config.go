package rocketmqclient

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// Limits of one client. They bound memory and goroutines, whatever a server answers.
const (
	maxTopics      = 1024     // routes kept
	maxEndpoints   = 256      // endpoints connected at one time
	maxConnections = 64       // Config.Connections
	maxQueues      = 65536    // queues read from one route
	maxAnswer      = 8 << 20  // bytes of one response message: a body of 4 MiB and its properties
	maxBatch       = 32       // messages of one receive (protocol: servers cut there too)
	sendBatchLimit = 16 << 20 // body bytes of one SendBatch
)

// Periods of the client's own loop (the official clients' values).
const (
	heartbeatEvery = 10 * time.Second
	routeEvery     = 30 * time.Second
	staleEvery     = time.Second // at most, routes are asked for because an endpoint does not answer
	passOverFor    = time.Second // for which who was Unavailable is passed over
	reopenAfter    = time.Second // pause before a broken Telemetry stream is opened again
)

// Config says how a client reaches the brokers. The zero value of every field but
// Endpoint is useful.
type Config struct {
	// Endpoint is the access point, host:port. Routes that it answers may name others.
	Endpoint string
	// TLS is used for every connection when not nil; nil is plaintext.
	TLS *tls.Config
	// Dial replaces TCP, for simulated networks; nil means TCP. Addresses are not
	// resolved then.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Connections is the number of connections to each endpoint, 0 means 1, at most 64.
	Connections int
	// RequestTimeout bounds every unary call beside the caller's context; 0 means 3 s.
	RequestTimeout time.Duration
	// ClientID identifies this instance; empty means host@pid@random. Two live
	// clients must not share one.
	ClientID string
	// AccessKey and SecretKey sign every request; both empty means an anonymous
	// client.
	AccessKey, SecretKey string
	// Logger gets what happens in the background; nil discards it.
	Logger *slog.Logger
	// Rand is the source of message ids and client ids; nil means crypto/rand.
	Rand io.Reader
}

// Validate reports every fault of the configuration.
func (c *Config) Validate() error {
	var errs []error
	if host, port, err := net.SplitHostPort(c.Endpoint); err != nil || host == "" || port == "" {
		errs = append(errs, fmt.Errorf("%w: endpoint %q is not host:port", ErrBound, c.Endpoint))
	}
	if c.Connections < 0 || c.Connections > maxConnections {
		errs = append(errs, fmt.Errorf("%w: connections must be 0 to %d", ErrBound, maxConnections))
	}
	if (c.AccessKey == "") != (c.SecretKey == "") || strings.ContainsAny(c.AccessKey, "/,= \t\r\n") {
		errs = append(errs, fmt.Errorf("%w: an access key without / , = and blanks, and its secret key, go together", ErrBound))
	}
	if c.RequestTimeout < 0 {
		errs = append(errs, fmt.Errorf("%w: request timeout must not be negative", ErrBound))
	}
	return errors.Join(errs...)
}

// withDefaults fills the zero fields; it fails only when the random source does.
func (c Config) withDefaults() (Config, error) {
	if c.Connections == 0 {
		c.Connections = 1
	}
	if c.RequestTimeout == 0 {
		c.RequestTimeout = 3 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Rand == nil {
		c.Rand = rand.Reader
	}
	if c.ClientID == "" {
		var b [5]byte
		if _, err := io.ReadFull(c.Rand, b[:]); err != nil {
			return c, fmt.Errorf("rocketmqclient: client id: %w", err)
		}
		host, err := os.Hostname()
		if err != nil {
			host = "localhost" // the id stays unique by its random part
		}
		c.ClientID = host + "@" + strconv.Itoa(os.Getpid()) + "@" + fmt.Sprintf("%x", b)
	}
	return c, nil
}
