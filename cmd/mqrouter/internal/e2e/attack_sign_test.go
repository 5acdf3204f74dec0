package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// TestWrongSignaturesAtLoad: a thousand callers over fifty connections repeat a wrong
// signature as fast as they are answered. They are told so, and soon not read any more;
// clients with good credentials from the same address come and are served, and the log
// has a few lines of it.
func TestWrongSignaturesAtLoad(t *testing.T) {
	c := newCluster(t)
	file := filepath.Join(t.TempDir(), "acl.yaml")
	if err := os.WriteFile(file, []byte(accessFile(accessSecret)), 0o600); err != nil {
		t.Fatal(err)
	}
	c.args = func(*clusterNode) []string { return []string{"--acl", file} }
	const b, conns, each = "rz-a-1", 50, 20
	c.only(b)
	at := c.nodes[b].client
	before := c.toll(b)
	ctx, stop := context.WithCancel(t.Context())
	f := &flood{tally: map[string]int{}}
	defer f.wg.Wait()
	defer stop()
	var open []*grpc.ClientConn
	for i := range conns {
		front, conn := dialFront(t, at)
		open = append(open, conn)
		for j := range each {
			f.wg.Go(func() { f.guess(ctx, front, fmt.Sprint("g-", i, "-", j)) })
		}
	}
	began := time.Now()
	for time.Since(began) < 5*time.Second { // the attack's time
		producer, err := rocketmqclient.NewProducer(t.Context(), rocketmqclient.Config{
			Endpoint: at, AccessKey: accessKey, SecretKey: accessSecret, RequestTimeout: time.Minute}, "transfer")
		if err != nil {
			t.Fatalf("a client with good credentials comes: %v", err)
		}
		for range 20 {
			if _, err := producer.Send(t.Context(), &rocketmqclient.Message{Topic: "transfer", Body: []byte("x"), Properties: map[string]string{"userId": "1003"}}); err != nil {
				t.Errorf("it sends: %v", err)
			}
		}
		producer.Close()
	}
	stop()
	f.wg.Wait()
	refused := f.tally["guess UNAUTHORIZED"]
	t.Logf("in %v: %v", time.Since(began), f.tally)
	// 256 are held for a second, 100 a second are not and keep nobody waiting, and each
	// connection has what it sent before it rested.
	if most := int(time.Since(began).Seconds()*1000) + 10*conns*each; refused == 0 || refused > most {
		t.Errorf("%d guesses were answered, want some, and %d at most", refused, most)
	}
	if n := strings.Count(c.nodes[b].running.output(), "client not known"); n == 0 || n > 5*int(time.Since(began).Minutes()+2) {
		t.Errorf("%d lines of the log tell of it", n)
	}
	for _, conn := range open {
		conn.Close()
	}
	c.recovered(b, before)
}

// guess asks with a wrong signature again and again.
func (f *flood) guess(ctx context.Context, front pb.MessagingServiceClient, id string) {
	for ctx.Err() == nil {
		call := metadata.NewOutgoingContext(ctx, metadata.Pairs("x-mq-client-id", id, "x-mq-date-time", time.Now().UTC().Format("20060102T150405Z"),
			"authorization", "MQv2-HMAC-SHA1 Credential="+accessKey+", SignedHeaders=x-mq-date-time, Signature="+strings.Repeat("01", 20)))
		resp, err := front.QueryRoute(call, &pb.QueryRouteRequest{Topic: transfer})
		f.count("guess", resp.GetStatus().GetCode().String(), err)
	}
}
