package admin

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// maxAnswer bounds what a client reads from a node, in bytes.
const maxAnswer = 64 << 20

// Client asks nodes. It is safe for concurrent use.
type Client struct {
	http   *http.Client
	scheme string
}

// NewClient returns a client; cfg nil means plain HTTP.
func NewClient(cfg *tls.Config, timeout time.Duration) *Client {
	c := &Client{scheme: "http", http: &http.Client{Timeout: timeout}}
	if cfg != nil {
		c.scheme = "https"
		c.http.Transport = &http.Transport{TLSClientConfig: cfg}
	}
	return c
}

// AnswerError is a node's answer other than 200.
type AnswerError struct {
	Addr, Path string
	Status     int
	Text       string
}

// Error implements error.
func (e *AnswerError) Error() string {
	return fmt.Sprintf("admin: %s%s answered %d: %s", e.Addr, e.Path, e.Status, e.Text)
}

// Status asks a node for its status.
func (c *Client) Status(ctx context.Context, addr string) (Status, error) {
	return get[Status](ctx, c, addr, "/v1/status")
}

// Topology asks a node for the topology file that it follows.
func (c *Client) Topology(ctx context.Context, addr string) ([]byte, error) {
	return c.raw(ctx, addr, "/v1/topology")
}

// Find asks a node where it has a message id.
func (c *Client) Find(ctx context.Context, addr, id string) ([]Sighting, error) {
	return get[[]Sighting](ctx, c, addr, "/v1/messages/"+segment(id))
}

// CacheGet asks a cachesync node for a cache entry.
func (c *Client) CacheGet(ctx context.Context, addr, key string) (CacheEntry, error) {
	return get[CacheEntry](ctx, c, addr, "/v1/cache/"+segment(key))
}

// segment escapes a text for a path. The dots too: servers take a segment of
// one or two dots for a way through the tree.
func segment(s string) string { return strings.ReplaceAll(url.PathEscape(s), ".", "%2E") }

func get[T any](ctx context.Context, c *Client, addr, path string) (T, error) {
	var v T
	b, err := c.raw(ctx, addr, path)
	if err != nil {
		return v, err
	}
	return decode[T](addr, path, b)
}

func post[T any](ctx context.Context, c *Client, addr, path string, body any) (T, error) {
	var v T
	text, err := json.Marshal(body)
	if err != nil {
		return v, fmt.Errorf("admin: %s%s: %w", addr, path, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.scheme+"://"+addr+path, bytes.NewReader(text))
	if err != nil {
		return v, fmt.Errorf("admin: %s: %w", addr, err)
	}
	req.Header.Set("Content-Type", "application/json")
	b, err := c.do(req, addr, path)
	if err != nil {
		return v, err
	}
	return decode[T](addr, path, b)
}

func decode[T any](addr, path string, b []byte) (T, error) {
	var v T
	if err := json.Unmarshal(b, &v); err != nil {
		return v, fmt.Errorf("admin: %s%s: %w", addr, path, err)
	}
	return v, nil
}

func (c *Client) raw(ctx context.Context, addr, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.scheme+"://"+addr+path, nil)
	if err != nil {
		return nil, fmt.Errorf("admin: %s: %w", addr, err)
	}
	return c.do(req, addr, path)
}

func (c *Client) do(req *http.Request, addr, path string) ([]byte, error) {
	resp, err := c.http.Do(req)
	if errors.Is(err, context.DeadlineExceeded) && req.Context().Err() == nil { // frozen, or unreachable
		return nil, fmt.Errorf("admin: %s said nothing within %v: %w", addr, c.http.Timeout, context.DeadlineExceeded)
	}
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("admin: %s%s: %w", addr, path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, &AnswerError{Addr: addr, Path: path, Status: resp.StatusCode, Text: strings.TrimSpace(string(b[:min(len(b), 500)]))}
	}
	return b, nil
}
