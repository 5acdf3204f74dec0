package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/zone/sample"
)

// conformanceTopic is a topic for the scenarios.
type conformanceTopic struct {
	name string
	kind string // normal, fifo, ...
	keys string // its other keys in the topology; empty: it is in the sample
}

var conformanceTopics = []conformanceTopic{
	{"orders", "normal", ""},
	{"transfer", "normal", ""},
	{"directed", "normal", ""},
	{"ledger", "normal", ""},
	{"member", "normal", ""},
	{slimTopic, "normal", "route: {shard: {property: userId}}, max_body: 4032KiB"},
	{hugeTopic, "normal", "route: {shard: {property: userId}}, max_body: 7MiB"},
	{onceTopic, "normal", "route: {shard: {property: userId}}, idempotent: 10m"},
	{onceFIFOTopic, "fifo", "route: {shard: {property: userId}}, idempotent: 10m"},
	{"small", "normal", "route: local, max_body: 1KiB"},
	{priorityTopic, "priority", "route: {shard: {property: userId}}"},
	{guardedTopic, "normal", "route: {shard: {property: userId}}"},
	{fifoTopic, "fifo", ""},
	{liteTopic, "lite", "route: {shard: {property: userId}}"},
	{tightTopic + "node", "lite", "route: local, lite: {topics: 2, subscriptions: 2}"},
	{tightTopic + "python", "lite", "route: local, lite: {topics: 2, subscriptions: 2}"},
	{tightTopic + "java", "lite", "route: local, lite: {topics: 2, subscriptions: 2}"},
	{delayTopic, "delay", ""},
	{transactionTopic, "transaction", ""},
	{"checked-node", "transaction", "route: {shard: {property: userId}}, transaction: {immunity: 1s, interval: 1s, checks: 5}"},
	{"checked-python", "transaction", "route: {shard: {property: userId}}, transaction: {immunity: 1s, interval: 1s, checks: 5}"},
	{"checked-java", "transaction", "route: {shard: {property: userId}}, transaction: {immunity: 1s, interval: 1s, checks: 5}"},
}

// conformanceDev runs the sample deployment with topics for the scenarios and
// consumer groups for each language, scenario and kind of consumer: none sees
// what is another's.
func conformanceDev(t *testing.T) *deployment {
	t.Helper()
	var topics string
	var names []string
	for _, c := range conformanceTopics {
		names = append(names, c.name)
		if c.keys != "" {
			topics += fmt.Sprintf("  - {name: %s, kind: %s, %s}\n", c.name, c.kind, c.keys)
		}
	}
	text := roomy.ReplaceAllString(string(sample.YAML), "$0$1  max_body: 7MiB\n")
	text = strings.Replace(text, "\nconsumer_groups:\n", "\n"+topics+"\nconsumer_groups:\n", 1)
	for _, g := range conformanceGroups() {
		text += fmt.Sprintf("  - {name: %s, topics: [%s], max_attempts: %d, fifo: %t, retry: {steps: [1s]}, lite: %s}\n", g.name, strings.Join(names, ", "), g.attempts, g.fifo, cmp.Or(g.lite, "shared"))
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "conformance.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	d := &deployment{dir: filepath.Join(dir, "dev"), offset: offsetFor(t)}
	d.process = start(t, "mqrouter dev", nil, binary, "dev", "--dir", d.dir, "--topology", file, "--acl", conformanceAccess(t, dir), "--port-offset", fmt.Sprint(d.offset))
	d.await(t, "Ctrl-C stops it", 2*time.Minute)
	return d
}

// roomy finds the names of the sample's cities and zones of consumers, to let larger
// bodies pass there than is usual.
var roomy = regexp.MustCompile(`(?m)^( +)- name: (?:shanghai|hangzhou|shenzhen|rz\d\d)\n`)

// conformanceGroup is a consumer group of a language, scenario and kind of consumer.
type conformanceGroup struct {
	name     string
	attempts int
	fifo     bool
	lite     string
}

func conformanceGroups() []conformanceGroup {
	var all []conformanceGroup
	for _, l := range languages {
		for _, s := range scenarios {
			for _, name := range s.names() {
				for _, kind := range []string{"push", "simple"} {
					all = append(all, conformanceGroup{groupName(l, name, kind), cmp.Or(s.attempts, 16), s.fifo, s.lite})
				}
			}
		}
	}
	return all
}

func groupName(l language, scenario, kind string) string {
	return strings.ReplaceAll(l.name+"-"+scenario+"-"+kind, " ", "-")
}

// scenario is one story that every official client lives through.
type scenario struct {
	name     string
	attempts int    // of its consumer groups; 0 means 16
	fifo     bool   // its consumer groups consume in order
	lite     string // how its consumer groups get lite topics; empty means shared
	far      bool   // lives again with the consumers in a city that is not the producer's
	cities   bool   // needs zones and cities: Apache RocketMQ has none
	run      func(*stage)
}

// names are the scenario's and, with its consumers in another city, that one's.
func (s scenario) names() []string {
	if s.far {
		return []string{s.name, s.name + farSuffix}
	}
	return []string{s.name}
}

const farSuffix = " far"

// stage is a scenario's view of one client and the deployment.
type stage struct {
	*testing.T
	d        *driver
	at       func(port int) string // address of a documented client port
	apache   *comparison           // with what mqrouter does; nil when this is mqrouter
	admin    []string              // environment of `mqrouter` to ask it; nil when this is not mqrouter
	scenario string
	leave    bool          // clients are not closed, they end with their driver
	patience time.Duration // for how long a client that does not start is started again
	clients  int           // made until now
}

// play lives through scenarios with one client, several beside each other since
// most of them wait most of the time.
func play(t *testing.T, scenes []scenario, stageOf func(t *testing.T, name string) *stage) {
	var beside sync.WaitGroup
	defer beside.Wait()
	free := make(chan struct{}, scenesBeside)
	for _, s := range scenes {
		for _, name := range s.names() {
			free <- struct{}{}
			beside.Go(func() {
				defer func() { <-free }()
				t.Run(name, func(t *testing.T) {
					s, stage := s, stageOf(t, name)
					defer stage.report()
					s.run(stage)
				})
			})
		}
	}
}

// scenesBeside bounds the scenarios of a language at a time: its clients have to
// start within their time on two cores.
const scenesBeside = 4

// far reports whether the scenario's consumers are in another city.
func (s *stage) far() bool { return strings.HasSuffix(s.scenario, farSuffix) }

// there is the client port of the zone where the scenario's consumers are.
func (s *stage) there() int {
	if s.far() {
		return rz04
	}
	return rz01
}

// to are the properties that route a message to the scenario's consumers, for
// topics that look for a user, an account, a member or a payer.
func (s *stage) to() map[string]string {
	user := "20250005"
	if s.far() {
		user = "20250065"
	}
	return map[string]string{"userId": user, "accountId": user, "memberId": user, "payerId": user}
}

// plain is a topic of kind normal with nothing special about it, and the properties
// that its messages need to get to the scenario's consumers.
func (s *stage) plain() (topic string, to map[string]string) {
	if s.far() {
		return "transfer", s.to()
	}
	return "orders", nil
}

// with returns properties with others added to them.
func with(to, more map[string]string) map[string]string {
	all := maps.Clone(more)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, to)
	return all
}

// rz01 and the like are the documented client ports of the sample's zones.
const (
	rz01     = 8081
	rz02     = 8083
	gz01     = 8084
	czSH     = 8085
	rz04     = 8087
	czHZ     = 8089
	czSZ     = 8091
	rz01b    = 8082
	waitMost = time.Minute // bounds a hang; nothing is promised
)

// message is what a scenario sends.
type message struct {
	topic      string
	body       string
	size       int // instead of body
	tag        string
	keys       []string
	properties map[string]string
	group      string        // message group
	delay      time.Duration // from now
	priority   *int
	lite       string // lite topic
}

// fields are the message's in a request to a driver.
func (m message) fields(client string) map[string]any {
	fields := map[string]any{"client": client, "topic": m.topic}
	if m.size > 0 {
		fields["size"] = m.size
	} else {
		fields["body"] = []byte(m.body)
	}
	set := func(name string, isSet bool, value any) {
		if isSet {
			fields[name] = value
		}
	}
	set("tag", m.tag != "", m.tag)
	set("keys", m.keys != nil, m.keys)
	set("properties", m.properties != nil, m.properties)
	set("messageGroup", m.group != "", m.group)
	set("delay", m.delay > 0, m.delay.Milliseconds())
	set("priority", m.priority != nil, m.priority)
	set("liteTopic", m.lite != "", m.lite)
	return fields
}

// must fails the scenario on an error of the client.
func (s *stage) must(what string, err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

// name makes a name for a client that no other scenario has.
func (s *stage) name(kind string) string {
	s.clients++
	return fmt.Sprintf("%s/%s/%d", s.scenario, kind, s.clients)
}

// tag is the scenario's own, since topics are shared.
func (s *stage) tag() string { return groupName(s.d.lang, s.scenario, "tag") }

// open makes a client, which is closed with the scenario. The push consumers of
// Node.js and Java then wait for their open polls, so nobody waits for them here.
func (s *stage) open(kind string, fields map[string]any) string {
	s.Helper()
	name := s.name(kind)
	fields["client"] = name
	for end := time.Now().Add(s.patience); ; {
		err := s.d.call(kind, fields, nil)
		var thrown *clientError
		if errors.As(err, &thrown) && time.Now().Before(end) {
			hold(time.Second) // as whoever runs the program would
			continue
		}
		s.must("start a "+kind, err)
		break
	}
	if !s.leave {
		s.Cleanup(func() { s.d.closing.Go(func() { s.d.close(name) }) })
	}
	return name
}

func (s *stage) producer(port int, topics ...string) string {
	s.Helper()
	return s.open("producer", map[string]any{"endpoint": s.at(port), "topics": topics, "attempts": 1})
}

// consumer is a consumer that takes the scenario's messages.
func (s *stage) consumer(kind string, port int, topic, tags string, extra ...map[string]any) string {
	s.Helper()
	fields := map[string]any{"endpoint": s.at(port), "group": groupName(s.d.lang, s.scenario, kind), "topics": map[string]string{topic: tags}, "await": 3000}
	for _, e := range extra {
		maps.Copy(fields, e)
	}
	return s.open(kind, fields)
}

// trySend sends a message. One that met no connection was not sent: the Node.js client
// says so at once while it makes another one, and is given some seconds for that.
func (s *stage) trySend(producer string, m message) (string, error) {
	var out struct{ MessageID string }
	for deadline := time.Now().Add(10 * time.Second); ; <-time.After(200 * time.Millisecond) {
		err := s.d.call("send", m.fields(producer), &out)
		if err == nil || time.Now().After(deadline) || !strings.Contains(err.Error(), "No connection established") {
			return out.MessageID, err
		}
	}
}

func (s *stage) send(producer string, m message) string {
	s.Helper()
	id, err := s.trySend(producer, m)
	s.must("send to "+m.topic, err)
	return id
}

// refused sends what must fail with an error that names the reason.
func (s *stage) refused(producer string, m message, reasons ...string) {
	s.Helper()
	id, err := s.trySend(producer, m)
	var thrown *clientError
	if !errors.As(err, &thrown) {
		s.Errorf("%s got %q and error %v, want the client's error about %q", m.topic, id, err, reasons)
		return
	}
	text := strings.ToLower(err.Error())
	if !slices.ContainsFunc(reasons, func(r string) bool { return strings.Contains(text, strings.ToLower(r)) }) {
		s.Errorf("refused with %q, want one of %q", err, reasons)
	}
}

// receive takes what is there, for at most the consumer's await time.
func (s *stage) receive(consumer string, invisible time.Duration) []seen {
	s.Helper()
	got, err := s.tryReceive(consumer, invisible)
	s.must("receive", err)
	return got
}

func (s *stage) tryReceive(consumer string, invisible time.Duration) ([]seen, error) {
	var out struct{ Messages []seen }
	err := s.d.call("receive", map[string]any{"client": consumer, "max": 16, "invisible": invisible.Milliseconds()}, &out)
	return out.Messages, err
}

func (s *stage) ack(consumer string, m seen) error {
	return s.d.call("ack", map[string]any{"client": consumer, "ref": m.Ref}, nil)
}

func (s *stage) invisible(consumer string, m seen, d time.Duration) error {
	return s.d.call("invisible", map[string]any{"client": consumer, "ref": m.Ref, "invisible": d.Milliseconds()}, nil)
}

// take receives and acknowledges until n different messages have come.
func (s *stage) take(consumer string, n int) map[string]seen {
	s.Helper()
	got := map[string]seen{}
	for end := time.Now().Add(waitMost); len(got) < n; {
		if time.Now().After(end) {
			s.Fatalf("%s: %d of %d messages within %v: %v", consumer, len(got), n, waitMost, slices.Sorted(maps.Keys(got)))
		}
		for _, m := range s.receive(consumer, 15*time.Second) {
			s.must("ack", s.ack(consumer, m))
			got[m.MessageID] = m
		}
	}
	return got
}

// pushed waits until a push consumer has consumed n different messages.
func (s *stage) pushed(consumer string, n int) map[string]seen {
	s.Helper()
	end := time.After(waitMost)
	for {
		all, more := s.d.deliveries(consumer)
		got := map[string]seen{}
		for _, d := range all {
			if d.OK {
				got[d.Message.MessageID] = d.Message
			}
		}
		if len(got) >= n {
			return got
		}
		select {
		case <-more:
		case <-end:
			s.Fatalf("%s: %d of %d messages within %v: %v", consumer, len(got), n, waitMost, slices.Sorted(maps.Keys(got)))
		}
	}
}

// same compares the ids that were sent with those received.
func (s *stage) same(who string, got map[string]seen, sent []string) {
	s.Helper()
	if ids := slices.Sorted(maps.Keys(got)); !slices.Equal(ids, slices.Sorted(slices.Values(sent))) {
		s.Errorf("%s got %v,\nsent %v", who, ids, sent)
	}
	for id, m := range got {
		if m.Corrupted {
			s.Errorf("%s takes %s for corrupted", who, id)
		}
	}
}

// eventually is eventually for the scenario.
func (s *stage) eventually(what string, within time.Duration, check func() error) {
	s.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	end := time.Now().Add(within)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			s.Fatalf("%s: not within %v: %v", what, within, err)
		}
		<-tick.C
	}
}
