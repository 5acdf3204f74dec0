package raft

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/coordinator/conformance"
	"github.com/mqrouter/mqrouter/zone"
)

// A city whose masters get a long lease, since its machines pause, would still be without
// a coordinator in each pause if the voters were as hasty as ever.
func TestVotersAreAsPatientAsTheLease(t *testing.T) {
	for lease, beat := range map[time.Duration]time.Duration{
		0:                      300 * time.Millisecond,
		500 * time.Millisecond: 300 * time.Millisecond,
		10 * time.Second:       2 * time.Second,
		30 * time.Second:       6 * time.Second,
	} {
		timing := coordinator.Timing{Lease: lease}
		if lease != 0 {
			timing.Renew, timing.Margin = lease/4, lease/8
		}
		v, err := NewVoter(Options{Self: "v1", Dir: t.TempDir(), Voters: func() []zone.Node { return []zone.Node{"v1"} }, Group: conformance.Group, Groups: conformance.Groups,
			Dial: func(context.Context, zone.Node, string) (net.Conn, error) { return nil, net.ErrClosed }, Timing: timing})
		if err != nil {
			t.Fatal(err)
		}
		c := v.config("v1", nil)
		if c.HeartbeatTimeout != beat || c.ElectionTimeout != beat || c.LeaderLeaseTimeout != beat*3/4 || c.CommitTimeout > DefaultBeat/8 {
			t.Errorf("lease %v: heartbeat %v, election %v, leader's lease %v, commit %v", lease, c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout, c.CommitTimeout)
		}
	}
}
