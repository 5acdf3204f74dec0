package cli

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

// waitingServer is a broker with messages that wait: it serves them in pages, and what
// is decided about waits no more. The handle of a message is its number.
type waitingServer struct {
	t        *testing.T
	messages []admin.WaitingMessage
	gone     map[string]bool // taken by somebody else meanwhile
	orders   []admin.WaitingOrder
	decided  map[string]bool
}

func (s *waitingServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		var o admin.WaitingOrder
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
			s.t.Error(err)
		}
		s.orders = append(s.orders, o)
		results := []admin.OrderResult{}
		for _, m := range o.Messages {
			one := admin.OrderResult{Handle: m.Handle, Outcome: "done"}
			if s.decided[m.Handle] || s.gone[m.Handle] {
				one.Outcome, one.Error = "gone", "the message is no longer waiting"
			}
			s.decided[m.Handle] = true
			results = append(results, one)
		}
		json.NewEncoder(w).Encode(results)
		return
	}
	v := r.URL.Query()
	from, _ := strconv.Atoi(v.Get("from"))
	limit, _ := strconv.Atoi(v.Get("limit"))
	until, _ := time.Parse(time.RFC3339Nano, v.Get("until"))
	page := admin.WaitingPage{Messages: []admin.WaitingMessage{}}
	for i := from; i < len(s.messages); i++ {
		m := s.messages[i]
		switch {
		case len(page.Messages) == limit:
			page.Next = strconv.Itoa(i)
		case m.Kind != v.Get("kind"), s.decided[m.Handle], v.Has("topic") && v.Get("topic") != m.Topic,
			!until.IsZero() && !m.Stored.Before(until), v.Has("gone") && !m.Gone:
			continue
		default:
			page.Messages = append(page.Messages, m)
			continue
		}
		break
	}
	json.NewEncoder(w).Encode(page)
}

// waitingFleet has one broker, with 500 delayed messages of a topic that is gone, 30
// of another, and 20 half messages.
func waitingFleet(t *testing.T) (*fleet, *waitingServer) {
	t.Helper()
	s := &waitingServer{t: t, decided: map[string]bool{}, gone: map[string]bool{}}
	add := func(n int, m admin.WaitingMessage) {
		for range n {
			id := len(s.messages)
			m.Node, m.Zone, m.MessageID, m.Handle = "rz02-a-1", "rz02", "m"+strconv.Itoa(id), strconv.Itoa(id)
			m.Stored = time.Now().Add(-time.Duration(600-id) * time.Minute)
			s.messages = append(s.messages, m)
		}
	}
	add(500, admin.WaitingMessage{Kind: admin.KindDelayed, Topic: "old", Gone: true})
	add(30, admin.WaitingMessage{Kind: admin.KindDelayed, Topic: "reminders"})
	add(20, admin.WaitingMessage{Kind: admin.KindUndecided, Topic: "payments", Checks: 2})
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	topo, err := zone.Parse(sample.YAML, "sample")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(sample.YAML), "admin: "+topo.FindNode("rz02-a-1").Admin+"\n", "admin: "+srv.Listener.Addr().String()+"\n", 1)
	if topo, err = zone.Parse([]byte(text), "sample"); err != nil {
		t.Fatal(err)
	}
	return &fleet{topology: topo, client: admin.NewClient(nil, 5*time.Second)}, s
}

func TestWaitingIsListedUpToTheLimit(t *testing.T) {
	f, _ := waitingFleet(t)
	for name, c := range map[string]struct {
		p     waitingFlags
		args  []string
		lines int
		says  string
	}{
		"both kinds":   {waitingFlags{limit: 5}, nil, 10, "and more"},
		"all of both":  {waitingFlags{limit: 1000}, nil, 550, "asked 2 times"},
		"delayed":      {waitingFlags{limit: 1000, delayed: true}, nil, 530, "old (gone)"},
		"half":         {waitingFlags{limit: 20, undecided: true}, nil, 20, "a decision"},
		"a topic":      {waitingFlags{limit: 50, topic: "reminders"}, nil, 30, "m529"},
		"nothing":      {waitingFlags{limit: 50, topic: "unknown"}, nil, 0, "nothing waits"},
		"two messages": {waitingFlags{limit: 50, id: "a"}, []string{"b"}, -1, "give one"},
		"no zone":      {waitingFlags{limit: 50, zone: "rz99"}, nil, -1, "it has rz01"},
		"no limit":     {waitingFlags{zone: "rz02"}, nil, -1, "at least 1"},
		"no time":      {waitingFlags{limit: 5, dueBefore: "soon"}, nil, -1, "--due-before"},
	} {
		var out bytes.Buffer
		p := c.p
		if p.zone == "" {
			p.zone = "rz02"
		}
		err := p.list(t.Context(), &env{out: &out, format: "text"}, f, c.args)
		if c.lines < 0 {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v, want %q", name, err, c.says)
			}
			continue
		}
		if n := strings.Count(out.String(), "rz02-a-1"); err != nil || n != c.lines || !strings.Contains(out.String(), c.says) {
			t.Errorf("%s: %d lines, %v; want %d and %q\n%.500s", name, n, err, c.lines, c.says, out.String())
		}
		if more := strings.Contains(out.String(), "and more"); more != (name == "both kinds") {
			t.Errorf("%s: tells of more: %v", name, more)
		}
	}
}

func TestOrdersArePreviewedConfirmedAndPaced(t *testing.T) {
	f, s := waitingFleet(t)
	var out, errOut bytes.Buffer
	run := func(k *orderKind, r orderRun, args ...string) error {
		out.Reset()
		errOut.Reset()
		s.orders = nil
		r.k, r.e, r.zone = k, &env{in: strings.NewReader("y\n"), out: &out, errOut: &errOut, format: "text"}, "rz02"
		return r.run(t.Context(), f, args)
	}
	gone := orderRun{waitingFlags: waitingFlags{gone: true}, reason: "ticket 42"}
	preview := gone
	preview.preview, preview.reason = true, ""
	if err := run(&dropOrder, preview); err != nil || !strings.Contains(out.String(), "old    500") || !strings.Contains(out.String(), "nothing was done") || len(s.orders) > 0 {
		t.Errorf("preview: %v, %d orders\n%s", err, len(s.orders), out.String())
	}
	if err := run(&dropOrder, gone); err == nil || !strings.Contains(err.Error(), "500 messages dropped for ever") || len(s.orders) > 0 {
		t.Errorf("without --yes: %v, %d orders", err, len(s.orders))
	}
	gone.yes = true
	limited := gone
	limited.limit, limited.rate = 5, 3 // and as many at once
	if err := run(&dropOrder, limited); err != nil || !strings.Contains(out.String(), "5 dropped") || len(s.orders) != 2 || len(s.orders[0].Messages) != 3 {
		t.Errorf("with a limit: %v\n%s%+v", err, out.String(), s.orders)
	}
	s.gone["300"] = true
	if err := run(&dropOrder, gone); err != nil || !strings.Contains(out.String(), "494 dropped, 1 waited no more") {
		t.Errorf("the others: %v\n%s", err, out.String())
	}
	if o := s.orders[0]; o.What != "drop" || o.Why != "ticket 42" || !strings.Contains(o.Operator, "@") || o.Messages[0].Topic != "old" {
		t.Errorf("order %+v", o)
	}
	if err := run(&dropOrder, gone); err != nil || !strings.Contains(out.String(), "no message that waits is selected") || len(s.orders) > 0 {
		t.Errorf("again: %v\n%s", err, out.String())
	}
	pay := orderRun{waitingFlags: waitingFlags{topic: "payments", until: "55m30s"}, reason: "asked them", yes: true}
	if err := run(&commitOrder, pay); err != nil || !strings.Contains(out.String(), "15 committed") || s.orders[0].What != "commit" {
		t.Errorf("commit: %v\n%s", err, out.String())
	}
	if err := run(&rollbackOrder, orderRun{all: true, reason: "r", yes: true}); err != nil || !strings.Contains(out.String(), "5 rolled back") {
		t.Errorf("rollback: %v\n%s", err, out.String())
	}
	for name, c := range map[string]struct {
		r    orderRun
		args []string
		says string
	}{
		"nothing named": {orderRun{reason: "r"}, nil, "say which"},
		"no reason":     {orderRun{all: true}, nil, "--reason is missing"},
		"a wrong rate":  {orderRun{all: true, reason: "r", rate: -1}, nil, "--rate"},
		"no time":       {orderRun{waitingFlags: waitingFlags{topic: "t", since: "x"}, reason: "r"}, nil, "--since"},
		"two messages":  {orderRun{waitingFlags: waitingFlags{id: "a"}, reason: "r"}, []string{"b"}, "give one"},
	} {
		if err := run(&dropOrder, c.r, c.args...); err == nil || !strings.Contains(err.Error(), c.says) || len(s.orders) > 0 {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}
