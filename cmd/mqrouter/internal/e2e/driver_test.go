package e2e

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// language is an official client and how its driver is started
// (testdata/clients/PROTOCOL.md). `make needs` fetches and builds what that takes.
type language struct {
	name  string
	lacks func(t *testing.T) string                                       // what is missing; empty: nothing
	start func(t *testing.T, home string) (program string, args []string) // the client logs into home
	// script is how a program of the README is run: the name of its file there,
	// the language of its block, and the command, to which the file is added.
	script func(t *testing.T) (file, block, program string, args []string)
	// maxBody is the largest body that the client can receive, in bytes.
	maxBody int
}

var languages = []language{
	{name: "node", lacks: lacksNode, start: nodeDriver, script: nodeScript, maxBody: 4<<20 - 64<<10}, // receives nothing above 4 MiB in all
	{name: "python", lacks: lacksPython, start: pythonDriver, script: pythonScript, maxBody: 7 << 20},
	{name: "java", lacks: lacksJava, start: javaDriver, script: javaScript, maxBody: 7 << 20},
}

func clientsDir(t *testing.T) string { return filepath.Join(repoRoot(t), "testdata", "clients") }

// builtFrom is the folder of the cache that `make needs` has made from a file.
func builtFrom(t *testing.T, parent, prefix string, file ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(append([]string{clientsDir(t)}, file...)...))
	if err != nil {
		t.Fatal(err)
	}
	if parent == "" {
		cache := os.Getenv("XDG_CACHE_HOME")
		if cache == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				t.Fatal(err)
			}
			cache = filepath.Join(home, ".cache")
		}
		parent = filepath.Join(cache, "mqrouter", "clients")
	}
	return filepath.Join(parent, fmt.Sprintf("%s-%x", prefix, sha256.Sum256(b))[:len(prefix)+17])
}

// there reports whether the client is there; with CI=true it has to be.
func (l language) there(t *testing.T) bool {
	t.Helper()
	what := l.lacks(t)
	if what != "" && os.Getenv("CI") == "true" {
		t.Fatalf("%s is missing and CI=true", what)
	}
	if what != "" {
		t.Logf("skipped for %s: %s is missing (make needs installs it)", l.name, what)
	}
	return what == ""
}

// lacksFile returns what when there is no such file.
func lacksFile(path, what string) string {
	if _, err := os.Stat(path); err != nil {
		return what
	}
	return ""
}

func lacksNode(t *testing.T) string {
	if _, err := exec.LookPath("node"); err != nil {
		return "node"
	}
	return lacksFile(filepath.Join(clientsDir(t), "node", "node_modules", "rocketmq-client-nodejs"), "the npm package rocketmq-client-nodejs")
}

func nodeDriver(t *testing.T, _ string) (string, []string) {
	return "node", []string{filepath.Join(clientsDir(t), "node", "driver.mjs")}
}

func nodeScript(*testing.T) (string, string, string, []string) { return "pay.mjs", "js", "node", nil }

// python is the interpreter that has the client.
func python(t *testing.T) string {
	return filepath.Join(builtFrom(t, "", "python", "python", "requirements.txt"), "bin", "python")
}

func lacksPython(t *testing.T) string { return lacksFile(python(t), "the Python client") }

func pythonDriver(t *testing.T, _ string) (string, []string) {
	return python(t), []string{filepath.Join(clientsDir(t), "python", "driver.py")}
}

func pythonScript(t *testing.T) (string, string, string, []string) {
	return "pay.py", "python", python(t), nil
}

// javaHome has the client's classes in lib and the driver's in a folder of its own.
func javaHome(t *testing.T) (home, driver string) {
	home = builtFrom(t, "", "java", "java", "pom.xml")
	return home, builtFrom(t, home, "driver", "java", "Driver.java")
}

func lacksJava(t *testing.T) string {
	if _, err := exec.LookPath("java"); err != nil {
		return "java"
	}
	_, driver := javaHome(t)
	return lacksFile(driver, "the Java client")
}

func javaDriver(t *testing.T, logs string) (string, []string) {
	home, driver := javaHome(t)
	return "java", append(javaFlags(logs), "-cp", filepath.Join(home, "lib", "*")+string(os.PathListSeparator)+driver, "Driver")
}

func javaScript(t *testing.T) (string, string, string, []string) {
	home, _ := javaHome(t)
	return "Pay.java", "java", "java", append(javaFlags(t.TempDir()), "-cp", filepath.Join(home, "lib", "*"))
}

// javaFlags keep a JVM small and its log files out of the home folder. The client has as
// many threads for answers as it sees processors, and loses one at a time while it is
// asked about a half message; with a single one it hangs for ever then
// (deploy/notes/0020).
func javaFlags(home string) []string {
	return []string{"-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:ActiveProcessorCount=8", "-Duser.home=" + home}
}

// driver is a running driver.
type driver struct {
	*process
	lang  language
	home  string // the client's log files are below
	stdin io.WriteCloser

	sending sync.Mutex     // of lines to stdin
	closing sync.WaitGroup // clients being closed in the background

	mu      sync.Mutex
	next    int                                     // guarded by mu: id of the next request
	calls   map[int]chan json.RawMessage            // guarded by mu: requests without an answer
	pushed  map[string][]delivery                   // guarded by mu: what push consumers got, by client
	checks  map[string][]string                     // guarded by mu: what checkers answered, by message id
	stalls  map[string][]seen                       // guarded by mu: deliveries that will not end, by client
	changed chan struct{}                           // guarded by mu: closed and renewed when pushed, checks or stalls grow
	ready   chan struct{ Language, Version string } // its first line
}

// seen is a message as a client shows it.
type seen struct {
	Ref        int               `json:"ref"`
	MessageID  string            `json:"messageId"`
	Topic      string            `json:"topic"`
	Body       []byte            `json:"body"`
	Size       int               `json:"size"`
	SHA256     string            `json:"sha256"`
	Tag        string            `json:"tag"`
	Keys       []string          `json:"keys"`
	Properties map[string]string `json:"properties"`
	Attempt    int               `json:"attempt"`
	Corrupted  bool              `json:"corrupted"`

	MessageGroup      string `json:"messageGroup"`
	DeliveryTimestamp int64  `json:"deliveryTimestamp"` // Unix milliseconds; 0: none
	Priority          *int   `json:"priority"`
	LiteTopic         string `json:"liteTopic"`
}

// delivery is what a push consumer got and what it said of it.
type delivery struct {
	Client  string `json:"client"`
	OK      bool   `json:"ok"`
	Message seen   `json:"message"`

	Began, Ended int64 // Unix milliseconds of the driver's clock
}

// clientError is what a client threw.
type clientError struct {
	Text string `json:"text"`
	Name string `json:"name"`
}

func (e *clientError) Error() string { return e.Name + ": " + e.Text }

// startDriver runs the language's driver until the test ends; a failed test
// prints its error output.
func startDriver(t *testing.T, l language, env ...string) *driver {
	t.Helper()
	home := t.TempDir()
	program, args := l.start(t, home)
	d := &driver{
		process: &process{name: l.name + " driver", hit: map[string]chan struct{}{}, done: make(chan struct{})}, lang: l, home: home,
		calls: map[int]chan json.RawMessage{}, pushed: map[string][]delivery{}, checks: map[string][]string{}, stalls: map[string][]seen{}, changed: make(chan struct{}),
		ready: make(chan struct{ Language, Version string }, 1),
	}
	d.cmd = exec.Command(program, args...)
	d.cmd.Env = append(append(os.Environ(), "HOME="+home), env...)
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	d.cmd.Stderr = d.process
	d.cmd.WaitDelay = 5 * time.Second
	var err error
	if d.stdin, err = d.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", d.name, err)
	}
	go func() {
		d.read(stdout)
		d.err = d.cmd.Wait()
		close(d.done)
	}()
	t.Cleanup(func() {
		d.closing.Wait()
		d.kill()
		if t.Failed() {
			text := d.output()
			t.Logf("errors of %s, at most the last 20,000 bytes:\n%s", d.name, text[max(0, len(text)-20_000):])
		}
	})
	select {
	case r := <-d.ready:
		t.Logf("%s client %s", r.Language, r.Version)
	case <-d.done:
		t.Fatalf("%s ended: %v", d.name, d.err)
	case <-time.After(time.Minute):
		t.Fatalf("%s is not ready", d.name)
	}
	return d
}

// read takes the driver's lines until there are no more.
func (d *driver) read(stdout io.Reader) {
	sc := bufio.NewScanner(stdout)
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		line := bytes.Clone(sc.Bytes())
		var head struct {
			ID                       int
			Event, Language, Version string
		}
		if json.Unmarshal(line, &head) != nil {
			fmt.Fprintf(d.process, "not a line of the protocol: %s\n", line)
			continue
		}
		d.mu.Lock()
		switch {
		case head.Event == "ready":
			d.ready <- struct{ Language, Version string }{head.Language, head.Version}
		case head.Event == "message":
			var v delivery
			if err := json.Unmarshal(line, &v); err != nil {
				fmt.Fprintf(d.process, "%v: %s\n", err, line)
			}
			d.pushed[v.Client] = append(d.pushed[v.Client], v)
			close(d.changed)
			d.changed = make(chan struct{})
		case head.Event == "stall":
			var v delivery
			if err := json.Unmarshal(line, &v); err != nil {
				fmt.Fprintf(d.process, "%v: %s\n", err, line)
			}
			d.stalls[v.Client] = append(d.stalls[v.Client], v.Message)
			close(d.changed)
			d.changed = make(chan struct{})
		case head.Event == "check":
			var v struct {
				Answer  string
				Message seen
			}
			if err := json.Unmarshal(line, &v); err != nil {
				fmt.Fprintf(d.process, "%v: %s\n", err, line)
			}
			d.checks[v.Message.MessageID] = append(d.checks[v.Message.MessageID], v.Answer)
			close(d.changed)
			d.changed = make(chan struct{})
		case d.calls[head.ID] != nil:
			d.calls[head.ID] <- line
			delete(d.calls, head.ID)
		}
		d.mu.Unlock()
	}
}

// callTime bounds a hang of a client.
const callTime = 90 * time.Second

// call makes a request and decodes its answer into out, which may be nil. The
// error is what the client threw, or that it does not answer.
func (d *driver) call(op string, fields map[string]any, out any) error {
	c := make(chan json.RawMessage, 1)
	d.mu.Lock()
	d.next++
	id := d.next
	d.calls[id] = c
	d.mu.Unlock()
	request := map[string]any{"id": id, "op": op}
	for k, v := range fields {
		request[k] = v
	}
	line, err := json.Marshal(request)
	if err != nil {
		return err
	}
	d.sending.Lock()
	_, err = d.stdin.Write(append(line, '\n'))
	d.sending.Unlock()
	if err != nil {
		return fmt.Errorf("%s: %w", d.name, err)
	}
	select {
	case line := <-c:
		var answer struct{ Error *clientError }
		if err := json.Unmarshal(line, &answer); err != nil {
			return err
		}
		if answer.Error != nil {
			return answer.Error
		}
		if out == nil {
			return nil
		}
		return json.Unmarshal(line, out)
	case <-d.done:
		return fmt.Errorf("%s ended: %w", d.name, d.err)
	case <-time.After(callTime):
		return fmt.Errorf("%s: %s did not end within %v", d.name, op, callTime)
	}
}

// close closes a client; that it fails is written to the driver's errors.
func (d *driver) close(client string) {
	if err := d.call("close", map[string]any{"client": client}, nil); err != nil {
		fmt.Fprintf(d.process, "close %s: %v\n", client, err)
	}
}

// deliveries returns what a push consumer has got until now, and a channel that
// closes when there is more.
func (d *driver) deliveries(client string) ([]delivery, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]delivery(nil), d.pushed[client]...), d.changed
}

// stalled returns the deliveries of a push consumer that will not end, and a channel
// that closes when there are more.
func (d *driver) stalled(client string) ([]seen, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]seen(nil), d.stalls[client]...), d.changed
}

// checked returns what the checker of a transaction's producer has answered until
// now, and a channel that closes when there is more.
func (d *driver) checked(messageID string) ([]string, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.checks[messageID]...), d.changed
}
