package dev

import (
	"os/exec"
	"runtime"
)

// starter starts processes from one thread that lives as long as they shall:
// Linux sends the death signal of apart when the thread that started a process
// ends, not only when the whole program does.
type starter struct {
	want chan *exec.Cmd
	got  chan error
	done chan struct{}
}

func newStarter() *starter {
	s := &starter{want: make(chan *exec.Cmd), got: make(chan error), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		for cmd := range s.want {
			s.got <- cmd.Start()
		}
	}()
	return s
}

// start is cmd.Start.
func (s *starter) start(cmd *exec.Cmd) error {
	s.want <- cmd
	return <-s.got
}

// close ends the thread; every process has ended by then.
func (s *starter) close() {
	close(s.want)
	<-s.done
}
