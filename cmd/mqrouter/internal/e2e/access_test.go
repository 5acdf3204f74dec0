package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/zone/sample"
)

const (
	accessKey    = "service"
	accessSecret = "secret-of-the-service"
)

// accessFile lets the service do what the scenario does, with the secrets given.
func accessFile(secrets ...string) string {
	return fmt.Sprintf(`
users:
  - access_key: %s
    secrets: [%s]
    publish: [transfer]
    consume: ["trans*"]
    groups: ["access-*"]
`, accessKey, strings.Join(secrets, ", "))
}

// accessDev runs the sample deployment with an access file and a consumer group for
// each language.
func accessDev(t *testing.T) (d *deployment, file string) {
	t.Helper()
	dir := t.TempDir()
	topology, file := filepath.Join(dir, "topology.yaml"), filepath.Join(dir, "acl.yaml")
	text := string(sample.YAML)
	for _, l := range languages {
		text += fmt.Sprintf("  - {name: access-%s, topics: [transfer], max_attempts: 16, retry: {steps: [1s]}}\n", l.name)
	}
	for path, text := range map[string]string{topology: text, file: accessFile(accessSecret)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d = &deployment{dir: filepath.Join(dir, "dev"), offset: offsetFor(t)}
	d.process = start(t, "mqrouter dev", nil, binary, "dev", "--dir", d.dir, "--topology", topology, "--acl", file, "--port-offset", fmt.Sprint(d.offset))
	d.await(t, "Ctrl-C stops it", 2*time.Minute)
	return d, file
}

// TestClocksOfOtherZonesAndNewSecrets: what each client signs is accepted by the clock
// of Kathmandu, which is a quarter hour off the full one; a secret is changed while
// clients go on; the log says who is refused and no secret.
func TestClocksOfOtherZonesAndNewSecrets(t *testing.T) {
	d, file := accessDev(t)
	t.Run("all", func(t *testing.T) {
		for _, l := range languages {
			t.Run(l.name, func(t *testing.T) {
				t.Parallel()
				if !l.there(t) {
					t.Skip("skipped: its client is missing")
				}
				farClock(&stage{T: t, d: startDriver(t, l, "TZ=Asia/Kathmandu"), at: d.addr, scenario: "far clock"})
			})
		}
	})
	// A secret that is going out of use: both are good, then the new one only.
	const renewed = "new-secret-of-the-service"
	for _, c := range []struct{ secrets, good, bad []string }{
		{[]string{renewed, accessSecret}, []string{renewed, accessSecret}, nil},
		{[]string{renewed}, []string{renewed}, []string{accessSecret}},
	} {
		if err := os.WriteFile(file, []byte(accessFile(c.secrets...)), 0o600); err != nil {
			t.Fatal(err)
		}
		send := func(secret string) error {
			_, err := mqrouter(t, append(d.env(), "MQROUTER_ACCESS_KEY="+accessKey, "MQROUTER_SECRET_KEY="+secret),
				"publish", "--zone", "rz01", "--topic", "transfer", "--property", "userId=20250005", "x")
			return err
		}
		for end := time.Now().Add(waitMost); time.Now().Before(end); { // the brokers have read the file
			if send(renewed) == nil && (len(c.bad) == 0 || send(accessSecret) != nil) {
				break
			}
		}
		for _, secret := range c.good {
			if err := send(secret); err != nil {
				t.Errorf("with %v in force: %v", c.secrets, err)
			}
		}
		for _, secret := range c.bad {
			if err := send(secret); err == nil || !strings.Contains(err.Error(), "UNAUTHORIZED") {
				t.Errorf("with %v in force, %s got %v", c.secrets, secret, err)
			}
		}
	}
	log, err := os.ReadFile(filepath.Join(d.dir, "mqrouter.log"))
	if err != nil {
		t.Fatal(err)
	}
	for text, there := range map[string]bool{"client not known": true, "access_key=" + accessKey: true, accessSecret: false, renewed: false} {
		if strings.Contains(string(log), text) != there {
			t.Errorf("%q in the log: %v", text, !there)
		}
	}
}

// farClock is the story of one client.
func farClock(s *stage) {
	with := func(fields map[string]any) map[string]any {
		fields["attempts"], fields["await"] = 1, 3000
		fields["accessKey"], fields["secretKey"] = accessKey, accessSecret
		return fields
	}
	group := "access-" + s.d.lang.name
	consumer := s.open("simple", with(map[string]any{"endpoint": s.at(rz04), "group": group, "topics": map[string]string{"transfer": s.tag()}}))
	push := s.open("push", with(map[string]any{"endpoint": s.at(rz01), "group": group, "topics": map[string]string{"transfer": s.tag()}}))
	producer := s.open("producer", with(map[string]any{"endpoint": s.at(rz01), "topics": []string{"transfer"}}))
	far := s.send(producer, message{topic: "transfer", body: "to Hangzhou", tag: s.tag(), properties: map[string]string{"userId": "20250065"}})
	near := s.send(producer, message{topic: "transfer", body: "at home", tag: s.tag(), properties: map[string]string{"userId": "20250005"}})
	s.same("the consumer in Hangzhou", s.take(consumer, 1), []string{far})
	s.same("the push consumer", s.pushed(push, 1), []string{near})
}
