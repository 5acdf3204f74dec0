package e2e

import (
	"syscall"
	"testing"
	"time"
)

// TestSIGTERMInEveryPhase stops nodes while they start, replay, serve and
// drain: each ends soon, without an error of its own making, and the next
// start finds everything.
func TestSIGTERMInEveryPhase(t *testing.T) {
	rnd := attackRand(t)
	c := newCluster(t)
	const b = "rz-a-1"
	c.only(b)
	l := c.load(b, 8, "3", 200, 10*time.Millisecond)
	for i := range rounds(6, 40) {
		hold(time.Duration(rnd.IntN(400)) * time.Millisecond)
		c.nodes[b].running.terminate(t)
		if i%3 == 2 {
			c.up(b)
			c.nodes[b].running.kill()
		}
		c.up(b)
	}
	for range rounds(2, 10) { // twice, while it drains
		c.ready(b)
		p := c.nodes[b].running
		p.cmd.Process.Signal(syscall.SIGTERM)
		hold(time.Duration(rnd.IntN(20)) * time.Millisecond)
		p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(20 * time.Second):
			t.Errorf("%s did not end after two SIGTERM", b)
			p.kill()
		}
		c.up(b)
	}
	for range rounds(4, 20) {
		c.up("rt-a1")
		hold(time.Duration(rnd.IntN(150)) * time.Millisecond)
		c.nodes["rt-a1"].running.terminate(t)
	}
	c.ready(b)
	l.settled(c, b, places{})
}

// TestRandomKill9OfOneBrokerUnderLoad kills a broker at random times, also
// while it starts, on one data folder again and again.
func TestRandomKill9OfOneBrokerUnderLoad(t *testing.T) {
	rnd := attackRand(t)
	c := newCluster(t)
	const b = "rz-a-1"
	c.only(b)
	l := c.load(b, 16, "3", 160, 10*time.Millisecond)
	for range rounds(10, 200) {
		hold(time.Duration(rnd.IntN(700)) * time.Millisecond)
		c.nodes[b].running.kill()
		c.up(b)
	}
	c.ready(b)
	l.settled(c, b, places{})
}
