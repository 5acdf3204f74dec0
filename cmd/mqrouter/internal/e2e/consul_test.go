package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
)

// consulCity is the coordinator of a city: three Consul servers whose ACL denies what is
// not granted. Each broker asks a server of its own, as one asks the agent of its host.
type consulCity struct {
	t       *testing.T
	servers []*consulServer
	root    *api.Client // may do everything
	token   string      // path of the file with the token that brokers use
}

// consulServer is one of them.
type consulServer struct {
	name, http, rpc string
	args            []string
	running         *process
}

// consulPrefix is where the keys of city-a are by default.
const consulPrefix = "mqrouter/cluster/city-a/"

const consulRoot = "6a1e6b5c-5f0e-4f6e-9d57-0c6c3b1a7f10" // initial_management, of this test only

// consulBinary returns the Consul server that deploy/test/needs.sh builds, or skips.
func consulBinary(t *testing.T) string {
	t.Helper()
	mod := readFile(t, filepath.Join(repoRoot(t), "deploy/test/consul/go.mod"))
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(home, ".cache")
	}
	sum := sha256.Sum256([]byte(mod))
	path := filepath.Join(cache, "mqrouter", "bin", "consul-"+hex.EncodeToString(sum[:])[:16])
	if _, err := os.Stat(path); err != nil {
		missing(t, "a Consul server (make needs builds it)")
	}
	return path
}

// startConsul starts the servers and makes the brokers' token.
func startConsul(t *testing.T) *consulCity {
	t.Helper()
	bin, dir := consulBinary(t), t.TempDir()
	k := &consulCity{t: t, token: filepath.Join(dir, "token")}
	ports := freePorts(t, 3*3)
	at := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	for i := range 3 {
		s := &consulServer{name: fmt.Sprintf("consul-%d", i+1), http: at(3 * i), rpc: at(3*i + 1)}
		config := filepath.Join(dir, s.name+".hcl") // a token is no argument
		text := fmt.Sprintf(`ports { http = %d server = %d serf_lan = %d dns = -1 grpc = -1 grpc_tls = -1 https = -1 serf_wan = -1 }
performance { raft_multiplier = 1 }
acl { enabled = true default_policy = "deny" tokens { initial_management = "%[4]s" agent = "%[4]s" } }
connect { enabled = false }
disable_update_check = true
leave_on_terminate = false
`, ports[3*i], ports[3*i+1], ports[3*i+2], consulRoot)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s.args = []string{bin, "agent", "-server", "-bootstrap-expect=3", "-bind=127.0.0.1", "-client=127.0.0.1", "-node", s.name,
			"-data-dir", filepath.Join(dir, s.name), "-log-level=warn", "-config-file", config,
			"-retry-join=" + at(2), "-retry-join=" + at(5), "-retry-join=" + at(8)}
		k.servers = append(k.servers, s)
		k.up(s)
	}
	k.root = k.client(k.servers[0])
	eventually(t, "Consul's ACL answers", 2*time.Minute, func() error {
		rules := fmt.Sprintf("key_prefix %q { policy = \"write\" }", consulPrefix)
		if _, _, err := k.root.ACL().PolicyCreate(&api.ACLPolicy{Name: "mqrouter", Rules: rules}, nil); err != nil && !strings.Contains(err.Error(), "already exists") {
			return err
		}
		token, _, err := k.root.ACL().TokenCreate(&api.ACLToken{Policies: []*api.ACLTokenPolicyLink{{Name: "mqrouter"}}}, nil)
		if err != nil {
			return err
		}
		return os.WriteFile(k.token, []byte(token.SecretID+"\n"), 0o600)
	})
	return k
}

func (k *consulCity) client(s *consulServer) *api.Client {
	c, err := api.NewClient(&api.Config{Address: s.http, Token: consulRoot})
	if err != nil {
		k.t.Fatal(err)
	}
	return c
}

// up starts a server, or starts it again.
func (k *consulCity) up(s *consulServer) {
	s.running = start(k.t, s.name, nil, s.args[0], s.args[1:]...)
}

// leader is the server that leads.
func (k *consulCity) leader() *consulServer {
	k.t.Helper()
	var found *consulServer
	eventually(k.t, "Consul has a leader", time.Minute, func() error {
		var errs []error
		for _, s := range k.servers {
			at, err := k.client(s).Status().Leader()
			if i := slices.IndexFunc(k.servers, func(x *consulServer) bool { return x.rpc == at }); i >= 0 {
				found = k.servers[i]
				return nil
			}
			errs = append(errs, err)
		}
		return errors.Join(append(errs, errors.New("nobody names one of the servers"))...)
	})
	return found
}

// signal sends a signal to all servers.
func (k *consulCity) signal(sig syscall.Signal) {
	for _, s := range k.servers {
		s.signal(sig)
	}
}

func (s *consulServer) signal(sig syscall.Signal) { syscall.Kill(s.running.cmd.Process.Pid, sig) }

// forget deletes what Consul has of the city's groups.
func (k *consulCity) forget() {
	k.t.Helper()
	if _, err := k.root.KV().DeleteTree(consulPrefix, nil); err != nil {
		k.t.Fatal(err)
	}
}

// underConsul makes Consul the coordinator of a cluster's replicated group. The nodes are
// given what they need of it.
func underConsul(t *testing.T, c *cluster, k *consulCity) {
	t.Helper()
	was := readFile(t, c.topology())
	text := strings.Replace(was, fmt.Sprintf("driver: raft, voters: [%s]", strings.Join(members, ", ")), "driver: consul", 1)
	if text == was {
		t.Fatal("the topology is not as this expects")
	}
	if err := os.WriteFile(c.topology(), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	must(t, nil, "topology", "validate", c.topology())
	more := c.args
	c.args = func(n *clusterNode) []string {
		var args []string
		if more != nil {
			args = more(n)
		}
		if n.role != "broker" {
			return args
		}
		at := max(slices.Index(members, n.name), 0)
		return append(args, "--consul", k.servers[at].http, "--consul-token-file", k.token)
	}
}
