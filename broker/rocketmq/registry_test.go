package rocketmq

import (
	"testing"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// TestTypeIsLearntAfterACallThatDoesNotTellIt is a server that was restarted: the
// first call of a push consumer may be an acknowledgement, and some clients send
// their settings only minutes later.
func TestTypeIsLearntAfterACallThatDoesNotTellIt(t *testing.T) {
	r := newRegistry(1)
	r.see(t.Context(), "c", pb.ClientType_CLIENT_TYPE_UNSPECIFIED)
	if info, known := r.see(t.Context(), "c", pb.ClientType_PUSH_CONSUMER); !known || info.kind != pb.ClientType_PUSH_CONSUMER {
		t.Errorf("after its heartbeat: %v, known %v", info.kind, known)
	}
	r.see(t.Context(), "c", pb.ClientType_CLIENT_TYPE_UNSPECIFIED)
	if got := r.kind("c"); got != pb.ClientType_PUSH_CONSUMER {
		t.Errorf("a later call without a type made it %v", got)
	}
	s := newSession()
	r.attach("c", s)
	r.settings("c", s, clientInfo{kind: pb.ClientType_SIMPLE_CONSUMER})
	if info, _ := r.see(t.Context(), "c", pb.ClientType_PUSH_CONSUMER); info.kind != pb.ClientType_SIMPLE_CONSUMER {
		t.Errorf("its settings say a simple consumer, known is %v", info.kind)
	}
}
