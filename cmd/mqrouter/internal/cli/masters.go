package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"golang.org/x/sync/errgroup"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/zone"
)

// members are the nodes of a broker group. Its master alone answers for it: what it has
// is the same at whichever node that is.
type members []*zone.NodeInfo

// name is how people know the group: by its node when it has one.
func (m members) name() string {
	if len(m) == 1 {
		return string(m[0].Name)
	}
	return "broker group " + string(m[0].Group.Name)
}

// groups returns the broker groups of the zone, all when it is empty, in the topology's
// order.
func (f *fleet) groups(in string) []members {
	var all []members
	at := map[*zone.GroupInfo]int{}
	for _, n := range f.nodes() {
		if n.Role != zone.RoleBroker || in != "" && string(n.Zone.Name) != in {
			continue
		}
		i, ok := at[n.Group]
		if !ok {
			i = len(all)
			at[n.Group] = i
			all = append(all, nil)
		}
		all[i] = append(all[i], n)
	}
	return all
}

// master puts a question to the nodes of a group, one after the other, until the one
// answers that is master; which is none other's business is asked of no other. A node
// that is down is passed over. The question may have been answered by a node whose
// answer was lost: it has to bear a repetition.
func master[T any](ctx context.Context, m members, ask func(ctx context.Context, addr string) (T, error)) (T, *zone.NodeInfo, error) {
	var none T
	var errs []error
	for _, n := range m {
		v, err := ask(ctx, n.Admin)
		if err == nil {
			return v, n, nil
		}
		if len(m) == 1 || ctx.Err() != nil || !passes(err) {
			return none, n, fmt.Errorf("%s: %w", n.Name, err)
		}
		errs = append(errs, fmt.Errorf("%s: %w", n.Name, err))
	}
	return none, nil, fmt.Errorf("%s has no master that answers, try again: %w", m.name(), errors.Join(errs...))
}

// passes reports whether another node may answer what this one did not.
func passes(err error) bool {
	var answer *admin.AnswerError
	if !errors.As(err, &answer) {
		return true // it did not answer at all
	}
	return answer.Status == http.StatusMisdirectedRequest || answer.Status == http.StatusServiceUnavailable
}

// everywhere asks all groups at once. The error names those that did not answer.
func everywhere[T any](ctx context.Context, groups []members, ask func(ctx context.Context, addr string) (T, error)) ([]T, error) {
	found := make([]T, len(groups))
	errs := make([]error, len(groups))
	var g errgroup.Group
	g.SetLimit(askParallel)
	for i, m := range groups {
		g.Go(func() error {
			var err error
			if found[i], _, err = master(ctx, m, ask); err != nil {
				errs[i] = fmt.Errorf("the answer is not complete without %s: %w", m.name(), err)
			}
			return nil
		})
	}
	g.Wait() //nolint:errcheck // the functions return no error
	return found, errors.Join(errs...)
}
