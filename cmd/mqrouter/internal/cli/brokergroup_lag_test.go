package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mqrouter/mqrouter/internal/admin"
)

// Whoever looks at a group often, just while a replica catches up, must not have the
// master read its log for that.
func TestStatusOfAGroupReadsTheLogOnlyWhenAsked(t *testing.T) {
	_, list := trioStatuses(t)
	list[0].Member.Replicas[1] = admin.Replica{Node: "g-3", Phase: "async", Synced: 100, Behind: 900}
	var reads atomic.Int32
	var file string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/topology":
			w.Write([]byte(file))
		case "/v1/status":
			json.NewEncoder(w).Encode(list[0])
		case "/v1/brokergroup/extent":
			reads.Add(1)
			json.NewEncoder(w).Encode(admin.LogExtent{Records: 7, Partial: true})
		}
	}))
	defer s.Close()
	addr := s.Listener.Addr().String()
	others := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { json.NewEncoder(w).Encode(list[2]) }))
	defer others.Close()
	file = strings.NewReplacer(`"127.0.0.1:4"`, `"`+addr+`"`, `"127.0.0.1:12"`, `"`+others.Listener.Addr().String()+`"`).Replace(trio)
	for _, c := range []struct {
		flag  string
		reads int32
		says  string
	}{{"--records=false", 0, "900 B"}, {"--records", 1, "7+"}} {
		code, out, text := call(t, "brokergroup", "status", "g", "--admin", addr, c.flag)
		if n := reads.Swap(0); code != ExitOK || n != c.reads || !strings.Contains(out, c.says) {
			t.Errorf("%s: exit code %d (%s), %d reads of the log, want %d and %q in\n%s", c.flag, code, text, n, c.reads, c.says, out)
		}
	}
}
