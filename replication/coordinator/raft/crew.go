package raft

import "sync"

// crew counts what others begin, so that its owner can wait for all of it: unlike a
// sync.WaitGroup it may be joined while somebody waits, in vain then. The zero value
// takes on.
type crew struct {
	mu     sync.Mutex
	closed bool           // guarded by mu
	wg     sync.WaitGroup // Add only with mu held and not closed
}

// enter takes a place; false: the crew has ended. leave gives it back.
func (c *crew) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.wg.Add(1)
	return true
}

func (c *crew) leave() { c.wg.Done() }

// run begins f beside its caller; false: the crew has ended.
func (c *crew) run(f func()) bool {
	if !c.enter() {
		return false
	}
	go func() {
		defer c.leave()
		f()
	}()
	return true
}

// end takes nobody on any more and waits for all.
func (c *crew) end() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.wg.Wait()
}
