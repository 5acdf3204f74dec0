package raft

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/zone"
)

// Entries reach a voter as soon as it is back, however long it was away, and are given
// up when this one does not lead any more, or stops. Heartbeats tell at once.
func TestEntriesReachAVoterAsSoonAsItIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		there := newFunnel("b")
		began, dials := time.Now(), 0
		back := 20 * time.Second
		layer := &stream{funnel: newFunnel("a"), dial: func(context.Context, zone.Node, string) (net.Conn, error) {
			if dials++; time.Since(began) < back {
				return nil, errors.New("refused")
			}
			mine, theirs := net.Pipe()
			there.give(theirs, peer.Identity{Name: "a"})
			return mine, nil
		}}
		p := &patient{done: make(chan struct{}), NetworkTransport: raft.NewNetworkTransport(layer, 3, time.Second, nil)}
		b := raft.NewNetworkTransport(&stream{funnel: there}, 3, time.Second, nil)
		answering, stop := context.WithCancel(t.Context())
		go func() {
			for {
				select {
				case r := <-b.Consumer():
					r.Respond(&raft.AppendEntriesResponse{Term: 3, Success: true}, nil)
				case <-answering.Done():
					return
				}
			}
		}()
		defer func() {
			stop()
			_ = p.Close()
			_ = b.Close()
			p.CloseStreams()
			b.CloseStreams()
		}()
		leads := func(to raft.ServerID, term uint64) bool { return to == "b@1" && term == 3 }
		p.leads.Store(&leads)
		send := func(args raft.AppendEntriesRequest) error {
			return p.AppendEntries("b@1", "b", &args, &raft.AppendEntriesResponse{})
		}
		entries := raft.AppendEntriesRequest{Term: 3, PrevLogEntry: 7, PrevLogTerm: 3, Entries: []*raft.Log{{Index: 8, Term: 3}}}
		if err := send(raft.AppendEntriesRequest{Term: 3}); err == nil || dials != 1 {
			t.Errorf("a heartbeat: %v after %d dials", err, dials)
		}
		old := entries
		old.Term = 2
		if err := send(old); err == nil || dials != 2 {
			t.Errorf("entries of a term that is over: %v after %d dials", err, dials)
		}
		if err := send(entries); err != nil || time.Since(began) > back+appendAgain {
			t.Errorf("entries: %v after %v, the voter was back after %v", err, time.Since(began), back)
		}
		back = time.Hour
		_ = b.Close()
		b.CloseStreams()
		p.CloseStreams()
		time.AfterFunc(time.Second, func() { close(p.done) })
		until := time.Now()
		if err := send(entries); err == nil || time.Since(until) > 2*time.Second {
			t.Errorf("after the stop: %v after %v", err, time.Since(until))
		}
	})
}
