package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/config"
	"github.com/mqrouter/mqrouter/zone"
)

func deployFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(repoRoot(t), "deploy", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// deployRoles are the roles with a sample configuration and a unit each, with a
// node of that role in the sample topology.
var deployRoles = map[string]string{"broker": "rz-east-a-1", "router": "rt-east-1", "cachesync": "cache-east", "coordinator": "co-east"}

// TestDeployConfigsAreAccepted runs each role with its sample configuration: it
// has to get as far as the topology, which is not where the sample says.
func TestDeployConfigsAreAccepted(t *testing.T) {
	for role, name := range deployRoles {
		t.Run(role, func(t *testing.T) {
			file := filepath.Join(repoRoot(t), "deploy/config", role+".yaml")
			missing := filepath.Join(t.TempDir(), "topology.yaml")
			args := []string{role, "--config", file, "--name", name, "--topology", missing}
			if role == "broker" || role == "coordinator" {
				args = append(args, "--data-dir", t.TempDir())
			}
			_, err := mqrouter(t, nil, args...)
			if err == nil || !strings.Contains(err.Error(), missing) {
				t.Errorf("got %v; want an error about the missing topology only", err)
			}
		})
	}
}

// TestDeployConfigsExplainEveryKey finds each flag of a role in its sample, set
// or commented out, with a comment behind it.
func TestDeployConfigsExplainEveryKey(t *testing.T) {
	for role := range deployRoles {
		text := deployFile(t, "config/"+role+".yaml")
		fs := pflag.NewFlagSet(role, pflag.ContinueOnError)
		config.Flags(fs, role)
		fs.VisitAll(func(f *pflag.Flag) {
			line := regexp.MustCompile(`(?m)^(# )?` + regexp.QuoteMeta(f.Name) + `: .*# \S`)
			if f.Name != "config" && !line.MatchString(text) {
				t.Errorf("%s.yaml does not explain %s", role, f.Name)
			}
		})
	}
}

// TestDeployTopologyIsOneThatThisVersionRuns also holds the topology against
// what brokers refuse to run, and against the other samples.
func TestDeployTopologyIsOneThatThisVersionRuns(t *testing.T) {
	path := filepath.Join(repoRoot(t), "deploy/config/topology.yaml")
	must(t, nil, "topology", "validate", path)
	top, err := zone.Parse([]byte(deployFile(t, "config/topology.yaml")), path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range top.Cities {
		if len(c.Routers) < 2 {
			t.Errorf("city %s has %d routers; a sample has two", c.Name, len(c.Routers))
		}
	}
	for role, name := range deployRoles {
		n := top.FindNode(zone.Node(name))
		if n == nil || n.Role.String() != role {
			t.Errorf("node %s is no %s of the sample topology", name, role)
			continue
		}
	}
	group := regexp.MustCompile(`(?m)^group: (\S+)`).FindStringSubmatch(deployFile(t, "config/cachesync.yaml"))
	if g := top.FindConsumerGroup(zone.ConsumerGroup(group[1])); g == nil || !g.Cache {
		t.Errorf("cachesync.yaml follows %s, which is no cache group of the topology", group[1])
	}
	scrape := deployFile(t, "prometheus/scrape.yaml")
	for _, addr := range regexp.MustCompile(`admin: "?([0-9.:]+)`).FindAllStringSubmatch(deployFile(t, "config/topology.yaml"), -1) {
		if !strings.Contains(scrape, `"`+addr[1]+`"`) {
			t.Errorf("scrape.yaml has no target %s", addr[1])
		}
	}
}

// metricName matches metrics, not the attributes that begin with messaging_.
var metricName = regexp.MustCompile(`\b(mqrouter|messaging_server)_[a-z0-9_]+`)

// TestDeployMetricsAreExported finds every metric of alerts and dashboard on
// the pages of a running deployment that did a little of everything.
func TestDeployMetricsAreExported(t *testing.T) {
	d := sharedDev(t)
	used := map[string]string{}
	for _, file := range []string{"prometheus/alerts.yaml", "grafana/mqrouter.json"} {
		for _, name := range metricName.FindAllString(deployFile(t, file), -1) {
			// The sample has neither; packages node and ship look for these.
			if !strings.HasPrefix(name, "mqrouter_coordinator_") && !strings.HasPrefix(name, "mqrouter_ship_") {
				used[name] = file
			}
		}
	}
	if len(used) < 40 {
		t.Fatalf("found %d metrics in alerts and dashboard; is the expression right?", len(used))
	}
	must(t, d.env(), "publish", "--zone", "gz02", "--topic", "audit", "for the metrics")
	must(t, d.env(), "consume", "--zone", "gz01", "--topic", "audit", "--group", "audit-archive", "--count", "1")
	must(t, d.env(), "broadcast", "set", "--zone", "gz02", "--key", "deploy:1", "--version", "1", "--value", "x")
	strange(t, d.addr(8084))
	eventually(t, "every metric is exported", time.Minute, func() error {
		have, err := exported(t, d)
		if err != nil {
			return err
		}
		var missing []string
		for name, file := range used {
			if !have[name] {
				missing = append(missing, fmt.Sprintf("%s (%s)", name, file))
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("not exported: %s", strings.Join(missing, ", "))
		}
		return nil
	})
}

// strange speaks no protocol that a client port knows, and waits for the end.
func strange(t *testing.T, addr string) {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(c, "\x00\x01nobody speaks this\n")
	io.Copy(io.Discard, c) // a reset is as good an end as any
}

// exported returns the names of the samples of every node.
func exported(t *testing.T, d *deployment) (map[string]bool, error) {
	have := map[string]bool{}
	for port := 5101; port <= 5120; port++ {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+d.addr(port)+"/metrics", nil)
		if err != nil {
			return nil, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, err
		}
		page, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(page)) {
			if name := metricName.FindString(line); name != "" && strings.HasPrefix(line, name) {
				have[name] = true
			}
		}
	}
	return have, nil
}

var alertName = regexp.MustCompile(`(?m)^ +- alert: (\S+)`)

func TestDeployRunbookExplainsEveryAlert(t *testing.T) {
	runbook := deployFile(t, "runbook.md")
	alerts := alertName.FindAllStringSubmatch(deployFile(t, "prometheus/alerts.yaml"), -1)
	if len(alerts) == 0 {
		t.Fatal("no alert found")
	}
	for _, a := range alerts {
		if !strings.Contains(runbook, "`"+strings.TrimPrefix(a[1], "Mqrouter")+"`") {
			t.Errorf("the runbook does not explain %s", a[1])
		}
	}
}

func TestDeployRulesAreValid(t *testing.T) {
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("skipped: promtool is missing")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"check", "config", "--syntax-only", "scrape.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), "promtool", args...)
		cmd.Dir = filepath.Join(repoRoot(t), "deploy/prometheus")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// TestDeployDashboardIsComplete reads the dashboard as Grafana does.
func TestDeployDashboardIsComplete(t *testing.T) {
	var board struct {
		UID    string
		Panels []struct {
			ID      int
			Type    string
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct{ List []struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(deployFile(t, "grafana/mqrouter.json")), &board); err != nil {
		t.Fatal(err)
	}
	if board.UID == "" || len(board.Panels) == 0 || len(board.Templating.List) == 0 || board.Templating.List[0].Name != "datasource" {
		t.Errorf("uid %q, %d panels, variables %v; want all of them, the datasource first", board.UID, len(board.Panels), board.Templating.List)
	}
	seen := map[int]bool{}
	for _, p := range board.Panels {
		if seen[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		if seen[p.ID] = true; p.Type != "row" && (len(p.Targets) == 0 || p.Targets[0].Expr == "") {
			t.Errorf("panel %q asks nothing", p.Title)
		}
	}
}

// newerSystemd are settings that an older systemd ignores with a word.
var newerSystemd = regexp.MustCompile(`Unknown key (name )?'(RestartSteps|RestartMaxDelaySec)'`)

func TestDeployUnitsAreValid(t *testing.T) {
	need(t, "systemd-analyze")
	for role, name := range deployRoles {
		unit := deployFile(t, "systemd/mqrouter-"+role+"@.service")
		path := filepath.Join(t.TempDir(), "mqrouter-"+role+"@"+name+".service")
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(unit, "/usr/local/bin/mqrouter", binary)), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "systemd-analyze", "verify", path)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", role, err, out)
		}
		for line := range bytes.Lines(out) {
			if bytes.Contains(line, []byte("mqrouter-"+role)) && !newerSystemd.Match(line) {
				t.Errorf("%s: %s", role, line)
			}
		}
	}
}

// TestDeployUnitsWaitForTheDrain compares the unit's patience with the grace.
func TestDeployUnitsWaitForTheDrain(t *testing.T) {
	for role := range deployRoles {
		stop := regexp.MustCompile(`(?m)^TimeoutStopSec=(\S+)`).FindStringSubmatch(deployFile(t, "systemd/mqrouter-"+role+"@.service"))
		grace := regexp.MustCompile(`(?m)^grace: (\S+)`).FindStringSubmatch(deployFile(t, "config/"+role+".yaml"))
		if stop == nil || grace == nil {
			t.Fatalf("%s: TimeoutStopSec %v, grace %v", role, stop, grace)
		}
		patience, err := time.ParseDuration(stop[1])
		if err != nil {
			t.Fatal(err)
		}
		if drain, err := time.ParseDuration(grace[1]); err != nil || patience < 2*drain {
			t.Errorf("%s: the unit waits %v and the drain takes up to %v (%v)", role, patience, drain, err)
		}
	}
}
