package admin

import (
	"fmt"
	"net/http"
	"strings"
)

// ready answers whether clients are to be sent to this node at all. A degraded
// node stays in: a broker with a full disk serves its consumers, who are what
// makes room again, and to take it out would cut them off.
func ready(n Node) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		st := n.Status()
		if !st.Ready {
			unavailable(w, st.Reasons...)
			return
		}
		fmt.Fprintln(w, "ready")
		for _, reason := range st.Reasons {
			fmt.Fprintln(w, "degraded:", reason)
		}
	}
}

// readyToPublish answers whether a broker stores what is published, for a load
// balancer that has producers behind it only.
func readyToPublish(n Node) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		switch st := n.Status(); {
		case st.Log == nil:
			http.Error(w, ErrNotServed.Error(), http.StatusNotFound)
		case !st.Ready:
			unavailable(w, st.Reasons...)
		case st.Log.Problem != "":
			unavailable(w, st.Log.Problem)
		default:
			fmt.Fprintln(w, "ready")
		}
	}
}

func unavailable(w http.ResponseWriter, reasons ...string) {
	http.Error(w, strings.Join(reasons, "\n"), http.StatusServiceUnavailable)
}
