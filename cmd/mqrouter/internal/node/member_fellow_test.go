package node

import (
	"context"
	"crypto/tls"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// A member that takes plaintext passes it on to a master that does not, which refuses it
// with a word of its own, and serves what came with TLS. The master knows the member by
// its certificate, and what it passes on while it becomes the master itself is served.
func TestAMasterHearsFromItsFellowsHowClientsCame(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	nodes := map[zone.Node]*running{}
	for _, name := range []zone.Node{"g-1", "g-2", "g-3"} {
		nodes[name] = c.memberWith(t, name, name == "g-1")
	}
	ask := func(node zone.Node, creds credentials.TransportCredentials) (code pb.Code) {
		t.Helper()
		conn, err := grpc.NewClient(c.top.FindNode(node).Client, grpc.WithTransportCredentials(creds))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		until(t, "an answer of "+string(node), func() bool {
			ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "x-mq-client-id", "c"), 5*time.Second)
			defer cancel()
			resp, err := pb.NewMessagingServiceClient(conn).QueryRoute(ctx, &pb.QueryRouteRequest{Topic: &pb.Resource{Name: "orders"}})
			code = resp.GetStatus().GetCode()
			return err == nil && code != pb.Code_TOO_MANY_REQUESTS
		})
		return code
	}
	sealed := credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}) //nolint:gosec // who answers is not what is tried
	master, others := masterOf(t, nodes["g-1"], nodes["g-2"], nodes["g-3"])
	if master == nodes["g-1"] { // that one takes plaintext: let another one lead
		if code := ask(others[0].self.Name, sealed); code != pb.Code_OK {
			t.Fatalf("with TLS through a replica: %v", code)
		}
		if code := ask("g-1", insecure.NewCredentials()); code != pb.Code_OK {
			t.Fatalf("without TLS at a master that takes it: %v", code)
		}
		c.publishThrough(t, "g-1", "safe", 1) // all three are in sync: another one may lead
		master.stop()
		masterOf(t, others...)
		nodes["g-1"] = c.memberWith(t, "g-1", true)
	}
	if code := ask("g-1", sealed); code != pb.Code_OK {
		t.Errorf("with TLS through a replica: %v", code)
	}
	if code := ask("g-1", insecure.NewCredentials()); code != pb.Code_FORBIDDEN {
		t.Errorf("without TLS through a replica: %v", code)
	}
}
