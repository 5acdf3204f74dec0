package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
	"github.com/mqrouter/mqrouter/zone/source"
)

func newTopology(e *env) *cobra.Command {
	c := &cobra.Command{Use: "topology", Short: "Check, show, draw, compare and ask a topology"}
	c.AddCommand(newTopologyValidate(e), newTopologyShow(e), newTopologyRender(e), newTopologyResolve(e), newTopologyDiff(e), newTopologySample(e))
	return c
}

// problemRow is what `topology validate -o json` prints for each problem.
type problemRow struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	What   string `json:"what"`
	Fix    string `json:"fix"`
}

// readTopology parses a file; "-" is the standard input.
func (e *env) readTopology(path string) (*zone.Topology, error) {
	var data []byte
	var err error
	if path == "-" {
		data, err = io.ReadAll(io.LimitReader(e.in, zone.MaxFileBytes+1))
	} else {
		data, err = source.ReadFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("topology: %w%s", err, pipeHint(path, err))
	}
	return zone.Parse(data, path)
}

// pipeHint says how a topology comes from another program.
func pipeHint(path string, err error) string {
	var not *source.FileError
	if errors.As(err, &not) && strings.Contains(not.What, "pipe") {
		return "; to read another program's output, write - instead of " + path
	}
	return ""
}

func newTopologyValidate(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "validate FILE",
		Short: "Report every fault of a topology file, with line and column",
		Long: `Report every fault of a topology file, with line and column, and note what is risky
in it, or what this version does not do.`,
		Args: exactArgs(1, "the topology file, or - for the standard input"),
		RunE: func(_ *cobra.Command, args []string) error {
			t, err := e.readTopology(args[0])
			var problems *zone.ProblemsError
			if errors.As(err, &problems) {
				rows := []problemRow{}
				for _, p := range problems.Problems {
					rows = append(rows, problemRow{args[0], p.Line, p.Column, p.What, p.Fix})
				}
				if showErr := e.show(rows, func(w io.Writer) { fmt.Fprintln(w, problems) }); showErr != nil {
					return showErr
				}
				return fmt.Errorf("%s has %s", args[0], count(len(rows), "fault", "faults"))
			}
			if err != nil {
				return err
			}
			return e.validated(args[0], t)
		},
	}
}

// validated says that a topology is valid, and what is to be known of it.
func (e *env) validated(path string, t *zone.Topology) error {
	return e.show([]problemRow{}, func(w io.Writer) {
		fmt.Fprintf(w, "%s is valid: deployment %s, epoch %s, digest %x\n", path, t.Deployment, t.Epoch, t.Digest[:8])
		for _, topic := range t.Topics {
			if !broker.SupportsKind(topic.Kind) {
				fmt.Fprintf(w, "note: topic %s is of kind %s: this version refuses publishes to it\n", topic.Name, topic.Kind)
			}
		}
		for _, advice := range zone.Advice(t) {
			fmt.Fprintf(w, "note: %s\n", advice)
		}
	})
}

func newTopologyShow(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "show [FILE]",
		Short: "Show a topology: the file, or what the node at --admin follows",
		Args:  optionalArg("the topology file"),
		RunE: func(c *cobra.Command, args []string) error {
			t, err := e.anyTopology(c, args)
			if err != nil {
				return err
			}
			return e.show(topologyJSON(t), func(w io.Writer) { fmt.Fprint(w, zone.Show(t)) })
		},
	}
	e.fleetFlags(c)
	return c
}

// anyTopology reads the file of the only argument, or asks the fleet.
func (e *env) anyTopology(c *cobra.Command, args []string) (*zone.Topology, error) {
	if len(args) == 1 {
		return e.readTopology(args[0])
	}
	f, err := e.openFleet(c.Context())
	if err != nil {
		return nil, err
	}
	return f.topology, nil
}

// topologyJSON is a summary for scripts; the file itself is the full form.
func topologyJSON(t *zone.Topology) any {
	type zoneRow struct {
		Name   string   `json:"name"`
		City   string   `json:"city"`
		Kind   string   `json:"kind"`
		Active bool     `json:"active"`
		Groups []string `json:"broker_groups"`
	}
	zones := []zoneRow{}
	for _, z := range t.Zones() {
		r := zoneRow{string(z.Name), string(z.City.Name), z.Kind.String(), z.Active, []string{}}
		for _, g := range z.Groups {
			r.Groups = append(r.Groups, string(g.Name))
		}
		zones = append(zones, r)
	}
	topics := []topicRow{}
	for _, topic := range t.Topics {
		topics = append(topics, describeTopic(topic))
	}
	groups := []groupRow{}
	for _, g := range t.Groups {
		groups = append(groups, describeGroup(g))
	}
	return struct {
		Deployment string     `json:"deployment"`
		Epoch      string     `json:"epoch"`
		Digest     string     `json:"digest"`
		Shards     uint32     `json:"shards"`
		Zones      []zoneRow  `json:"zones"`
		Topics     []topicRow `json:"topics"`
		Groups     []groupRow `json:"consumer_groups"`
	}{t.Deployment, t.Epoch.String(), fmt.Sprintf("%x", t.Digest), t.ShardCount, zones, topics, groups}
}

type resolveFlags struct{ topic, key, from, destination, group string }

func newTopologyResolve(e *env) *cobra.Command {
	var p resolveFlags
	c := &cobra.Command{
		Use:   "resolve [FILE] --topic T --key K [--from ZONE]",
		Short: "Explain step by step where a message lands",
		Example: `  mqrouter topology resolve --topic transfer --key 1065 --from rz01
  mqrouter topology resolve topology.yaml --topic directed --destination hangzhou --from rz01`,
		Args: optionalArg("the topology file"),
		RunE: func(c *cobra.Command, args []string) error {
			t, err := e.anyTopology(c, args)
			if err != nil {
				return err
			}
			return p.explain(e, t)
		},
	}
	e.fleetFlags(c)
	c.Flags().StringVar(&p.topic, "topic", "", "topic (required)")
	c.Flags().StringVar(&p.key, "key", "", "user id, for a topic routed by shard")
	c.Flags().StringVar(&p.destination, "destination", "", "zone or city, for a topic routed explicitly; default: --key")
	c.Flags().StringVar(&p.group, "message-group", "", "message group")
	c.Flags().StringVar(&p.from, "from", "", "zone in which it is published; default: the topology's first")
	return c
}

func (p *resolveFlags) explain(e *env, t *zone.Topology) error {
	if p.topic == "" {
		return usageError{errors.New("--topic is missing")}
	}
	q := zone.Query{Topic: t.FindTopic(zone.Topic(p.topic)), From: t.Zones()[0], User: p.key, Destination: p.destination, MessageGroup: p.group, MessageID: p.key}
	if q.Topic == nil {
		return fmt.Errorf("topic %q is not in the topology", p.topic)
	}
	if q.Destination == "" {
		q.Destination = p.key
	}
	if p.from != "" {
		if q.From = t.FindZone(zone.Zone(p.from)); q.From == nil {
			return fmt.Errorf("zone %q is not in the topology; it has %s", p.from, strings.Join(zoneNames(t), ", "))
		}
	}
	_, err := t.Resolve(q)
	type stepRow struct {
		Title  string `json:"title"`
		Detail string `json:"detail"`
	}
	rows := []stepRow{}
	for _, s := range t.Explain(q) {
		rows = append(rows, stepRow{s.Title, s.Detail})
	}
	if showErr := e.show(rows, func(w io.Writer) {
		for _, r := range rows {
			fmt.Fprintf(w, "%-14s %s\n", r.Title, r.Detail)
		}
	}); showErr != nil {
		return showErr
	}
	return err
}

func newTopologyDiff(e *env) *cobra.Command {
	var p renderFlags
	c := &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Show what changes from one topology file to another",
		Long: `Show what changes from one topology file to another. The command fails when a
node that runs the first would not take the second.

With --format it draws the new topology as a picture of what is new, gone and
changed, and does not judge.`,
		Example: `  mqrouter topology diff old.yaml new.yaml
  mqrouter topology diff old.yaml new.yaml --format svg > change.svg`,
		Args: exactArgs(2, "two topology files"),
		RunE: func(_ *cobra.Command, args []string) error {
			older, err := e.readTopology(args[0])
			if err != nil {
				return err
			}
			newer, err := e.readTopology(args[1])
			if err != nil {
				return err
			}
			if p.format != "" {
				return e.drawDiff(&p, older, newer)
			}
			lines := []string{}
			for _, c := range zone.Diff(older, newer) {
				lines = append(lines, c.String())
			}
			if err := e.show(lines, func(w io.Writer) {
				for _, l := range lines {
					fmt.Fprintln(w, l)
				}
			}); err != nil {
				return err
			}
			if err := source.Judge(older, newer); err != nil && len(lines) > 0 {
				return fmt.Errorf("a node that runs %s would not take %s: %w", args[0], args[1], err)
			}
			return nil
		},
	}
	p.declare(c, "")
	return c
}

func newTopologySample(e *env) *cobra.Command {
	replicas := 0
	c := &cobra.Command{
		Use:   "sample",
		Short: "Print the sample topology that mqrouter dev starts",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			text := sample.YAML
			if replicas != 0 {
				var err error
				if text, err = sample.Replicated(replicas); err != nil {
					return usageError{err}
				}
			}
			_, err := e.out.Write(text)
			return err
		},
	}
	c.Flags().IntVar(&replicas, "replicas", 0, "the smaller one, with a broker group of 3 or 5 nodes")
	return c
}
