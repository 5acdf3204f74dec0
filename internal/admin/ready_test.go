package admin

import (
	"net/http"
	"strings"
	"testing"
)

// stateNode shows a status that the test gives.
type stateNode struct {
	fakeNode
	status Status
}

func (n stateNode) Status() Status { return n.status }

// TestAFullDiskKeepsANodeReadyButNotToPublish: consumers stay, producers may be
// sent elsewhere.
func TestAFullDiskKeepsANodeReadyButNotToPublish(t *testing.T) {
	const full = "the disk is full"
	for what, c := range map[string]struct {
		status         Status
		ready, publish int
		says           string
	}{
		"healthy":  {Status{Ready: true, Log: &Log{}}, 200, 200, "ready"},
		"full":     {Status{Ready: true, Reasons: []string{full}, Log: &Log{Problem: full}}, 200, 503, full},
		"starting": {Status{Reasons: []string{"starting"}, Log: &Log{}}, 503, 503, "starting"},
		"no log":   {Status{Ready: true}, 200, 404, "ready"},
	} {
		addr := serve(t, stateNode{status: c.status})
		if code, text := body(t, "http://"+addr+"/readyz"); code != c.ready || !strings.Contains(text, c.says) {
			t.Errorf("%s: /readyz: %d %q", what, code, text)
		}
		if code, text := body(t, "http://"+addr+"/readyz/publish"); code != c.publish || code == http.StatusServiceUnavailable && !strings.Contains(text, c.says) {
			t.Errorf("%s: /readyz/publish: %d %q", what, code, text)
		}
	}
}
