package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/acl"
	"github.com/mqrouter/mqrouter/policy"
	"github.com/mqrouter/mqrouter/zone"
)

func newACL(e *env) *cobra.Command {
	c := &cobra.Command{Use: "acl", Short: "Check which RocketMQ clients may do what"}
	c.AddCommand(newACLCheck(e))
	return c
}

type aclFlags struct {
	topic, group string
	topology     string
}

func newACLCheck(e *env) *cobra.Command {
	var p aclFlags
	c := &cobra.Command{
		Use:   "check FILE",
		Short: "Report every fault of an access file, and who may do what by it",
		Long: `Report every fault of an access file (the --acl of brokers) with its line, or print
who may do what by it. With --topic or --group it prints who may publish to the
topic, read it, and act for the group; receiving takes both of the latter. With
--topology it tells names that no topic or consumer group has. Secrets are never
printed.`,
		Example: `  mqrouter acl check acl.yaml
  mqrouter acl check acl.yaml --topic transfer --group transfer-credit
  mqrouter acl check acl.yaml --topology topology.yaml`,
		Args: exactArgs(1, "the access file"),
		RunE: func(_ *cobra.Command, args []string) error { return p.run(e, args[0]) },
	}
	c.Flags().StringVar(&p.topic, "topic", "", "who may do what with this topic")
	c.Flags().StringVar(&p.group, "group", "", "who may act for this consumer group")
	c.Flags().StringVar(&p.topology, "topology", "", "tell names that this topology has not")
	return c
}

// aclRow is what `acl check -o json` prints for each user.
type aclRow struct {
	User    string   `json:"user"`
	Publish []string `json:"publish,omitempty"`
	Consume []string `json:"consume,omitempty"`
	Groups  []string `json:"groups,omitempty"`

	MayPublish *bool `json:"may_publish,omitempty"` // with --topic
	MayRead    *bool `json:"may_read,omitempty"`    // with --topic
	MayAct     *bool `json:"may_act,omitempty"`     // with --group
}

func (p *aclFlags) run(e *env, path string) error {
	data, err := acl.Read(path)
	if err != nil {
		return err
	}
	a, err := policy.ParseAccess(data, path)
	if err != nil {
		return err
	}
	var rows []aclRow
	for _, u := range a.Users() {
		rows = append(rows, p.row(u))
	}
	if err := e.show(rows, func(w io.Writer) { p.print(w, rows) }); err != nil {
		return err
	}
	return p.compare(e, path, a)
}

func (p *aclFlags) row(u *policy.User) aclRow {
	r := aclRow{User: u.Name(), Publish: u.Publish(), Consume: u.Consume(), Groups: u.Groups()}
	answer := func(yes bool) *bool { return &yes }
	if p.topic != "" {
		r.MayPublish, r.MayRead = answer(u.MayPublish(zone.Topic(p.topic))), answer(u.MayRead(zone.Topic(p.topic)))
	}
	if p.group != "" {
		r.MayAct = answer(u.MayAct(zone.ConsumerGroup(p.group)))
	}
	return r
}

func (p *aclFlags) print(w io.Writer, rows []aclRow) {
	if p.topic == "" && p.group == "" {
		t := newTable("USER", "PUBLISH", "CONSUME", "GROUPS")
		for _, r := range rows {
			t.row(r.User, strings.Join(r.Publish, " "), strings.Join(r.Consume, " "), strings.Join(r.Groups, " "))
		}
		t.print(w)
		return
	}
	head := []string{"USER"}
	if p.topic != "" {
		head = append(head, "PUBLISH TO "+p.topic, "READ "+p.topic)
	}
	if p.group != "" {
		head = append(head, "ACT FOR "+p.group)
	}
	if p.topic != "" && p.group != "" {
		head = append(head, "RECEIVE")
	}
	t := newTable(head...)
	for _, r := range rows {
		cells := []any{r.User}
		for _, b := range []*bool{r.MayPublish, r.MayRead, r.MayAct} {
			if b != nil {
				cells = append(cells, yesNo(*b))
			}
		}
		if r.MayRead != nil && r.MayAct != nil {
			cells = append(cells, yesNo(*r.MayRead && *r.MayAct))
		}
		t.row(cells...)
	}
	t.print(w)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// errNoSuchName is for names of an access file that a topology has not.
var errNoSuchName = errors.New("names that the topology has not")

// compare tells names that no topic or consumer group has; beginnings with a star
// may be for later.
func (p *aclFlags) compare(e *env, path string, a *policy.Access) error {
	if p.topology == "" {
		return nil
	}
	t, err := e.readTopology(p.topology)
	if err != nil {
		return err
	}
	missing := 0
	tell := func(u *policy.User, what, name string) {
		missing++
		fmt.Fprintf(e.errOut, "%s: user %s: %s is no %s of %s\n", path, u.Name(), name, what, p.topology)
	}
	for _, u := range a.Users() {
		for _, name := range append(append([]string{}, u.Publish()...), u.Consume()...) {
			if !strings.HasSuffix(name, "*") && !strings.HasPrefix(name, "%DLQ%") && t.FindTopic(zone.Topic(name)) == nil {
				tell(u, "topic", name)
			}
		}
		for _, name := range u.Groups() {
			if !strings.HasSuffix(name, "*") && t.FindConsumerGroup(zone.ConsumerGroup(name)) == nil {
				tell(u, "consumer group", name)
			}
		}
	}
	if missing > 0 {
		return fmt.Errorf("%w: %d", errNoSuchName, missing)
	}
	return nil
}
