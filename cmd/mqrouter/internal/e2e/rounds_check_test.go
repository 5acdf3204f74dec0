package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/internal/admin"
)

// segmentHead is the length of a segment's header in bytes, which holds the time at
// which it was made and is each member's own (package commitlog).
const segmentHead = 64

// member asks a node what it is in its group.
func (a *arena) member(name string) (admin.Member, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	n := a.nodes[name]
	if n == nil {
		return admin.Member{}, fmt.Errorf("there is no %s here", name)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.admin+"/v1/status", http.NoBody)
	if err != nil {
		return admin.Member{}, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return admin.Member{}, err
	}
	defer resp.Body.Close()
	var s admin.Status
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		return admin.Member{}, err
	}
	if s.Member == nil {
		return admin.Member{}, fmt.Errorf("%s does not say what it is in its group", name)
	}
	return *s.Member, nil
}

// statusOf is what a node says of itself, for the report of a failure.
func (a *arena) statusOf(name string) string {
	page, err := httpGet("http://" + a.nodes[name].admin + "/v1/status")
	if err != nil {
		return err.Error()
	}
	return page
}

// members asks every node of the group.
func (a *arena) members() (map[string]admin.Member, error) {
	all := map[string]admin.Member{}
	for _, name := range members {
		m, err := a.member(name)
		if err != nil {
			return nil, err
		}
		all[name] = m
	}
	return all, nil
}

// master is the node that leads in the newest epoch, as far as nodes answer; the first
// member when none does.
func (a *arena) master() string {
	newest, who := uint64(0), members[0]
	for _, name := range members {
		if m, err := a.member(name); err == nil && m.Role == "master" && m.Epoch >= newest {
			newest, who = m.Epoch, name
		}
	}
	return who
}

// sameLogs compares the members' segments byte by byte, up to what the master has
// committed now.
func (a *arena) sameLogs() error {
	all, err := a.members()
	if err != nil {
		return err
	}
	var end uint64
	for _, m := range all {
		if m.Role == "master" {
			end = m.Committed
		}
	}
	eventually(a.t, "the replicas have what the master has committed", time.Minute, func() error {
		for _, name := range members {
			if m, err := a.member(name); err != nil || m.Committed < end {
				return fmt.Errorf("%s has %d of %d: %w", name, m.Committed, end, err)
			}
		}
		return nil
	})
	var errs []error
	bases := a.segments(members[0])
	slices.Sort(bases)
	for i, base := range bases {
		end := end
		if i+1 < len(bases) {
			end = min(end, bases[i+1]) // a full disk may have kept what was reserved beyond
		}
		var first []byte
		for i, name := range members {
			b, err := os.ReadFile(filepath.Join(a.data(name), "log", fmt.Sprintf("%016x.log", base)))
			if err != nil {
				if !slices.Contains(a.segments(name), base) {
					continue // trimmed, or the member has begun with a later one
				}
				return err
			}
			if base >= end {
				continue
			}
			b = b[:min(uint64(len(b)), end-base)]
			if b = b[min(segmentHead, len(b)):]; first == nil {
				first = b
				continue
			}
			if at := differ(first, b); at >= 0 {
				errs = append(errs, fmt.Errorf("%s and %s differ at position %d, all have committed %d", members[0], members[i], base+segmentHead+uint64(at), end))
			}
		}
	}
	return errors.Join(errs...)
}

// segments are the bases of a member's segments.
func (a *arena) segments(name string) []uint64 {
	files, _ := filepath.Glob(filepath.Join(a.data(name), "log", "*.log"))
	var all []uint64
	for _, f := range files {
		if base, err := strconv.ParseUint(strings.TrimSuffix(filepath.Base(f), ".log"), 16, 64); err == nil {
			all = append(all, base)
		}
	}
	return all
}

// differ is where two byte strings differ, -1 when they do not.
func differ(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// reigns watches who says to be master, in which epoch and up to where.
type reigns struct {
	a      *arena
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu   sync.Mutex
	rule map[uint64]map[string]uint64 // epoch -> node -> highest position committed; guarded by mu
	last uint64                       // newest epoch seen, and when it was seen last; guarded by mu
	seen time.Time
}

func watchReigns(a *arena) *reigns {
	ctx, cancel := context.WithCancel(a.t.Context())
	r := &reigns{a: a, cancel: cancel, rule: map[uint64]map[string]uint64{}}
	for _, name := range members {
		r.wg.Go(func() {
			for ctx.Err() == nil {
				hold(100 * time.Millisecond)
				if m, err := a.member(name); err == nil && m.Role == "master" {
					r.note(m.Epoch, name, m.Committed)
					r.notice(m.Epoch)
				}
			}
		})
	}
	a.t.Cleanup(r.stop)
	return r
}

func (r *reigns) stop() {
	r.cancel()
	r.wg.Wait()
}

func (r *reigns) note(epoch uint64, node string, committed uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rule[epoch] == nil {
		r.rule[epoch] = map[string]uint64{}
	}
	r.rule[epoch][node] = max(r.rule[epoch][node], committed)
}

// notice tells the ledger of a change of master that nobody ordered: on a starved
// machine a lease may run out, and what was settled in its last moments comes again.
func (r *reigns) notice(epoch uint64) {
	r.mu.Lock()
	before, seen := r.last, r.seen
	if epoch >= r.last {
		r.last, r.seen = epoch, time.Now()
	}
	r.mu.Unlock()
	if before == 0 || epoch <= before {
		return
	}
	l := r.a.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	l.troubles = append(l.troubles, window{from: seen, to: time.Now()})
}

var begunReign = regexp.MustCompile(`msg="broker is master".* epoch=(\d+) position=(\d+)`)

// verdict is nil when each epoch had one master, and none committed anything beyond
// where a later one began.
func (r *reigns) verdict() error {
	begins := map[uint64]uint64{}
	r.a.mu.Lock()
	for _, name := range members {
		for _, p := range r.a.runs[name] {
			for _, m := range begunReign.FindAllStringSubmatch(p.output(), -1) {
				epoch, _ := strconv.ParseUint(m[1], 10, 64)
				position, _ := strconv.ParseUint(m[2], 10, 64)
				r.note(epoch, name, 0)
				begins[epoch] = position
			}
		}
	}
	r.a.mu.Unlock()
	if len(begins) == 0 {
		return errors.New("no node has said that it is master: the check looks for words that are not there")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for epoch, nodes := range r.rule {
		if len(nodes) > 1 {
			errs = append(errs, fmt.Errorf("I5: epoch %d had several masters: %v", epoch, nodes))
		}
		for later, begin := range begins {
			for node, committed := range nodes {
				if later > epoch && committed > begin {
					errs = append(errs, fmt.Errorf("I5: %s committed %d in epoch %d, and epoch %d began at %d", node, committed, epoch, later, begin))
				}
			}
		}
	}
	return errors.Join(errs...)
}
