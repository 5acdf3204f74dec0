package policy

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

const accessText = `
clock: {skew: 2m, offsets: [UTC, "+08:00", "-03:30"]}
anonymous:
  consume: [news]
  groups: ["news-*"]
users:
  - access_key: payments
    secrets: [payments-secret-new, payments-secret-old]
    publish: [transfer, "order-*"]
    consume: [transfer]
    groups: [transfer-credit]
  - access_key: root@ops
    secret: root-secret-root-secret
    publish: ["*"]
    consume: ["*", "%DLQ%*"]
    groups: ["*"]
`

func access(t *testing.T, text string) *Access {
	t.Helper()
	a, err := ParseAccess([]byte(text), "acl.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func user(t *testing.T, a *Access, key string) *User {
	t.Helper()
	for _, u := range a.Users() {
		if u.Key == key {
			return u
		}
	}
	t.Fatalf("no user %q", key)
	return nil
}

func TestPermissionsAreOfTopicsAndGroups(t *testing.T) {
	a := access(t, accessText)
	pay, root, nobody := user(t, a, "payments"), user(t, a, "root@ops"), user(t, a, "")
	for _, c := range []struct {
		what string
		got  bool
		want bool
	}{
		{"publish by name", pay.MayPublish("transfer"), true},
		{"publish by the beginning", pay.MayPublish("order-paid"), true},
		{"the beginning itself", pay.MayPublish("order-"), true},
		{"publish to another", pay.MayPublish("transfers"), false},
		{"publish to none", pay.MayPublish(""), false},
		{"case matters", pay.MayPublish("Transfer"), false},
		{"consume both", pay.MayConsume("transfer-credit", "transfer"), true},
		{"another group", pay.MayConsume("transfer-audit", "transfer"), false},
		{"another topic", pay.MayConsume("transfer-credit", "order-paid"), false},
		{"own dead letters", pay.MayConsume("transfer-credit", "%DLQ%transfer-credit"), true},
		{"dead letters of others", pay.MayConsume("transfer-credit", "%DLQ%transfer-audit"), false},
		{"dead letters are not published to", pay.MayPublish("%DLQ%transfer-credit"), false},
		{"all", root.MayPublish("x") && root.MayConsume("g", "x"), true},
		{"all dead letters", root.MayRead("%DLQ%anything"), true},
		{"what was parked", root.MayRead("%DLQ%"), true},
		{"anonymous consumes", nobody.MayConsume("news-1", "news"), true},
		{"anonymous does not publish", nobody.MayPublish("news"), false},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v", c.what, c.got)
		}
	}
	star := access(t, "users: [{access_key: a, secret: 0123456789abcdef, consume: ['*'], groups: [mine]}]").Users()[0]
	if star.MayRead("%DLQ%others") || star.MayRead("%DLQ%") || !star.MayRead("%DLQ%mine") {
		t.Error("* has to stand for topics, not for dead letters of others")
	}
	if n := testing.AllocsPerRun(100, func() {
		pay.MayPublish("order-paid")
		pay.MayConsume("transfer-credit", "%DLQ%transfer-credit")
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func sign(secret, date string) []byte {
	m := hmac.New(sha1.New, []byte(secret))
	m.Write([]byte(date))
	return m.Sum(nil)
}

// TestSignatureIsThatOfTheClients holds the value that an official client computed.
func TestSignatureIsThatOfTheClients(t *testing.T) {
	sum, err := hex.DecodeString("CDC23F9495439060D593C6315B75DB3C1090D7DE")
	if err != nil {
		t.Fatal(err)
	}
	if !signedBy([]byte("sk1"), Credential{Signature: sum, Date: "20261129T122859Z"}) {
		t.Error("the signature of the Node.js client is not accepted")
	}
}

func TestCredentialsAreJudged(t *testing.T) {
	a := access(t, accessText)
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	date := func(d time.Duration) string { return now.Add(d).Format("20060102T150405Z") }
	for _, c := range []struct {
		name string
		key  string
		sign string // secret
		date string
		want Proof
	}{
		{"new secret", "payments", "payments-secret-new", date(0), Accepted},
		{"old secret", "payments", "payments-secret-old", date(0), Accepted},
		{"wrong secret", "payments", "payments-secret-odd", date(0), Unproven},
		{"no second secret", "root@ops", "", date(0), Unproven},
		{"secret of another", "payments", "root-secret-root-secret", date(0), Unproven},
		{"unknown key", "nobody", "xxxxxxxxxxxxxxxx", date(0), Unproven},
		{"unknown key, wrong signature", "nobody", "x", date(0), Unproven},
		{"at the edge", "payments", "payments-secret-new", date(2 * time.Minute), Accepted},
		{"beyond the edge", "payments", "payments-secret-new", date(2*time.Minute + time.Second), OutOfTime},
		{"long ago", "payments", "payments-secret-new", date(-time.Hour), OutOfTime},
		{"local time of Shanghai", "payments", "payments-secret-new", date(8*time.Hour - time.Minute), Accepted},
		{"local time of St. John's", "payments", "payments-secret-new", date(-210 * time.Minute), Accepted},
		{"local time of nobody", "payments", "payments-secret-new", date(9 * time.Hour), OutOfTime},
		{"RFC 3339", "payments", "payments-secret-new", now.In(time.FixedZone("", 3600)).Format(time.RFC3339Nano), Accepted},
		{"RFC 3339 is the moment itself", "payments", "payments-secret-new", now.Add(8 * time.Hour).Format(time.RFC3339), OutOfTime},
		{"no date", "payments", "payments-secret-new", "", OutOfTime},
		{"date that is none", "payments", "payments-secret-new", "yesterday", OutOfTime},
		{"wrong secret, wrong date", "payments", "x", "yesterday", Unproven},
		{"anonymous", "", "", "", Accepted},
	} {
		cred := Credential{Key: c.key, Date: c.date, Signature: sign(c.sign, c.date)}
		u, proof := a.Authenticate(cred, now)
		if proof != c.want || (u != nil) != (c.want == Accepted) || u != nil && u.Key != c.key {
			t.Errorf("%s: proof %d, user %v; want %d", c.name, proof, u, c.want)
		}
		if _, still := a.Still(cred); still != (proof == Accepted || proof == OutOfTime) {
			t.Errorf("%s: still %v", c.name, still)
		}
	}
	closed := access(t, "users: [{access_key: a, secret: 0123456789abcdef}]")
	if u, proof := closed.Authenticate(Credential{}, now); u != nil || proof != Nameless {
		t.Errorf("anonymous where nothing says so: %d", proof)
	}
	if _, still := closed.Still(Credential{}); still {
		t.Error("anonymous is still somebody")
	}
}

// TestAnyOffsetIsAWholeQuarterHour: the window that a clock of any zone needs, and
// no more.
func TestAnyOffsetIsAWholeQuarterHour(t *testing.T) {
	a := access(t, "clock: {skew: 3m}\nanonymous: {}")
	off := access(t, "clock: {skew: off}\nanonymous: {}")
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for ahead, want := range map[time.Duration]bool{
		0: true, 3 * time.Minute: true, 3*time.Minute + time.Second: false, 12*time.Minute - time.Second: false, 12 * time.Minute: true,
		14 * time.Hour: true, 14*time.Hour + 3*time.Minute: true, 14*time.Hour + 15*time.Minute: false, -14 * time.Hour: true, -15 * time.Hour: false,
		345 * time.Minute: true, // Nepal
	} {
		date := now.Add(ahead).Format("20060102T150405Z")
		if got := a.InTime(date, now); got != want {
			t.Errorf("%v ahead: %v", ahead, got)
		}
		if !off.InTime(date, now) {
			t.Errorf("%v ahead with the check off", ahead)
		}
	}
}

// TestUnknownKeyCostsWhatAWrongSignatureDoes: the same work is done, so that keys
// cannot be listed by time.
func TestUnknownKeyCostsWhatAWrongSignatureDoes(t *testing.T) {
	a := access(t, accessText)
	wrong := Credential{Key: "payments", Date: "20261129T120000Z", Signature: make([]byte, sha1.Size)}
	unknown := wrong
	unknown.Key = "payment"
	work := func(c Credential) float64 {
		return testing.AllocsPerRun(50, func() { a.Authenticate(c, time.Unix(0, 0)) })
	}
	if known, not := work(wrong), work(unknown); known != not || known == 0 {
		t.Errorf("%v allocations for a key that there is, %v for another", known, not)
	}
}

func TestAccessFileFaults(t *testing.T) {
	long := strings.Repeat("s", maxSecret+1)
	for _, c := range []struct{ text, want string }{
		{"", "the file is empty"},
		{"users: []", "nobody may do anything"},
		{"user: []", "user is not a key of this file"},
		{"users: [{access_key: a, secret: 0123456789abcdef, publsh: [x]}]", "acl.yaml:1: publsh is not a key"},
		{"users: [{secret: 0123456789abcdef}]", "no access_key"},
		{"users:\n  - access_key: a/b\n    secret: 0123456789abcdef", "acl.yaml:2: access_key: 1 to 64"},
		{"users:\n  - access_key: a", "user a has no secret"},
		{"users:\n  - access_key: a\n    secret: hunter2", "acl.yaml:3: a secret of user a has 7 bytes; 16 to 256"},
		{"users: [{access_key: a, secret: " + long + "}]", "257 bytes"},
		{"users: [{access_key: a, secret: 0123456789abcdef, secrets: [0123456789abcdeg]}]", "secret and secrets"},
		{"users: [{access_key: a, secrets: [0123456789abcdef, 0123456789abcdeg, 0123456789abcdeh]}]", "at most two"},
		{"users: [{access_key: a, secret: 0123456789abcdef}, {access_key: a, secret: 0123456789abcdef}]", "twice"},
		{"users: [{access_key: a, secret: 0123456789abcdef, publish: ['a*b']}]", "one * at the end"},
		{"users: [{access_key: a, secret: 0123456789abcdef, publish: ['']}]", "is no name"},
		{"users: [{access_key: a, secret: 0123456789abcdef, groups: [x, x]}]", "groups has x twice"},
		{"users: [{access_key: a, secret: 0123456789abcdef, groups: x}]", "lists are written [a, b]"},
		{"anonymous: {publish: [[x]]}", "a text is needed"},
		{"clock: {skew: 2h}\nanonymous: {}", "clock skew"},
		{"clock: {skew: 5}\nanonymous: {}", "clock skew"},
		{"clock: {offsets: all}\nanonymous: {}", "clock offsets"},
		{"clock: {offsets: ['+08:01']}\nanonymous: {}", "clock offset"},
		{"clock: {offsets: ['+15:00']}\nanonymous: {}", "clock offset"},
		{"anonymous: {}\n---\nanonymous: {}", "more than one document"},
		{"users: [", "this is not YAML: did not find expected node content; check the text"},
	} {
		_, err := ParseAccess([]byte(c.text), "acl.yaml")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.80q: got %v, want %q", c.text, err, c.want)
		}
	}
}

// TestNoFaultShowsASecret: whatever is wrong with a file, its errors go to logs.
func TestNoFaultShowsASecret(t *testing.T) {
	const secret = "s3cr3t"
	for _, text := range []string{
		"users: [{access_key: a, secret: s3cr3t}]",
		"users: [{access_key: a, secret: [s3cr3t]}]",
		"users: [{access_key: a, secrets: s3cr3t}]",
		"users: [{access_key: a, secrets: {s3cr3t: x}}]",
		"users: [{access_key: a, secret: 's3cr3t}]",
		"users: [{access_key: a, secret: \"s3cr3t\\q\"}]",
		"users: [{access_key: a, secret: s3cr3t, secrets: [s3cr3t, s3cr3t, s3cr3t]}]",
		"users: s3cr3t",
	} {
		_, err := ParseAccess([]byte(text), "acl.yaml")
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if text := fmt.Sprintf("%v %+v", access(t, accessText).Users()[1].Name(), access(t, accessText).Users()[1].Groups()); strings.Contains(text, "secret") {
		t.Error(text)
	}
}

func FuzzParseAccess(f *testing.F) {
	f.Add([]byte(accessText))
	f.Add([]byte("users: [{access_key: a, secret: 0123456789abcdef, groups: ['*']}]"))
	f.Add([]byte("clock: {offsets: [UTC]}\nanonymous: {publish: [&a x, *a]}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := ParseAccess(data, "acl.yaml")
		if (a == nil) == (err == nil) {
			t.Fatalf("%v, %v", a, err)
		}
		if a == nil {
			return
		}
		for _, u := range a.Users() {
			u.MayConsume("g", zone.Topic("%DLQ%g"))
			u.MayPublish("t")
		}
		a.Authenticate(Credential{Key: "a", Date: string(data)}, time.Unix(0, 0))
	})
}
