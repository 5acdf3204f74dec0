package node

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/config"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/zone"
)

// TestConsulIsReachedAsConfigured: an agent that speaks TLS and demands a certificate gets
// one, the token of the file and the datacenter; another token in the file is taken.
func TestConsulIsReachedAsConfigured(t *testing.T) {
	c := newCoordinated(t)
	top := parse(t, []byte(strings.Replace(withoutVoters(c.text), "driver: raft", "driver: consul", 1)))
	var mu sync.Mutex
	var asked []string // guarded by mu
	agent := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.Header.Get("X-Consul-Token")+" "+r.URL.Query().Get("dc"))
		mu.Unlock()
		if len(r.TLS.PeerCertificates) == 0 {
			t.Error("no certificate was shown")
		}
		w.Header().Set("X-Consul-Index", "1")
		w.WriteHeader(http.StatusNotFound) // there are no keys
	}))
	agent.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
	agent.StartTLS()
	defer agent.Close()
	dir := t.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	own := agent.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cert := file("cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate[0]}))
	token := file("token", []byte("first\n"))
	cfg := config.Consul{Address: agent.URL, Datacenter: "dc7", TokenFile: token, CAFile: cert, CertFile: cert,
		KeyFile: file("key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})), ServerName: "example.com"}
	b := &base{stack: newStack(), log: slog.New(slog.DiscardHandler), self: top.FindNode("g-1"), cfg: config.Node{DataDir: "data", Consul: cfg}}
	place, err := city{b, func() *zone.Topology { return top }}.consul(t.Context(), disk.NewMem())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	}()
	if terms, err := place.Terms(t.Context()); err != nil || len(terms) != 0 {
		t.Fatalf("terms %v, %v", terms, err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(asked) != 1 || asked[0] != "first dc7" {
		t.Errorf("the agent was asked with %q", asked)
	}

	for name, change := range map[string]func(*config.Consul){
		"no such token": func(c *config.Consul) { c.TokenFile = filepath.Join(dir, "none") },
		"an empty one":  func(c *config.Consul) { c.TokenFile = file("empty", []byte("\n")) },
		"two lines":     func(c *config.Consul) { c.TokenFile = file("lines", []byte("a\nb\n")) },
		"no authority":  func(c *config.Consul) { c.CAFile = filepath.Join(dir, "none") },
	} {
		bad := cfg
		change(&bad)
		x := &base{stack: newStack(), log: b.log, self: b.self, cfg: config.Node{DataDir: "data", Consul: bad}}
		if _, err := (city{x, func() *zone.Topology { return top }}).consul(t.Context(), disk.NewMem()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestTheTokenOfConsulIsReadAgain: another one is taken, a file that is none leaves the
// last one.
func TestTheTokenOfConsulIsReadAgain(t *testing.T) {
	var got string // written and read in turns
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("X-Consul-Token")
		w.WriteHeader(http.StatusNotFound)
	}))
	defer agent.Close()
	client, err := api.NewClient(&api.Config{Address: agent.URL})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "token")
	token := &consulToken{path: path, client: client, log: slog.New(slog.DiscardHandler)}
	for _, step := range []struct{ content, want string }{{"one", "one"}, {"two\n", "two"}, {"", "two"}, {"three", "three"}} {
		if err := os.WriteFile(path, []byte(step.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := token.take(); (err != nil) != (step.content == "") {
			t.Errorf("file %q: %v", step.content, err)
		}
		if _, _, err := client.KV().Get("k", nil); err != nil || got != step.want {
			t.Errorf("after %q the agent got %q, %v; want %q", step.content, got, err, step.want)
		}
	}
}

func TestAMembersTermOutlivesItsProcess(t *testing.T) {
	fs := disk.NewMem()
	m := termFile{fs: fs, dir: "data"}
	if got, err := m.Load("g"); err != nil || got.Version != 0 {
		t.Fatalf("nothing was saved: %+v, %v", got, err)
	}
	for v := range uint64(3) {
		term := coordinator.Term{Group: "g", Epoch: 4, Version: v + 1, Master: "g-1", InSync: []zone.Node{"g-1", "g-2"}, Lost: &coordinator.Loss{Epoch: 2, By: "x"}}
		if err := m.Save(term); err != nil {
			t.Fatal(err)
		}
		fs = fs.Crash(rand.New(rand.NewPCG(v, 1)))
		m.fs = fs
		if got, err := m.Load("g"); err != nil || !reflect.DeepEqual(got, term) {
			t.Errorf("got %+v, %v; saved %+v", got, err, term)
		}
	}
	if _, err := m.Load("h"); err == nil || !strings.Contains(err.Error(), `of group "g"`) {
		t.Errorf("another group's: %v", err)
	}
	f, err := fs.Create("data/" + termName)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("{"), 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := m.Load("g"); err == nil {
		t.Errorf("damaged: %+v", got)
	}
}
