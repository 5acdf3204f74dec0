package cli

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

// resetFleet is a deployment whose brokers rz02-a-1 and rz03-a-1 are answer; the
// group consumes at no other.
func resetFleet(t *testing.T, answer func(node string, r admin.ResetRequest) (int, any)) *fleet {
	t.Helper()
	topo, err := zone.Parse(sample.YAML, "sample")
	if err != nil {
		t.Fatal(err)
	}
	text := string(sample.YAML)
	for _, n := range topo.Zones() {
		for _, g := range n.Groups {
			node := g.Nodes[0]
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var req admin.ResetRequest
				if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
					t.Error(err)
				}
				status, body := http.StatusNotFound, any("not here")
				if node.Name == "rz02-a-1" || node.Name == "rz03-a-1" {
					status, body = answer(string(node.Name), req)
				}
				w.WriteHeader(status)
				if err := json.NewEncoder(w).Encode(body); err != nil {
					t.Error(err)
				}
			}))
			t.Cleanup(srv.Close)
			text = strings.Replace(text, "admin: "+node.Admin+"\n", "admin: "+srv.Listener.Addr().String()+"\n", 1)
		}
	}
	if topo, err = zone.Parse([]byte(text), "sample"); err != nil {
		t.Fatal(err)
	}
	return &fleet{topology: topo, client: admin.NewClient(nil, 5*time.Second)}
}

func TestGroupResetAsksAllBeforeItDoesAnything(t *testing.T) {
	for name, c := range map[string]struct {
		run     resetRun
		args    []string
		skipped uint64
		fails   string // node whose preview fails
		done    int    // brokers that were told to do it
		says    string // in the error; "" = none
	}{
		"preview":                  {run: resetRun{to: "earliest", preview: true}, args: []string{"g"}},
		"nothing is skipped":       {run: resetRun{to: "earliest"}, args: []string{"g"}, done: 2},
		"skips, unconfirmed":       {run: resetRun{to: "latest"}, args: []string{"g"}, skipped: 7, says: "skips 14 messages"},
		"skips, with --yes":        {run: resetRun{to: "latest", yes: true}, args: []string{"g"}, skipped: 7, done: 2},
		"one zone":                 {run: resetRun{to: "latest", zone: "rz03"}, args: []string{"g"}, done: 1},
		"a zone without the group": {run: resetRun{to: "latest", zone: "rz01"}, args: []string{"g"}, says: "no broker of zone rz01 has consumer group g"},
		"one cannot":               {run: resetRun{to: "offset"}, args: []string{"g", "5"}, fails: "rz03-a-1", says: "nothing was done: rz03-a-1"},
		"no place":                 {run: resetRun{to: "newest"}, args: []string{"g"}, says: "write earliest, latest"},
		"no time":                  {run: resetRun{to: "time"}, args: []string{"g"}, says: "write a time like"},
		"no number":                {run: resetRun{to: "offset"}, args: []string{"g", "-1"}, says: "write a number"},
		"a word too much":          {run: resetRun{to: "latest"}, args: []string{"g", "5"}, says: "unexpected argument"},
		"unknown topic":            {run: resetRun{to: "latest", topic: "nothing"}, args: []string{"g"}, says: "mqrouter topic list"},
		"unknown zone":             {run: resetRun{to: "latest", zone: "rz99"}, args: []string{"g"}, says: "it has rz01"},
	} {
		t.Run(name, func(t *testing.T) {
			done := 0
			f := resetFleet(t, func(node string, r admin.ResetRequest) (int, any) {
				if node == c.fails {
					return http.StatusConflict, "offset 5 is outside of queue 0"
				}
				if !r.Preview {
					done++
				}
				return http.StatusOK, []admin.GroupReset{{Node: node, Zone: node[:4], Next: 20, Skipped: c.skipped, Again: 3}}
			})
			var out bytes.Buffer
			r := c.run
			r.e, r.queue = &env{out: &out, errOut: &out, in: strings.NewReader("y\n"), format: "text"}, -1
			if r.topic == "" {
				r.topic = "orders"
			}
			err := r.run(t.Context(), f, c.args)
			if (err == nil) != (c.says == "") || (err != nil && !strings.Contains(err.Error(), c.says)) {
				t.Errorf("error %v, want %q", err, c.says)
			}
			if done != c.done {
				t.Errorf("%d brokers did it, want %d", done, c.done)
			}
			if c.says == "" && (!strings.Contains(out.String(), "rz03-a-1") || strings.Contains(out.String(), "nothing was done") != c.run.preview) {
				t.Errorf("printed\n%s", out.String())
			}
		})
	}
}

// TestGroupResetShowsWhatMoves: queues that are where they are to be have no line each;
// scripts get them all.
func TestGroupResetShowsWhatMoves(t *testing.T) {
	rows := []admin.GroupReset{
		{Node: "n1", Queue: 0, Next: 20, From: 7, To: 7},
		{Node: "n1", Queue: 1, Next: 20, From: 9, To: 7, Again: 2},
		{Node: "n1", Queue: 2, Next: 20, From: 4, To: 7, Skipped: 3},
		{Node: "n1", Queue: 3, Next: 20, From: 7, To: 7, Again: 1}, // acknowledged out of turn
		{Node: "n1", Queue: 4, Next: 20, From: 7, To: 7, InHands: 1},
		{Node: "n1", Queue: 5, Next: 20, From: 7, To: 7},
	}
	for name, c := range map[string]struct {
		rows  []admin.GroupReset
		want  string // the last line
		lines int
	}{
		"some move":  {rows, "3 messages would come again, 3 skipped; 2 queues are there already; nothing was done\n", 7},
		"all move":   {rows[1:2], "2 messages would come again, 0 skipped; nothing was done\n", 4},
		"none moves": {rows[:1], "0 messages would come again, 0 skipped; 1 queue is there already; nothing was done\n", 1},
	} {
		var out bytes.Buffer
		r := resetRun{e: &env{out: &out, errOut: &out, format: "text"}}
		if err := r.show(c.rows, false); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(out.String(), "\n"); n != c.lines || !strings.HasSuffix(out.String(), c.want) {
			t.Errorf("%s: %d lines, want %d and %q\n%s", name, n, c.lines, c.want, out.String())
		}
	}
	var out bytes.Buffer
	r := resetRun{e: &env{out: &out, errOut: &out, format: "json"}}
	if err := r.show(rows, false); err != nil || strings.Count(out.String(), `"node"`) != len(rows) {
		t.Errorf("%v\n%s", err, out.String())
	}
}
