package config

import (
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// commandVariables are read by commands that ask a deployment, beside the keys
// of nodes.
var commandVariables = []string{"MQROUTER_ADMIN", "MQROUTER_ENDPOINT", "MQROUTER_TOPOLOGY", "MQROUTER_ACCESS_KEY", "MQROUTER_SECRET_KEY"}

// testVariables are read by the tests, and nobody means them by mistake.
var testVariables = []string{"MQROUTER_LONG", "MQROUTER_RACE"}

// kubernetesVariable matches what Kubernetes puts into every container for a
// service with a name such as mqrouter or mqrouter-broker.
var kubernetesVariable = regexp.MustCompile(`_SERVICE_(HOST|PORT(_.+)?)$|_PORT(_\d+_(TCP|UDP|SCTP)(_.+)?)?$`)

// Unread is a variable with the prefix that nothing reads: probably mistyped.
type Unread struct {
	Name string
	Near string // a variable that is read and looks alike; empty when none does
}

// UnreadVariables returns the variables of an environment (see os.Environ) that
// begin with EnvPrefix and that no command reads, in their order. A key of
// another role is fine: roles may share a file of variables.
func UnreadVariables(environ []string) []Unread {
	known := slices.Clone(commandVariables)
	for _, role := range []string{"broker", "router", "cachesync", "coordinator"} {
		fs := pflag.NewFlagSet(role, pflag.ContinueOnError)
		Flags(fs, role)
		fs.VisitAll(func(f *pflag.Flag) { known = append(known, variable(f.Name)) })
	}
	var unread []Unread
	for _, v := range environ {
		name, _, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(name, EnvPrefix+"_") || slices.Contains(known, name) || slices.Contains(testVariables, name) ||
			strings.HasPrefix(name, "MQROUTER_BENCH_") || strings.HasPrefix(name, "MQROUTER_FUZZ_") || kubernetesVariable.MatchString(name) {
			continue
		}
		unread = append(unread, Unread{Name: name, Near: nearest(name, known)})
	}
	return unread
}

// variable is the name of the environment variable of a key.
func variable(key string) string {
	return EnvPrefix + "_" + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
}

// maxEdits is how many letters may differ for a name to be suggested, though not
// more than half of those that it has after the prefix.
const maxEdits = 3

// nearest returns the known name that takes the fewest edits, or "".
func nearest(name string, known []string) string {
	best, edits := "", min(maxEdits, (len(name)-len(EnvPrefix)-1)/2)+1
	for _, k := range known {
		if d := distance(name, k); d < edits {
			best, edits = k, d
		}
	}
	return best
}

// distance is the Levenshtein distance of two names, by the usual rows.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
