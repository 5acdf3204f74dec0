package raft

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/zone"
)

// TestNewerCommandStopsTheVoter: passing over it would make its state another one.
func TestNewerCommandStopsTheVoter(t *testing.T) {
	told := 0
	m := &machine{unknown: func() { told++ }}
	apply := func(index uint64, v int, version uint64) any {
		data, err := json.Marshal(command{Version: v, Leadership: 1, Term: coordinator.Term{Group: "g", Version: version}})
		if err != nil {
			t.Fatal(err)
		}
		return m.Apply(&raft.Log{Index: index, Term: 1, Data: data})
	}
	if got := apply(1, stateVersion, 1); got != nil {
		t.Fatal(got)
	}
	apply(2, stateVersion+1, 2)
	var newer *VersionError
	if !errors.As(m.failure(), &newer) || newer.Index != 2 || told != 1 {
		t.Fatalf("failure %v, told %d times", m.failure(), told)
	}
	apply(3, stateVersion, 2)
	if got := m.term("g").Version; got != 1 {
		t.Errorf("version %d: the voter went on", got)
	}
	if _, err := m.Snapshot(); err == nil {
		t.Error("a snapshot without what was not understood")
	}
}

// TestVoterIsAskedOneQuestionAtATime: one that does not answer holds up one call.
func TestVoterIsAskedOneQuestionAtATime(t *testing.T) {
	var crew crew
	started, over := make(chan struct{}, 8), make(chan struct{})
	b := &book{crew: &crew, ctx: t.Context(), ask: func(context.Context, raft.ServerID, uint64) error {
		started <- struct{}{}
		<-over
		return nil
	}}
	rounds := make([]*round, 3)
	for i := range rounds {
		rounds[i] = &round{ctx: t.Context(), answers: make(chan error, 1)}
		if !b.question("v", rounds[i]) {
			t.Fatal("not asked")
		}
		if i == 0 {
			<-started
		}
	}
	if len(started) > 0 {
		t.Error("asked again while a question is under way")
	}
	close(over)
	for _, i := range []int{0, 2} { // the one between was over before it could be asked for
		if err := <-rounds[i].answers; err != nil {
			t.Error(err)
		}
	}
	crew.end()
	if got := 1 + len(started); got != 2 {
		t.Errorf("%d questions, want 2", got)
	}
}

// TestTheLastVoterToAnswerKeepsItsConnection: a round ends with a majority, and the
// request to a voter that has not answered yet goes on, for its connection would end
// with it. It ends with the leadership.
func TestTheLastVoterToAnswerKeepsItsConnection(t *testing.T) {
	var crew crew
	leading, depose := context.WithCancel(t.Context())
	asked := make(chan context.Context, 1)
	b := &book{crew: &crew, ctx: leading, ask: func(ctx context.Context, _ raft.ServerID, _ uint64) error {
		asked <- ctx
		<-ctx.Done()
		return ctx.Err()
	}}
	ctx, over := context.WithCancel(t.Context())
	r := &round{ctx: ctx, answers: make(chan error, 1)}
	if !b.question("v", r) {
		t.Fatal("not asked")
	}
	request := <-asked
	over()
	if err := request.Err(); err != nil {
		t.Errorf("the request ended with the round: %v", err)
	}
	depose()
	if err := <-r.answers; !errors.Is(err, context.Canceled) {
		t.Errorf("the request did not end with the leadership: %v", err)
	}
	crew.end()
}

// TestBrokerOrdersForItsOwnGroupOnly: the key of one broker is no key to the records of
// others.
func TestBrokerOrdersForItsOwnGroupOnly(t *testing.T) {
	v := &Voter{o: Options{Voters: func() []zone.Node { return nil }, Group: func(g zone.Group) (coordinator.Group, bool) {
		return coordinator.Group{Name: g, Members: []zone.Node{zone.Node(g + "-1"), zone.Node(g + "-2")}}, true
	}}}
	order := func(who zone.Node, role zone.Role, o *coordinator.Order) string {
		return v.may(caller{node: who, role: role}, opFailover, &request{Group: "g", Order: o})
	}
	named := &coordinator.Order{To: "g-2", AllowLoss: true, By: "ann"}
	for name, why := range map[string]string{
		"another group's broker": order("h-1", zone.RoleBroker, named),
		"in nobody's name":       order("g-1", zone.RoleBroker, &coordinator.Order{To: "g-2", AllowLoss: true}),
		"a router":               order("g-1", zone.RoleRouter, named),
		"no order":               order("g-1", zone.RoleBroker, nil),
	} {
		if why == "" {
			t.Errorf("%s: may", name)
		}
	}
	if why := order("g-1", zone.RoleBroker, named); why != "" {
		t.Errorf("a member in an operator's name: %s", why)
	}
	own := &coordinator.Order{To: "g-2", AllowLoss: true, By: "somebody else"}
	if why := order("ann", zone.RoleAdmin, own); why != "" || own.By != "ann" {
		t.Errorf("an operator: %q, by %q", why, own.By)
	}
}

// The fields of what is stored belong to the version of what is stored: a voter that
// does not know one drops it without a word.
func TestTheFieldsOfATermAreThoseOfTheStateVersion(t *testing.T) {
	versions := map[int]string{
		1: "Group Epoch Lineage Master Incarnation InSync Proposed Majority Leased Committed Alone Version Lost",
	}
	var fields []string
	for f := range reflect.TypeFor[coordinator.Term]().Fields() {
		fields = append(fields, f.Name)
	}
	if got := strings.Join(fields, " "); got != versions[stateVersion] {
		t.Errorf("a Term has %s; state version %d has %s: once there is a release, raise the version and name its fields here", got, stateVersion, versions[stateVersion])
	}
}
