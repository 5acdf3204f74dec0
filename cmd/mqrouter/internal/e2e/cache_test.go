package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/broadcast"
)

// newest is what a cache must end with for a key.
type newest struct {
	version uint64
	value   string // empty when deleted
}

// TestEveryCacheEndsWithTheNewestVersion changes the same keys from three
// cities at once, each with versions of its own, and then reads the real Redis
// of every city with an ordinary client.
func TestEveryCacheEndsWithTheNewestVersion(t *testing.T) {
	need(t, "redis-server", "redis-cli")
	d := sharedDev(t)
	const keys, rounds = 20, 30
	want := map[string]newest{}
	// Versions 1, 4, 7, ... come from Shanghai, 2, 5, 8, ... from Hangzhou and
	// 3, 6, 9, ... from Shenzhen; every fifth change is a delete, for some keys
	// the last one.
	value := func(key, version int) string {
		if (version+key)%5 == 0 {
			return ""
		}
		return fmt.Sprintf("v%d", version)
	}
	for k := range keys {
		want[fmt.Sprintf("e2e:member:%d", k)] = newest{version: rounds * 3, value: value(k, rounds*3)}
	}
	last := "e2e:member:last"
	want[last] = newest{version: 91, value: "v91"}
	var wg sync.WaitGroup
	for i, port := range []int{8081, 8086, 8090} {
		wg.Go(func() {
			p, err := broadcast.NewPublisher(t.Context(), broadcast.PublisherOptions{Endpoint: d.addr(port), Topic: "member"})
			if err != nil {
				t.Errorf("publisher at port %d: %v", port, err)
				return
			}
			defer p.Close()
			for r := range rounds {
				version := 3*r + i + 1
				for k := range keys {
					key := fmt.Sprintf("e2e:member:%d", k)
					var err error
					if v := value(k, version); v == "" {
						_, err = p.Delete(t.Context(), key, uint64(version))
					} else {
						_, err = p.Set(t.Context(), key, uint64(version), []byte(v))
					}
					if err != nil {
						t.Errorf("%s version %d: %v", key, version, err)
						return
					}
				}
			}
			if i == 0 {
				if _, err := p.Set(t.Context(), last, 91, []byte("v91")); err != nil {
					t.Errorf("%s: %v", last, err)
				}
			}
		})
	}
	wg.Wait()
	for _, city := range cities {
		eventually(t, "the Redis of "+city+" has every newest version", 2*time.Minute, func() error {
			for key, w := range want {
				if got := redisGet(t, d.redis[city], key); got != w.value {
					return fmt.Errorf("%s = %q, want %q", key, got, w.value)
				}
			}
			return nil
		})
	}
	// A version that comes late changes nothing: not even after a delete.
	for _, city := range cities {
		out := must(t, d.env(), "cache", "get", "--city", city, "e2e:member:0", "-o", "json")
		if !strings.Contains(out, `"version": 90`) {
			t.Errorf("%s: %s", city, out)
		}
	}
}

// redisGet reads a key with redis-cli; "" when it is not there.
func redisGet(t *testing.T, addr, key string) string {
	t.Helper()
	host, port, _ := strings.Cut(addr, ":")
	out, err := exec.CommandContext(t.Context(), "redis-cli", "-h", host, "-p", port, "--raw", "GET", key).Output()
	if err != nil {
		t.Fatalf("redis-cli: %v", err)
	}
	return strings.TrimSuffix(string(out), "\n")
}

// TestBroadcastCrossesEachLinkOnce counts what lands: every city's CZone has
// each change exactly once.
func TestBroadcastCrossesEachLinkOnce(t *testing.T) {
	d := sharedDev(t)
	type published struct {
		MessageID string `json:"message_id"`
	}
	p := decode[published](t, must(t, d.env(), "publish", "--zone", "rz03", "--topic", "member", "--key", "e2e:once", "--property", "mqr.op=set", "--property", "mqr.version=1", "-o", "json", "x"))
	type sighting struct {
		What string `json:"what"`
		City string `json:"city"`
		Zone string `json:"zone"`
	}
	eventually(t, "the change is in every CZone", time.Minute, func() error {
		landed := map[string]int{}
		for _, s := range decode[[]sighting](t, must(t, d.env(), "message", "find", p.MessageID, "-o", "json")) {
			if s.What == "landed" {
				landed[s.City+" "+s.Zone]++
			}
		}
		for _, at := range []string{"shanghai cz-sh", "hangzhou cz-hz", "shenzhen cz-sz"} {
			if landed[at] == 0 {
				return fmt.Errorf("not in %s yet: %v", at, landed)
			}
		}
		if len(landed) != 3 || landed["shanghai cz-sh"]+landed["hangzhou cz-hz"]+landed["shenzhen cz-sz"] != 3 {
			t.Fatalf("landed at %v, want once in each CZone", landed)
		}
		return nil
	})
}
