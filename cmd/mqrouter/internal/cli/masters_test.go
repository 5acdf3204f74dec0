package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/zone"
)

// The nodes of a group are asked until its master answers; what the master refuses is
// final, and so is what the only node of a group says.
func TestMasterIsFound(t *testing.T) {
	group := &zone.GroupInfo{Name: "g"}
	var three members
	for _, n := range []string{"a", "b", "c"} {
		three = append(three, &zone.NodeInfo{Name: zone.Node(n), Admin: n, Group: group})
	}
	elsewhere := &admin.AnswerError{Status: http.StatusMisdirectedRequest, Text: "elsewhere"}
	none := &admin.AnswerError{Status: http.StatusServiceUnavailable, Text: "nobody"}
	wrong := &admin.AnswerError{Status: http.StatusNotFound, Text: "no such topic"}
	down := errors.New("connection refused")
	for name, c := range map[string]struct {
		nodes   members
		answers map[string]error
		from    string   // who answers
		says    []string // in the error
	}{
		"the first":          {three, map[string]error{}, "a", nil},
		"the last":           {three, map[string]error{"a": elsewhere, "b": elsewhere}, "c", nil},
		"one is down":        {three, map[string]error{"a": down, "b": elsewhere}, "c", nil},
		"the master refuses": {three, map[string]error{"a": elsewhere, "b": wrong}, "", []string{"b: ", "no such topic"}},
		"no master":          {three, map[string]error{"a": down, "b": none, "c": elsewhere}, "", []string{"broker group g has no master that answers", "a: connection refused", "b: ", "c: "}},
		"alone":              {three[:1], map[string]error{"a": none}, "", []string{"a: ", "nobody"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, n, err := master(t.Context(), c.nodes, func(_ context.Context, addr string) (string, error) { return addr, c.answers[addr] })
			if c.from != "" && (err != nil || got != c.from || string(n.Name) != c.from) {
				t.Fatalf("%q, %v; want the answer of %s", got, err, c.from)
			}
			for _, text := range c.says {
				if !strings.Contains(fmt.Sprint(err), text) {
					t.Errorf("error %v, want %q in it", err, text)
				}
			}
		})
	}
}
