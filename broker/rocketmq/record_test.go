package rocketmq

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// recordFrom names a driver of an official client, for example
// "node node ../../testdata/clients/node/driver.mjs": the label of its files, then
// the command.
var recordFrom = flag.String("record", "", "LABEL COMMAND...: record the requests of a client's driver (testdata/clients/PROTOCOL.md) into testdata/requests")

const (
	service        = "/apache.rocketmq.v2.MessagingService/"
	requestsDir    = "testdata/requests"
	mostRecorded   = 4       // requests of a client for each call
	largestRequest = 4 << 10 // bytes
)

// TestRecordRequests makes the corpus of the fuzz targets: it puts a proxy that
// keeps the requests between a client and a server, and has the client do a bit of
// everything.
func TestRecordRequests(t *testing.T) {
	if *recordFrom == "" {
		t.Skip("without -record nothing is recorded")
	}
	label, command, _ := strings.Cut(*recordFrom, " ")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// A zone of one broker, whose address is the proxy's.
	text := strings.Replace(topologyText, "127.0.0.1:2\"", l.Addr().String()+"\"", 1)
	topo, err := zone.Parse(fmt.Appendf(nil, text, 1), "test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	b := start(t, func(o *Options) { o.Store, o.Zone = newMemStore(topo), "c1" })
	conn, err := grpc.NewClient(b.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r := &recorder{t: t, label: label, conn: conn, count: map[string]int{}}
	proxy := grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(r.pass))
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := proxy.Serve(l); err != nil {
			t.Error(err)
		}
	})
	play(t, strings.Fields(command), l.Addr().String())
	proxy.Stop()
	serving.Wait()
	t.Logf("recorded %v", r.count)
}

// recorder is the proxy.
type recorder struct {
	t     *testing.T
	label string
	conn  *grpc.ClientConn

	mu    sync.Mutex
	count map[string]int // guarded by mu: recorded, by call
}

// pass forwards one call and keeps its requests.
func (r *recorder) pass(_ any, down grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(down)
	md, _ := metadata.FromIncomingContext(down.Context())
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(down.Context(), md))
	defer cancel()
	up, err := r.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method, grpc.ForceCodec(rawCodec{}))
	if err != nil {
		return err
	}
	go func() { // ends with the call
		for {
			var b []byte
			if down.RecvMsg(&b) != nil {
				_ = up.CloseSend()
				return
			}
			r.keep(strings.TrimPrefix(method, service), b)
			if up.SendMsg(&b) != nil {
				return
			}
		}
	}()
	for {
		var b []byte
		if err := up.RecvMsg(&b); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return err
		}
		if err := down.SendMsg(&b); err != nil {
			return err
		}
	}
}

func (r *recorder) keep(call string, b []byte) {
	b = unnamed(r.t, call, b)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count[call] >= mostRecorded || len(b) > largestRequest {
		return
	}
	file := filepath.Join(requestsDir, call, fmt.Sprintf("%s-%x", r.label, sha256.Sum256(b))[:len(r.label)+9])
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, b, 0o644)); err != nil {
		r.t.Error(err)
	}
	r.count[call]++
}

// unnamed takes what tells of the machine out of a request.
func unnamed(t *testing.T, call string, b []byte) []byte {
	var m proto.Message
	switch call {
	case "SendMessage":
		req := new(pb.SendMessageRequest)
		if err := proto.Unmarshal(b, req); err != nil {
			t.Error(err)
		}
		for _, m := range req.GetMessages() {
			m.GetSystemProperties().BornHost = "host"
		}
		m = req
	case "Telemetry":
		cmd := new(pb.TelemetryCommand)
		if err := proto.Unmarshal(b, cmd); err != nil {
			t.Error(err)
		}
		if ua := cmd.GetSettings().GetUserAgent(); ua != nil {
			ua.Platform, ua.Hostname = "linux", "host"
		}
		m = cmd
	default:
		return b
	}
	out, err := proto.Marshal(m)
	if err != nil {
		t.Error(err)
	}
	return out
}

// play has the driver do a bit of everything.
func play(t *testing.T, command []string, endpoint string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	sc := bufio.NewScanner(out)
	answer := func(until string) (line string) {
		for sc.Scan() {
			if line = sc.Text(); strings.Contains(line, until) {
				return line
			}
		}
		t.Fatalf("the driver ended before it said %q", until)
		return ""
	}
	answer(`"ready"`)
	ids := 0
	ask := func(op string, fields map[string]any) string {
		ids++
		fields["id"], fields["op"], fields["endpoint"] = ids, op, endpoint
		b, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in.Write(append(b, '\n')); err != nil {
			t.Fatal(err)
		}
		line := answer(`"id"`)
		t.Logf("%s: %.200s", op, line)
		return line
	}
	ask("producer", map[string]any{"client": "p", "topics": []string{"t"}, "attempts": 1})
	for _, m := range []map[string]any{
		{"size": 10}, {"size": 700, "tag": "a", "keys": []string{"k1", "支付"}, "properties": map[string]string{"user": "7", "名": "值"}},
	} {
		m["client"], m["topic"] = "p", "t"
		ask("send", m)
		ask("send", m)
	}
	ask("simple", map[string]any{"client": "s", "group": "steps", "topics": map[string]string{"t": "*"}, "await": 1000})
	var got struct{ Messages []struct{ Ref int } }
	for len(got.Messages) < 2 {
		if err := json.Unmarshal([]byte(ask("receive", map[string]any{"client": "s", "max": 8, "invisible": 20000})), &got); err != nil {
			t.Fatal(err)
		}
	}
	ask("invisible", map[string]any{"client": "s", "ref": got.Messages[0].Ref, "invisible": 11000})
	ask("ack", map[string]any{"client": "s", "ref": got.Messages[1].Ref})
	ask("push", map[string]any{"client": "c", "group": "g", "topics": map[string]string{"t": "a || b"}, "fail": 1})
	answer(`"event"`)
	for _, client := range []string{"s", "p"} {
		ask("close", map[string]any{"client": client})
	}
	_ = in.Close()
	_ = cmd.Wait()
}
