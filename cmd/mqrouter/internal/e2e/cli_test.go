package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// decode reads the JSON that a command prints.
func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	return v
}

// TestDevGoesOnWithItsData stops a deployment between publish and consume.
func TestDevGoesOnWithItsData(t *testing.T) {
	dir, offset := filepath.Join(t.TempDir(), "dev"), offsetFor(t)
	d := startDev(t, dir, offset, nil)
	must(t, d.env(), "publish", "--zone", "rz03", "--topic", "orders", "kept")
	must(t, d.env(), "publish", "--zone", "rz01", "--topic", "transfer", "--property", "userId=1085", "crossing")
	d.stop(t, time.Minute)
	d = startDev(t, dir, offset, nil)
	if out := must(t, d.env(), "consume", "--zone", "rz03", "--topic", "orders", "--group", "orders-billing", "--count", "1"); !strings.Contains(out, "kept") {
		t.Errorf("after the restart got %q", out)
	}
	if out := must(t, d.env(), "consume", "--zone", "rz05", "--topic", "transfer", "--group", "transfer-credit", "--count", "1"); !strings.Contains(out, "crossing") {
		t.Errorf("after the restart got %q", out)
	}
	d.stop(t, time.Minute)
}

// TestMessageFindTellsTheWholeWay follows one message from its publish in
// Shanghai to its acknowledgement in Hangzhou.
func TestMessageFindTellsTheWholeWay(t *testing.T) {
	d := sharedDev(t)
	type published struct {
		MessageID string `json:"message_id"`
		Reached   string `json:"reached"`
	}
	out := must(t, d.env(), "publish", "--zone", "rz01", "--topic", "transfer", "--property", "userId=1041", "-o", "json", "follow me")
	p := decode[published](t, out)
	if !strings.Contains(p.Reached, "level=origin") {
		t.Errorf("the acknowledgement says %q; the message lives in another city", p.Reached)
	}
	for {
		type received struct {
			MessageID string `json:"message_id"`
		}
		got := jsonLines[received](t, must(t, d.env(), "consume", "--zone", "rz03", "--topic", "transfer", "--group", "transfer-credit", "--count", "1", "-o", "json"))
		if got[0].MessageID == p.MessageID {
			break
		}
	}
	type sighting struct {
		What       string `json:"what"`
		Zone       string `json:"zone"`
		Settled    string `json:"settled"`
		Deliveries []struct {
			Group string `json:"group"`
			State string `json:"state"`
		} `json:"deliveries"`
	}
	eventually(t, "the whole way is shown", time.Minute, func() error {
		found := decode[[]sighting](t, must(t, d.env(), "message", "find", p.MessageID, "-o", "json"))
		if len(found) != 2 || found[0].What != "published" || found[0].Zone != "rz01" || found[1].What != "landed" || found[1].Zone != "rz03" {
			return fmt.Errorf("got %+v", found)
		}
		if !strings.Contains(found[0].Settled, "settled") || len(found[1].Deliveries) != 1 || found[1].Deliveries[0].State != "acknowledged" {
			return fmt.Errorf("got %+v", found)
		}
		return nil
	})
	if _, err := mqrouter(t, d.env(), "message", "find", "0100000000000000000000000000000000"); err == nil {
		t.Error("an id that nobody has was found")
	}
}

// TestStatusShowsEveryNodeAndLink also proves that links have a measured RTT.
func TestStatusShowsEveryNodeAndLink(t *testing.T) {
	d := sharedDev(t)
	type status struct {
		Node  string `json:"node"`
		Role  string `json:"role"`
		Ready bool   `json:"ready"`
		Links []struct {
			City  string `json:"city"`
			State string `json:"state"`
			RTT   int64  `json:"rtt"`
		} `json:"links"`
	}
	eventually(t, "every node is ready and every link up", time.Minute, func() error {
		all := decode[[]status](t, must(t, d.env(), "status", "-o", "json"))
		if len(all) != 20 {
			return fmt.Errorf("%d nodes, the sample has 20", len(all))
		}
		for _, s := range all {
			if !s.Ready {
				return fmt.Errorf("%s is not ready", s.Node)
			}
			if s.Role == "router" && len(s.Links) != 8 {
				return fmt.Errorf("%s has %d links, want one for each of four routers and two classes", s.Node, len(s.Links))
			}
			for _, l := range s.Links {
				if l.State != "up" || l.RTT <= 0 {
					return fmt.Errorf("%s: link to %s is %s with RTT %d", s.Node, l.City, l.State, l.RTT)
				}
			}
		}
		return nil
	})
	if text := must(t, d.env(), "status"); !strings.Contains(text, "rt-hz-1 - rt-sh-1") {
		t.Errorf("the table shows no links:\n%s", text)
	}
}

// TestTopologyFollowsTheFile changes the file of a running deployment: a higher
// epoch is taken by every node, a lower one and a broken one by none.
func TestTopologyFollowsTheFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dev")
	d := startDev(t, dir, offsetFor(t), nil)
	path := filepath.Join(dir, "topology.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(s string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	type status struct {
		Node     string `json:"node"`
		Topology struct {
			Epoch   string `json:"epoch"`
			Problem string `json:"problem"`
		} `json:"topology"`
	}
	all := func(what string, ok func(status) bool) {
		t.Helper()
		eventually(t, what, time.Minute, func() error {
			for _, s := range decode[[]status](t, must(t, d.env(), "status", "-o", "json")) {
				if !ok(s) {
					return fmt.Errorf("%s: epoch %s, problem %q", s.Node, s.Topology.Epoch, s.Topology.Problem)
				}
			}
			return nil
		})
	}
	newer := strings.Replace(string(text), "number: 1}", "number: 2}", 1)
	newer = strings.Replace(newer, "topics:\n", "topics:\n  - {name: added, route: local}\n", 1)
	write(newer)
	all("every node takes the higher epoch", func(s status) bool { return s.Topology.Epoch == "1.2" && s.Topology.Problem == "" })
	must(t, d.env(), "publish", "--zone", "rz02", "--topic", "added", "a topic of the new epoch")
	write(string(text))
	all("every node refuses the lower epoch and says so", func(s status) bool { return s.Topology.Epoch == "1.2" && s.Topology.Problem != "" })
	write("deployment: [broken\n")
	all("every node refuses a broken file and says so", func(s status) bool { return s.Topology.Epoch == "1.2" && s.Topology.Problem != "" })
	write(newer)
	all("every node is content with the file again", func(s status) bool { return s.Topology.Epoch == "1.2" && s.Topology.Problem == "" })
	d.stop(t, time.Minute)
}

// TestWrongUseIsExplained checks exit codes and that messages say what to do.
func TestWrongUseIsExplained(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"publish", "--topic", "orders", "x"}, "--zone ZONE or --endpoint"},
		{[]string{"publish", "--nonsense"}, "unknown flag"},
		{[]string{"broker"}, "MQROUTER_NAME"},
		{[]string{"topology", "validate"}, "the topology file"},
		{[]string{"status", "-o", "xml"}, "text or json"},
		{[]string{"status", "--admin", "127.0.0.1:1"}, "is a node running there"},
	} {
		_, err := mqrouter(t, nil, c.args...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got %v, want %q", c.args, err, c.want)
		}
	}
}
