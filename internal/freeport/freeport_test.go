package freeport

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"
)

// TestAPortHasOneOwner takes ports in one test after another and in another process.
func TestAPortHasOneOwner(t *testing.T) {
	if text := os.Getenv("FREEPORT_CLAIM"); text != "" { // the other process
		port, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		if Claim(t, port) {
			t.Errorf("port %d was given away twice", port)
		}
		return
	}
	ports := Take(t, 3)
	if ports[0] == ports[1] || ports[1] == ports[2] || ports[0] == ports[2] {
		t.Errorf("a port came twice: %v", ports)
	}
	if Claim(t, ports[1]) {
		t.Errorf("port %d was given away twice in one process", ports[1])
	}
	other := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestAPortHasOneOwner$")
	other.Env = append(os.Environ(), fmt.Sprintf("FREEPORT_CLAIM=%d", ports[2]))
	if out, err := other.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}

	var given int
	t.Run("gives back", func(t *testing.T) { given = Take(t, 1)[0] })
	if !Claim(t, given) {
		t.Errorf("port %d was not given back", given)
	}
}

// TestAPortWithAListenerIsNotFree listens as somebody does who locks nothing.
func TestAPortWithAListenerIsNotFree(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := ln.Addr().(*net.TCPAddr).Port
	if Claim(t, port) {
		t.Errorf("port %d has a listener and was given away", port)
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
}
