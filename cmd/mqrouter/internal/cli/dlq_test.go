package cli

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

// letterServer is a broker with the dead letters of one queue: it serves them in
// pages, marks what is replayed, and keeps the queries.
type letterServer struct {
	letters []admin.DeadLetter
	queries []url.Values
	batches []int
}

func (s *letterServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch v := r.URL.Query(); {
	case r.Method == http.MethodPost:
		var req admin.ReplayRequest
		json.NewDecoder(r.Body).Decode(&req)
		s.batches = append(s.batches, len(req.Offsets))
		results := []admin.ReplayResult{}
		for _, o := range req.Offsets {
			s.letters[o].Replayed = s.letters[o].Replayed || !req.DryRun
			results = append(results, admin.ReplayResult{Offset: o, MessageID: s.letters[o].MessageID, Outcome: "replayed", Where: "orders"})
		}
		json.NewEncoder(w).Encode(results)
	case !v.Has("queue"):
		json.NewEncoder(w).Encode([]admin.DeadLetterQueue{{Node: "rz02-a-1", Zone: "rz02", Queue: "%DLQ%g", Group: "g",
			Held: uint64(len(s.letters)), Pending: uint64(len(s.letters)), Reasons: map[string]int{"consumer": len(s.letters)}}})
	default:
		s.queries = append(s.queries, v)
		from, _ := strconv.Atoi(v.Get("from"))
		limit, _ := strconv.Atoi(v.Get("limit"))
		page := admin.DeadLetterPage{}
		for i := from; i < len(s.letters); i++ {
			if limit > 0 && len(page.Letters) == limit {
				page.Next = uint64(i)
				break
			}
			l := s.letters[i]
			if (v.Has("tag") && v.Get("tag") != l.Tag) || (v.Get("pending") == "true" && l.Replayed) {
				continue
			}
			page.Letters = append(page.Letters, l)
		}
		json.NewEncoder(w).Encode(page)
	}
}

// letterFleet has one broker with n letters, every third of them red.
func letterFleet(t *testing.T, n int) (*fleet, *letterServer) {
	t.Helper()
	s := &letterServer{}
	for i := range n {
		tag := "blue"
		if i%3 == 0 {
			tag = "red"
		}
		s.letters = append(s.letters, admin.DeadLetter{Node: "rz02-a-1", Queue: "%DLQ%g", Offset: uint64(i), MessageID: "m" + strconv.Itoa(i), Tag: tag, Reason: "consumer", Dead: time.Unix(1e9+int64(i), 0)})
	}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	topo, err := zone.Parse(sample.YAML, "sample")
	if err != nil {
		t.Fatal(err)
	}
	addr := topo.FindNode("rz02-a-1").Admin
	text := strings.Replace(string(sample.YAML), "admin: "+addr+"\n", "admin: "+srv.Listener.Addr().String()+"\n", 1)
	if topo, err = zone.Parse([]byte(text), "sample"); err != nil {
		t.Fatal(err)
	}
	return &fleet{topology: topo, client: admin.NewClient(nil, 5*time.Second)}, s
}

func TestReplaySelectsPacesAndGoesOn(t *testing.T) {
	f, s := letterFleet(t, 30)
	var out, errOut bytes.Buffer
	run := func(r replayRun, args ...string) error {
		out.Reset()
		r.e, r.zone = &env{out: &out, errOut: &errOut, format: "text"}, "rz02"
		return r.run(t.Context(), f, args)
	}
	red := replayRun{letterFlags: letterFlags{group: "g", tag: "red", key: "k", properties: []string{"a=b"}, since: "2h"}}
	preview := red
	preview.preview = true
	if err := run(preview); err != nil || !strings.Contains(out.String(), "10 would be replayed") || !strings.Contains(out.String(), "m27 (letter 27 at rz02-a-1): orders") {
		t.Errorf("preview: %v\n%s", err, out.String())
	}
	q := s.queries[0]
	if q.Get("tag") != "red" || q.Get("key") != "k" || q.Get("property") != "a=b" || q.Get("pending") != "true" || !q.Has("since") {
		t.Errorf("the broker was asked for %v", q)
	}
	limited := red
	limited.limit, limited.rate = 4, 1000
	if err := run(limited); err != nil || !strings.Contains(out.String(), "4 replayed") {
		t.Errorf("with a limit: %v\n%s", err, out.String())
	}
	s.batches = nil
	rest := red
	rest.rate = 3 // and as many at once: two batches come after one second
	if err := run(rest); err != nil || !strings.Contains(out.String(), "6 replayed") {
		t.Errorf("the rest: %v\n%s", err, out.String())
	}
	if !slices.Equal(s.batches, []int{3, 3}) {
		t.Errorf("batches of %v letters at a rate of 3 a second", s.batches)
	}
	if n := slices.IndexFunc(s.letters, func(l admin.DeadLetter) bool { return l.Replayed != (l.Tag == "red") }); n >= 0 {
		t.Errorf("letter %+v", s.letters[n])
	}
	for name, c := range map[string]struct {
		r    replayRun
		args []string
		says string
	}{
		"nothing named":  {replayRun{}, nil, "--group"},
		"two ids":        {replayRun{letterFlags: letterFlags{id: "a"}}, []string{"b"}, "give one"},
		"half a pair":    {replayRun{letterFlags: letterFlags{group: "g", properties: []string{"a"}}}, nil, "NAME=VALUE"},
		"no such letter": {replayRun{letterFlags: letterFlags{id: "x", tag: "green"}}, nil, "no broker has such a dead letter of message x"},
	} {
		if err := run(c.r, c.args...); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

func TestListCountsWhatAFilterSelects(t *testing.T) {
	f, s := letterFleet(t, 9)
	s.letters[0].Replayed = true
	p := letterFlags{zone: "rz02", tag: "red"}
	boxes, err := f.letterBoxes(t.Context(), &p)
	if err != nil {
		t.Fatal(err)
	}
	boxes, err = f.narrowed(t.Context(), &p, boxes, nil)
	if err != nil || len(boxes) != 1 {
		t.Fatalf("%+v, %v", boxes, err)
	}
	if b := boxes[0]; b.Held != 3 || b.Pending != 2 || !b.Oldest.Equal(time.Unix(1e9+3, 0)) || b.Reasons["consumer"] != 2 {
		t.Errorf("%+v", b)
	}
}
