//go:build linux && (amd64 || arm64) && !race

package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
)

// A world in a process of its own replays exactly: all that the Go runtime
// draws or races for is taken from it.
//
//   - The runtime seeds the choice of select, the order of maps and its global
//     source from 16 bytes that the kernel leaves in the process (AT_RANDOM in
//     the auxiliary vector): the tracer writes the same ones each time.
//   - Its monitor thread preempts goroutines by the real clock: it is the first
//     thread that a process makes, and the tracer leaves it stopped.
//   - One processor, no preemption by signals and no garbage collection, which
//     is paced by the real clock, leave the order of goroutines to what they do.
//     A world allocates some hundred megabytes.
//   - crypto/rand is seeded by testing/cryptotest.
//   - A new folder is its working directory and has all its files, by relative
//     names: what other worlds left elsewhere would be seen in the random part of
//     the name of a temporary folder, and so in all that is drawn after it.
//
// Left alone is sync.Mutex, which looks at the real clock: one that was waited for
// longer than a millisecond goes to its waiters in their order. No world has been
// seen to differ by it.
//
// And the start: threads that wake each other before the test begins
// may make one more or fewer of them, and each draws from the source. A child
// that finds another number than usual says so and is started anew.

const (
	exactEnv    = "MQROUTER_SIM_EXACT"
	exactThread = 4  // threads of a usual start
	exactAgain  = 75 // exit code: another start, please
	exactTries  = 40 // about every second start is a usual one

	ptraceTraceClone = 8        // PTRACE_O_TRACECLONE
	ptraceExitKill   = 0x100000 // PTRACE_O_EXITKILL
	waitNoThread     = 0x20000000
	auxRandom        = 25 // AT_RANDOM
)

// exactName is the name that every such process is given.
const exactName = "sim.test"

// exactChild reports whether this process is such a world.
func exactChild() bool { return os.Getenv(exactEnv) != "" }

// usualStart ends a child whose start was not the usual one.
func usualStart() {
	if exactChild() && threads() != exactThread {
		os.Exit(exactAgain)
	}
}

func threads() int {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0
	}
	return len(tasks)
}

// errNotExact says that this machine lets no process be traced as it has to be.
var errNotExact = errors.New("no exact replay here")

// runExact runs the world of a seed in a process of its own and returns its
// output, and whether it passed.
func runExact(seed uint64, verbose bool) (output string, passed bool, err error) {
	// A tracer is a thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for range exactTries {
		output, code, err := traced(seed, verbose)
		if err != nil {
			return "", false, fmt.Errorf("%w: %w", errNotExact, err)
		}
		if code != exactAgain {
			return output, code == 0, nil
		}
	}
	return "", false, fmt.Errorf("%w: none of %d starts had %d threads", errNotExact, exactTries, exactThread)
}

// traced runs a child and returns its output and its exit code.
func traced(seed uint64, verbose bool) (output string, code int, err error) {
	program, err := os.Executable()
	if err != nil {
		return "", 0, err
	}
	dir, err := os.MkdirTemp("", "mqrouter-sim-*")
	if err != nil {
		return "", 0, err
	}
	defer os.RemoveAll(dir) // a temporary folder
	out, err := os.Create(filepath.Join(dir, "output"))
	if err != nil {
		return "", 0, err
	}
	defer out.Close() // what it holds is read below
	args := []string{exactName, "-test.run=^" + worldTest + "$", "-test.v", fmt.Sprintf("-seed=%d", seed)}
	// Few variables: the length of an environment moves addresses.
	env := []string{exactEnv + "=1", "GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1"}
	if verbose {
		env = append(env, logEnv+"=1")
	}
	if path := os.Getenv(traceEnv); path != "" {
		if path, err = filepath.Abs(path); err != nil {
			return "", 0, err
		}
		env = append(env, traceEnv+"="+path)
	}
	p, err := os.StartProcess(program, args, &os.ProcAttr{
		Dir: dir, Env: env, Files: []*os.File{nil, out, out}, Sys: &syscall.SysProcAttr{Ptrace: true},
	})
	if err != nil {
		return "", 0, err
	}
	defer p.Release() // it was waited for
	if code, err = follow(p.Pid); err != nil {
		return "", 0, err
	}
	text, err := os.ReadFile(out.Name())
	return string(text), code, err
}

// follow prepares the child, which stands at its first instruction, stops its
// monitor thread and waits for its end.
func follow(pid int) (int, error) {
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &ws, syscall.WALL, nil); err != nil {
		return 0, err
	}
	if err := sameRandom(pid); err != nil {
		_ = syscall.Kill(pid, syscall.SIGKILL) // and the wait for it fails or succeeds
		_, _ = syscall.Wait4(pid, &ws, syscall.WALL, nil)
		return 0, err
	}
	if err := errors.Join(syscall.PtraceSetOptions(pid, ptraceTraceClone|ptraceExitKill), syscall.PtraceCont(pid, 0)); err != nil {
		return 0, err
	}
	monitor := 0
	for {
		tid, err := syscall.Wait4(-1, &ws, syscall.WALL|waitNoThread, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return 0, err
		case tid == pid && ws.Exited():
			return ws.ExitStatus(), nil
		case tid == pid && ws.Signaled():
			return 128 + int(ws.Signal()), nil
		case !ws.Stopped():
			continue
		case ws.TrapCause() == syscall.PTRACE_EVENT_CLONE && monitor == 0:
			made, err := syscall.PtraceGetEventMsg(tid)
			if err != nil {
				return 0, err
			}
			monitor = int(made) // the first one
		case tid == monitor:
			continue // it never goes on
		}
		sig := ws.StopSignal()
		if sig == syscall.SIGTRAP || sig == syscall.SIGSTOP { // the tracing itself
			sig = 0
		}
		if err := syscall.PtraceCont(tid, int(sig)); err != nil && !errors.Is(err, syscall.ESRCH) {
			return 0, err
		}
	}
}

// sameRandom overwrites the randomness that the kernel gave the process.
func sameRandom(pid int) error {
	aux, err := os.ReadFile(fmt.Sprintf("/proc/%d/auxv", pid))
	if err != nil {
		return err
	}
	for ; len(aux) >= 16; aux = aux[16:] {
		if binary.LittleEndian.Uint64(aux) != auxRandom {
			continue
		}
		n, err := syscall.PtracePokeData(pid, uintptr(binary.LittleEndian.Uint64(aux[8:])), []byte("mqrouter/replay!"))
		if err == nil && n != 16 {
			err = fmt.Errorf("%d of 16 bytes written", n)
		}
		return err
	}
	return errors.New("the auxiliary vector has no randomness")
}
