package e2e

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// scenarios are what every official client goes through, the longest first. Times
// are the client's own; a scenario is judged by what its client saw.
var scenarios = slices.Concat(fifoScenarios, lostScenarios, normalScenarios, delayScenarios, transactionScenarios, filterScenarios, accessScenarios, liteScenarios, oddScenarios, largeScenarios)

// normalScenarios have messages that are neither ordered nor wait for anything.
var normalScenarios = []scenario{
	{name: "routes", cities: true, run: routes},
	{name: "tls", run: overTLS},
	{name: "tags", far: true, run: tagFilter},
	{name: "content", far: true, run: content},
	{name: "retry", far: true, run: retry},
	{name: "dead letter", attempts: 2, far: true, run: deadLetter},
	{name: "invisible", far: true, run: invisible},
	{name: "short poll", run: shortPoll},
	{name: "refusals", run: refusals},
	{name: "restart", run: clientRestart},
	{name: "readme", cities: true, run: readmeProgram},
}

// TestOfficialClients runs every scenario with every official client, the
// clients beside each other, on one deployment.
func TestOfficialClients(t *testing.T) {
	d := conformanceDev(t)
	t.Run("all", func(t *testing.T) {
		for _, l := range languages {
			t.Run(l.name, func(t *testing.T) {
				t.Parallel()
				if !l.there(t) {
					t.Skip("skipped: its client is missing")
				}
				driver := startDriver(t, l, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH="+filepath.Join(d.dir, "pki", "ca.pem"))
				play(t, scenarios, func(t *testing.T, name string) *stage {
					return &stage{T: t, d: driver, at: d.addr, admin: d.env(), scenario: name}
				})
			})
		}
	})
}

// routes publishes in an RZone of Shanghai and receives, with both kinds of
// consumers, where the route of the topic says.
func routes(s *stage) {
	producer := s.producer(rz01, "orders", "transfer", "directed", "ledger", "member")
	for _, c := range []struct {
		name  string
		topic string
		props map[string]string
		at    []int // where it lands
	}{
		{"in the zone", "orders", nil, []int{rz01}},
		{"to another zone of the city", "transfer", map[string]string{"userId": "20250025"}, []int{rz02}},
		{"to a zone of another city", "transfer", map[string]string{"userId": "20250065"}, []int{rz04}},
		{"to a named city", "directed", map[string]string{"destination": "hangzhou"}, []int{czHZ}},
		{"to the active GZone", "ledger", nil, []int{gz01}},
		{"to the CZone of every city", "member", map[string]string{"mqr.op": "none"}, []int{czSH, czHZ, czSZ}},
	} {
		const count = 6
		tag := s.tag() + strings.ReplaceAll(c.name, " ", "-")
		consumers := map[string]func(string, int) map[string]seen{}
		for _, port := range c.at {
			consumers[s.consumer("push", port, c.topic, tag)] = s.pushed
			consumers[s.consumer("simple", port, c.topic, tag)] = s.take
		}
		var sent []string
		for i := range count {
			sent = append(sent, s.send(producer, message{topic: c.topic, body: fmt.Sprint(c.name, i), tag: tag, properties: c.props}))
		}
		for consumer, take := range consumers {
			s.same(consumer+", "+c.name, take(consumer, count), sent)
		}
	}
}

// overTLS is the main path over TLS on the port that takes plaintext as well.
func overTLS(s *stage) {
	tls := map[string]any{"tls": true}
	push := s.consumer("push", rz01, "orders", s.tag(), tls)
	simple := s.consumer("simple", rz01, "orders", s.tag(), tls)
	producer := s.open("producer", map[string]any{"endpoint": s.at(rz01), "topics": []string{"orders"}, "attempts": 1, "tls": true})
	var sent []string
	for range 3 {
		sent = append(sent, s.send(producer, message{topic: "orders", body: "over TLS", tag: s.tag()}))
	}
	s.same("push", s.pushed(push, len(sent)), sent)
	s.same("simple", s.take(simple, len(sent)), sent)
}

// tagFilter asks for two tags of three.
func tagFilter(s *stage) {
	topic, to := s.plain()
	tag := s.tag()
	filter := tag + "-a || " + tag + "-b"
	push := s.consumer("push", s.there(), topic, filter)
	simple := s.consumer("simple", s.there(), topic, filter)
	producer := s.producer(rz01, topic)
	var sent []string
	for i := range 9 {
		kind := "abc"[i%3 : i%3+1]
		if id := s.send(producer, message{topic: topic, body: kind, tag: tag + "-" + kind, properties: to}); kind != "c" {
			sent = append(sent, id)
		}
	}
	s.same("push", s.pushed(push, len(sent)), sent)
	s.same("simple", s.take(simple, len(sent)), sent)
	if again := s.receive(simple, 15*time.Second); len(again) > 0 {
		s.Errorf("after the last message came %v", again)
	}
}

// content sends what is awkward and compares every field.
func content(s *stage) {
	topic, to := s.plain()
	push := s.consumer("push", s.there(), topic, s.tag())
	simple := s.consumer("simple", s.there(), topic, s.tag())
	producer := s.producer(rz01, topic)
	many := map[string]string{}
	for i := range 64 {
		many[fmt.Sprint("property-", i)] = strings.Repeat("v", i+1)
	}
	want := map[string]message{}
	for _, m := range []message{
		{body: "\x00"},
		{body: " "},
		{body: "支付 10 元 – ¥ 🚀", keys: []string{"订单-1", "ключ 2", "🚀"}, properties: map[string]string{"名称": "值 ¥", "emoji🚀": "✓"}},
		{body: "many", properties: many},
		{body: strings.Repeat("compressible ", 10_000)},
		{body: "\xff\xfe\x00\x1f\x8b not text"},
	} {
		m.topic, m.tag, m.properties = topic, s.tag(), with(to, m.properties)
		want[s.send(producer, m)] = m
	}
	// As a client that compresses would send it: receivers see what was inside.
	packed := message{topic: topic, body: strings.Repeat("inside ", 1000), tag: s.tag(), properties: to}
	want[s.sendGzip(packed)] = packed

	for who, got := range map[string]map[string]seen{"push": s.pushed(push, len(want)), "simple": s.take(simple, len(want))} {
		s.same(who, got, slices.Collect(maps.Keys(want)))
		for id, m := range want {
			g := got[id]
			if g.SHA256 != fmt.Sprintf("%x", sha256.Sum256([]byte(m.body))) {
				s.Errorf("%s: body %q of %d bytes, sent %.40q", who, g.Body, g.Size, m.body)
			}
			if keys := slices.Sorted(slices.Values(m.keys)); !slices.Equal(slices.Sorted(slices.Values(g.Keys)), keys) {
				s.Errorf("%s: keys %q, sent %q", who, g.Keys, keys)
			}
			if !maps.Equal(g.Properties, m.properties) {
				s.Errorf("%s: properties %q, sent %q", who, g.Properties, m.properties)
			}
			if g.Tag != s.tag() || g.Attempt != 1 {
				s.Errorf("%s: tag %q, attempt %d", who, g.Tag, g.Attempt)
			}
		}
	}
}

// sendGzip publishes with Go, compressed.
func (s *stage) sendGzip(m message) string {
	s.Helper()
	p, err := rocketmqclient.NewProducer(s.Context(), rocketmqclient.Config{Endpoint: s.at(rz01)}, m.topic)
	s.must("start a producer", err)
	defer p.Close()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(m.body)); err != nil {
		s.Fatal(err)
	}
	s.must("compress", w.Close())
	r, err := p.Send(s.Context(), &rocketmqclient.Message{Topic: m.topic, Body: b.Bytes(), Tag: m.tag, Properties: m.properties, Encoding: pb.Encoding_GZIP})
	s.must("send", err)
	return r.MessageID
}

// retry fails two deliveries of each message: it comes again with its attempts
// counted, and is consumed once.
func retry(s *stage) {
	topic, to := s.plain()
	push := s.consumer("push", s.there(), topic, s.tag(), map[string]any{"fail": 2})
	simple := s.consumer("simple", s.there(), topic, s.tag())
	producer := s.producer(rz01, topic)
	var sent []string
	for range 3 {
		sent = append(sent, s.send(producer, message{topic: topic, body: "fails twice", tag: s.tag(), properties: to}))
	}
	done := map[string]seen{}
	attempts := map[string][]int{}
	for end := time.Now().Add(waitMost); len(done) < len(sent) && time.Now().Before(end); {
		for _, m := range s.receive(simple, 30*time.Second) {
			attempts[m.MessageID] = append(attempts[m.MessageID], m.Attempt)
			if m.Attempt <= 2 {
				s.must("change the invisible time", s.invisible(simple, m, time.Second))
				continue
			}
			s.must("ack", s.ack(simple, m))
			done[m.MessageID] = m
		}
	}
	s.same("simple", done, sent)
	s.same("push", s.pushed(push, len(sent)), sent)
	all, _ := s.d.deliveries(push)
	pushed := map[string][]int{}
	for _, d := range all {
		pushed[d.Message.MessageID] = append(pushed[d.Message.MessageID], d.Message.Attempt)
	}
	for _, id := range sent {
		if want := []int{1, 2, 3}; !slices.Equal(attempts[id], want) || !slices.Equal(pushed[id], want) {
			s.Errorf("%s: attempts %v (simple) and %v (push), want %v", id, attempts[id], pushed[id], want)
		}
	}
}

// deadLetter fails every delivery: after the group's last attempt the message is
// in the group's dead-letter topic, whole, and is not delivered any more.
func deadLetter(s *stage) {
	topic, to := s.plain()
	push := s.consumer("push", s.there(), topic, s.tag(), map[string]any{"fail": 99})
	producer := s.producer(rz01, topic)
	sent := []string{s.send(producer, message{topic: topic, body: "poison", tag: s.tag(), keys: []string{"k"}, properties: with(to, map[string]string{"p": "v"})})}
	letters := s.consumer("simple", s.there(), "%DLQ%"+groupName(s.d.lang, s.scenario, "push"), "*")
	got := s.take(letters, len(sent))
	s.same("dead letters", got, sent)
	if m := got[sent[0]]; string(m.Body) != "poison" || m.Properties["p"] != "v" || !slices.Equal(m.Keys, []string{"k"}) || m.Tag != s.tag() {
		s.Errorf("dead letter %+v", m)
	}
	if all, _ := s.d.deliveries(push); len(all) != 2 {
		s.Errorf("%d deliveries before it was a dead letter, want 2: %v", len(all), all)
	}
}

// invisible shortens a delivery's time: the message comes again, its old handle is
// void and the new one good.
func invisible(s *stage) {
	topic, to := s.plain()
	simple := s.consumer("simple", s.there(), topic, s.tag())
	producer := s.producer(rz01, topic)
	id := s.send(producer, message{topic: topic, body: "later", tag: s.tag(), properties: to})
	next := func() seen {
		for end := time.Now().Add(waitMost); time.Now().Before(end); {
			if got := s.receive(simple, time.Minute); len(got) > 0 {
				return got[0]
			}
		}
		s.Fatal("the message does not come")
		return seen{}
	}
	first := next()
	s.must("lengthen", s.invisible(simple, first, 2*time.Minute))
	s.must("shorten", s.invisible(simple, first, time.Second)) // with the handle that the client took over
	second := next()
	if first.MessageID != id || second.MessageID != id || first.Attempt != 1 || second.Attempt != 2 {
		s.Errorf("deliveries %+v and %+v of %s", first, second, id)
	}
	if err := s.ack(simple, first); err == nil {
		s.Errorf("the first delivery was acknowledged after the second was handed out")
	}
	s.must("ack", s.ack(simple, second))
	if _, err := s.tryReceive(simple, time.Second); err == nil {
		s.Errorf("an invisible time below 10 s was accepted")
	}
}

// shortPoll asks for no more than a second's wait: the answer is that nothing is there.
func shortPoll(s *stage) {
	simple := s.consumer("simple", rz01, "orders", s.tag(), map[string]any{"await": 1000})
	if got := s.receive(simple, 30*time.Second); len(got) > 0 {
		s.Errorf("nothing was sent, and came %s", bodies(got))
	}
}

// refusals asks for what is not there, or not to be had: each answer says what is
// wrong, and the producer goes on.
func refusals(s *stage) {
	producer := s.producer(rz01, "orders")
	for _, m := range []message{{body: "in order", group: "g"}, {body: "later", delay: 20 * time.Second}} {
		m.topic = "orders"
		s.refused(producer, m, "message type not match")
	}
	for _, topic := range []string{"no-such-topic", "%DLQ%orders-billing", "%RETRY%orders-billing", "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX"} {
		// Node.js and Java pass on what the server says of a topic that is not there,
		// Python does not; of one that cannot be written each has words of its own.
		s.refused(producer, message{topic: topic, body: "to the system"}, "the topology does not declare the topic "+topic, "No topic route info", "cannot access system topic", "failed to fetch topic:"+topic,
			`"max" is out of range`, "no writable message queue", "no available message queues")
	}
	s.send(producer, message{topic: "orders", body: "the next one", tag: s.tag()})
}

// clientRestart ends producer and consumers and starts them anew with work waiting:
// nothing is lost, and what was acknowledged does not come again.
func clientRestart(s *stage) {
	const half = 4
	shut := func(client string) { s.must("close", s.d.call("close", map[string]any{"client": client}, nil)) }
	one := func(consume string, take func(string, int) map[string]seen) {
		start := func(kind string, fields map[string]any) string {
			fields["client"], fields["endpoint"] = s.name(kind), s.at(rz01)
			s.must("start a "+kind, s.d.call(kind, fields, nil))
			return fields["client"].(string)
		}
		var sent []string
		got := map[string]seen{}
		for round := range 2 {
			producer := start("producer", map[string]any{"topics": []string{"orders"}, "attempts": 1})
			for range half {
				sent = append(sent, s.send(producer, message{topic: "orders", body: "before and after", tag: s.tag() + consume}))
			}
			shut(producer)
			name := start(consume, map[string]any{"group": groupName(s.d.lang, s.scenario, consume), "topics": map[string]string{"orders": s.tag() + consume}, "await": 3000})
			for id, m := range take(name, half) {
				if _, twice := got[id]; twice {
					s.Errorf("%s: %s came again after it was acknowledged", consume, id)
				}
				got[id] = m
			}
			if round == 0 {
				shut(name)
			} else {
				s.d.closing.Go(func() { s.d.close(name) })
			}
		}
		s.same(consume, got, sent)
	}
	one("simple", s.take)
	one("push", s.pushed)
}

// readmeProgram runs the program that the README has for this language.
func readmeProgram(s *stage) {
	simple := s.consumer("simple", rz04, "transfer", "*")
	file, block, program, args := s.d.lang.script(s.T)
	text := strings.ReplaceAll(readmeBlock(s.T, block), "127.0.0.1:8081", s.at(rz01))
	dir := s.TempDir()
	if s.d.lang.name == "node" { // finds its packages beside the program
		if err := os.Symlink(filepath.Join(clientsDir(s.T), "node", "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
			s.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
		s.Fatal(err)
	}
	p := startIn(s.T, dir, file, []string{"HOME=" + dir}, program, append(args, file)...)
	select {
	case <-p.done:
	case <-time.After(waitMost):
		s.Fatalf("%s does not end", file)
	}
	if p.err != nil {
		s.Errorf("%s: %v", file, p.err)
	}
	body := text[strings.Index(text, "pay 10 from "):]
	body = body[:strings.IndexAny(body, `'"`)]
	for end := time.Now().Add(waitMost); ; {
		got := s.receive(simple, 15*time.Second)
		if slices.ContainsFunc(got, func(m seen) bool { return string(m.Body) == body }) {
			return
		}
		if time.Now().After(end) {
			s.Fatalf("%q does not arrive", body)
		}
	}
}

// readmeBlock returns the README's block of code in a language.
func readmeBlock(t *testing.T, language string) string {
	t.Helper()
	_, after, found := strings.Cut(readFile(t, filepath.Join(repoRoot(t), "README.md")), "\n```"+language+"\n")
	block, _, closed := strings.Cut(after, "```")
	if !found || !closed {
		t.Fatalf("the README has no block in %s", language)
	}
	return block
}
