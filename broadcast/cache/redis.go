package cache

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/mqrouter/mqrouter/broadcast"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// RedisOptions say which Redis is kept fresh. The zero value of all but Addrs is
// useful.
type RedisOptions struct {
	Addrs    []string      // host:port; several are nodes of one cluster
	Cluster  bool          // a cluster although Addrs has one address
	Username string        // empty: the default user
	Password string        // empty: none
	DB       int           // not in a cluster
	TLS      *tls.Config   // nil: plaintext
	Prefix   string        // before every name; with a hash tag in a cluster
	Timeout  time.Duration // of a request; 0 = 5 s
}

// Redis is a cache in a Redis. See the package comment for its layout. It is
// safe for concurrent use.
type Redis struct {
	client redis.UniversalClient
	prefix string
}

var _ broadcast.Applier = (*Redis)(nil)

// StateError says that the Redis holds something else where a cache's own
// bookkeeping belongs.
type StateError struct {
	Key, Field, Value string
}

// Error implements error.
func (e *StateError) Error() string {
	return fmt.Sprintf("cache: %s of %s in the Redis is %q, which no applier has written", e.Field, e.Key, e.Value)
}

// ErrNoHashTag says that the prefix would spread a cache over the masters of a
// cluster, where no script could keep it together.
var ErrNoHashTag = errors.New(`cache: in a Redis cluster the prefix needs a hash tag, such as "{member}:"`)

// NewRedis returns a cache. It connects when it is used.
func NewRedis(o RedisOptions) (*Redis, error) {
	if len(o.Addrs) == 0 || o.Addrs[0] == "" {
		return nil, errors.New("cache: the address of the Redis is missing")
	}
	cluster := o.Cluster || len(o.Addrs) > 1
	if cluster && !hasHashTag(o.Prefix) {
		return nil, ErrNoHashTag
	}
	if o.Timeout <= 0 {
		o.Timeout = 5 * time.Second
	}
	const none = -1 // the caller tries again, and knows how
	return &Redis{prefix: o.Prefix, client: redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: o.Addrs, IsClusterMode: cluster, Username: o.Username, Password: o.Password, DB: o.DB, TLSConfig: o.TLS,
		DialTimeout: o.Timeout, ReadTimeout: o.Timeout, WriteTimeout: o.Timeout, ContextTimeoutEnabled: true,
		MaxRetries: none, DialerRetries: 1, PoolSize: 8, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})}, nil
}

// hasHashTag reports whether a cluster takes only a part of the prefix to place
// a key.
func hasHashTag(prefix string) bool {
	_, rest, ok := strings.Cut(prefix, "{")
	return ok && strings.IndexByte(rest, '}') > 0
}

// Close ends the connections. A second Close returns nil.
func (r *Redis) Close() error {
	if err := r.client.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
		return err
	}
	return nil
}

func (r *Redis) valueKey(key string) string { return r.prefix + key }
func (r *Redis) metaKey(key string) string  { return r.prefix + broadcast.Reserved + "v:" + key }
func (r *Redis) flushKey() string           { return r.prefix + broadcast.Reserved + "flush" }
func (r *Redis) stateKey(topic zone.Topic) string {
	return r.prefix + broadcast.Reserved + "state:" + string(topic)
}

// Fields of the state.
const (
	fieldGroup       = "group"
	fieldIncarnation = "incarnation"
	fieldOffset      = "offset"
	fieldMark        = "wm|"
)

// Load implements broadcast.Applier.
func (r *Redis) Load(ctx context.Context, topic zone.Topic) (broadcast.Progress, error) {
	key := r.stateKey(topic)
	fields, err := r.client.HGetAll(ctx, key).Result()
	if err != nil {
		return broadcast.Progress{}, fmt.Errorf("cache: %w", err)
	}
	var p broadcast.Progress
	if len(fields) == 0 {
		return p, nil
	}
	if p.Place, err = parsePlace(key, fields[fieldIncarnation], fields[fieldOffset]); err != nil {
		return p, err
	}
	p.Place.Group = zone.Group(fields[fieldGroup])
	for field, value := range fields {
		if name, ok := strings.CutPrefix(field, fieldMark); ok {
			m, err := broadcast.ParseMark(name, value)
			if err != nil {
				return p, err
			}
			p.Marks = append(p.Marks, m)
		}
	}
	broadcast.SortMarks(p.Marks)
	return p, nil
}

// parsePlace parses what the scripts read; both are empty in an empty cache.
func parsePlace(key, incarnation, offset string) (broadcast.Place, error) {
	if incarnation == "" && offset == "" {
		return broadcast.Place{}, nil
	}
	inc, err := strconv.ParseUint(incarnation, 16, 64)
	if err != nil || inc == 0 {
		return broadcast.Place{}, &StateError{key, fieldIncarnation, incarnation}
	}
	off, err := strconv.ParseUint(offset, 10, 64)
	if err != nil {
		return broadcast.Place{}, &StateError{key, fieldOffset, offset}
	}
	return broadcast.Place{Incarnation: record.Incarnation(inc), Offset: off}, nil
}

// placeArgs returns incarnation and offset as the state has them.
func placeArgs(p broadcast.Place) (incarnation, offset string) {
	if p.Empty() {
		return "", ""
	}
	return fmt.Sprintf("%016x", uint64(p.Incarnation)), broadcast.Padded(p.Offset)
}

// Apply implements broadcast.Applier.
func (r *Redis) Apply(ctx context.Context, b *broadcast.Batch) (broadcast.Result, error) {
	if len(b.Changes) == 1 && b.Changes[0].Op == broadcast.OpFlushPrefix {
		return r.applyFlush(ctx, b)
	}
	return r.applyChanges(ctx, b, b.Changes)
}

func (r *Redis) applyChanges(ctx context.Context, b *broadcast.Batch, changes []broadcast.Change) (broadcast.Result, error) {
	keys := make([]string, 0, 2+2*len(changes))
	keys = append(keys, r.stateKey(b.Topic), r.flushKey())
	args := make([]any, 0, 16+2*len(b.Marks)+7*len(changes))
	fromInc, fromOff := placeArgs(b.From)
	toInc, toOff := placeArgs(b.To)
	args = append(args, fromInc, fromOff, 3+len(b.Marks), fieldGroup, string(b.To.Group), fieldIncarnation, toInc, fieldOffset, toOff)
	for i := range b.Marks {
		args = append(args, fieldMark+b.Marks[i].Field(), b.Marks[i].Value())
	}
	args = append(args, len(b.Drop))
	for i := range b.Drop {
		gone := broadcast.Mark{Flow: b.Drop[i]}
		args = append(args, fieldMark+gone.Field())
	}
	for i := range changes {
		c := &changes[i]
		keys = append(keys, r.valueKey(c.Key), r.metaKey(c.Key))
		args = appendChange(args, c, b)
	}
	answer, err := scriptApply.Run(ctx, r.client, keys, args...).Slice()
	if err != nil {
		return broadcast.Result{}, fmt.Errorf("cache: %w", err)
	}
	return r.result(b, answer)
}

// appendChange appends what the script needs of a set or delete: key, rank, what
// to do, value, its time to live, how long to keep the rank beside it, and how
// long beside no value. Times are in milliseconds, 0 is for ever.
func appendChange(args []any, c *broadcast.Change, b *broadcast.Batch) []any {
	what, ttl, keep := "set", int64(0), int64(0)
	horizon := max(b.Horizon.Milliseconds(), 1)
	if c.TTL > 0 {
		if ttl = c.Stored.Add(c.TTL).Sub(b.Now).Milliseconds(); ttl <= 0 {
			what = "gone" // its time is over
		}
		keep = max(ttl, horizon)
	}
	switch {
	case c.Op == broadcast.OpDelete:
		what = "gone"
	case what == "set" && c.Stored.Before(b.Now.Add(-b.Horizon)):
		what = "old"
	}
	return append(args, c.Key, string(c.Rank()), what, c.Value, ttl, keep, horizon)
}

// result reads the answer of a script.
func (r *Redis) result(b *broadcast.Batch, answer []any) (broadcast.Result, error) {
	bad := fmt.Errorf("cache: script answered %v", answer)
	if len(answer) != 3 {
		return broadcast.Result{}, bad
	}
	switch answer[0] {
	case "done":
		applied, ok := answer[1].(int64)
		superseded, ok2 := answer[2].(int64)
		if !ok || !ok2 {
			return broadcast.Result{}, bad
		}
		return broadcast.Result{Applied: int(applied), Superseded: int(superseded)}, nil
	case "moved":
		inc, ok := answer[1].(string)
		off, ok2 := answer[2].(string)
		if !ok || !ok2 {
			return broadcast.Result{}, bad
		}
		at, err := parsePlace(r.stateKey(b.Topic), inc, off)
		if err != nil {
			return broadcast.Result{}, err
		}
		return broadcast.Result{}, &broadcast.MovedError{Topic: b.Topic, From: b.From, At: at}
	}
	return broadcast.Result{}, bad
}

// Get implements broadcast.Applier.
func (r *Redis) Get(ctx context.Context, key string) (broadcast.Entry, error) {
	var value, meta *redis.StringCmd
	var spaces *redis.MapStringStringCmd
	_, err := r.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		value, meta, spaces = p.Get(ctx, r.valueKey(key)), p.Get(ctx, r.metaKey(key)), p.HGetAll(ctx, r.flushKey())
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return broadcast.Entry{}, fmt.Errorf("cache: %w", err)
	}
	var e broadcast.Entry
	b, err := value.Bytes()
	switch {
	case err == nil:
		e.Found, e.Value = true, b
	case !errors.Is(err, redis.Nil):
		return e, fmt.Errorf("cache: %w", err)
	}
	rank := broadcast.Rank(meta.Val())
	if rank != "" && !rank.Valid() {
		return e, &StateError{r.metaKey(key), "rank", string(rank)}
	}
	e.Version = rank.Version()
	if e.Found {
		return e, nil
	}
	e.Deleted = rank != ""
	for prefix, text := range spaces.Val() {
		if g := generation(text); strings.HasPrefix(key, prefix) && g > 0 {
			e.Deleted, e.Version = true, max(e.Version, g)
		}
	}
	return e, nil
}

// generation parses the version of a flushed namespace; 0 when it has none.
func generation(text string) uint64 {
	version, _, _ := strings.Cut(text, " ")
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
