package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/admin"
)

// TestConsulSaysWhoIsMaster runs a group of three nodes whose coordinator is Consul under
// load, and breaks one thing after the other: the master is killed, Consul's leader (the
// agent of one of the nodes) is, all of Consul stands still for longer than a lease, its
// keys are deleted while the group runs, and while none of it does. Publishers go on
// without a hand, but for the last: there nobody is elected before an operator orders it.
// Nothing that was acknowledged is lost, and the members' logs are equal.
func TestConsulSaysWhoIsMaster(t *testing.T) {
	k := startConsul(t)
	c := newReplicatedCluster(t)
	underConsul(t, c, k)
	a := &arena{cluster: c, ledger: newLedger(t), runs: map[string][]*process{}}
	a.ledger.homeOf = func(broker string) string { return broker[:strings.LastIndexByte(broker, '-')] }
	t.Cleanup(a.keep)
	for name := range c.nodes {
		a.begin(name)
	}
	a.watch = watchReigns(a)
	a.whole("at the start")
	endpoints := a.clients(members...)
	for i := range 3 {
		from := slices.Concat(endpoints[i:], endpoints[:i])
		a.ledger.wanderingPublisher(fmt.Sprint("publisher ", i), from, 20*time.Millisecond, &a.pulse, func(int) letter {
			return letter{topic: "transfer", from: "rz-a", homes: []string{"rz-a"}, properties: map[string]string{"userId": fmt.Sprint(1003 + 10*i)}}
		})
	}
	a.ledger.wanderingConsumer("rz-a", endpoints, "credit", "transfer")

	under := consulTrouble{arena: a, consul: k}
	under.breaks("kill -9 of the master", func() { a.kill(a.master()) })
	under.breaks("kill -9 of Consul's leader", func() {
		s := k.leader()
		s.running.kill()
		hold(time.Second)
		k.up(s)
	})
	under.breaks("Consul stands still", func() {
		k.signal(syscall.SIGSTOP)
		hold(4 * time.Second) // two leases
		k.signal(syscall.SIGCONT)
	})
	under.switches()
	under.breaks("the keys are deleted", func() {
		k.forget()
		under.awaitPutBack()
	})
	under.breaks("the keys are deleted while nobody runs", func() {
		for _, name := range members {
			a.kill(name)
		}
		k.forget()
		for _, name := range members {
			a.begin(name)
		}
		under.staysWithoutMaster()
		under.order()
	})
	a.ledger.endPublishing()
	m := a.ledger.mark()
	eventually(t, "everything arrives", time.Minute, func() error { return a.ledger.arrived(m) })
	a.whole("at the end")
	a.watch.stop()
	if err := errors.Join(a.ledger.verdict(), a.sameLogs(), a.watch.verdict(), a.sane()); err != nil {
		t.Error(err)
	}
	t.Log(a.ledger.sums())
}

// consulTrouble breaks a group whose coordinator is Consul.
type consulTrouble struct {
	*arena
	consul *consulCity
}

// breaks does something, and waits until publishers go on and the group is whole.
func (u consulTrouble) breaks(what string, strike func()) {
	u.t.Helper()
	over := u.ledger.troubleBegins(false)
	defer over()
	m := u.ledger.mark()
	eventually(u.t, "publishers go on before "+what, time.Minute, func() error { return u.ledger.goesOn(m, 10) })
	u.ledger.begin(&u.pulse)
	began := time.Now()
	strike()
	m = u.ledger.mark()
	eventually(u.t, "publishers go on after "+what, time.Minute, func() error { return u.ledger.goesOn(m, 10) })
	u.t.Logf("%s: longest time without a publish %.1f s, checked after %.1f s", what, u.ledger.silence(&u.pulse).Seconds(), time.Since(began).Seconds())
	for _, name := range members {
		u.revive(name)
	}
	u.whole(what)
}

// group runs a brokergroup command.
func (u consulTrouble) group(args ...string) (string, error) {
	u.t.Helper()
	env := []string{"MQROUTER_TOPOLOGY=" + u.topology(), "MQROUTER_ADMIN=" + u.nodes["cz-a-1"].admin}
	return mqrouter(u.t, env, append([]string{"brokergroup"}, args...)...)
}

func (u consulTrouble) seen() (brokerGroupSeen, error) {
	out, err := u.group("status", "rz-a-g", "-o", "json")
	if err != nil {
		return brokerGroupSeen{}, err
	}
	return decode[[]brokerGroupSeen](u.t, out)[0], nil
}

// switches hands over to another node by order.
func (u consulTrouble) switches() {
	u.t.Helper()
	over := u.ledger.troubleBegins(false)
	defer over()
	eventually(u.t, "a planned switch", time.Minute, func() error { // a lease may run out by itself on a busy machine
		to := others(u.master())[0]
		_, err := u.group("switch", "rz-a-g", "--to", to, "--reason", "test")
		return err
	})
	u.whole("after the switch")
	if out, err := u.group("check", "rz-a-g", "--wait", "1m"); err != nil {
		u.t.Errorf("check: %v\n%s", err, out)
	}
}

// awaitPutBack waits until the master has put its term back. On a machine that is too
// busy for a renewal within its lease an operator has to order what goes on.
func (u consulTrouble) awaitPutBack() {
	u.t.Helper()
	eventually(u.t, "the term is back", time.Minute, func() error {
		p, _, err := u.consul.root.KV().Get(consulPrefix+"rz-a-g/term", nil)
		if err == nil && p == nil {
			err = errors.New("there is no key")
		}
		if err != nil && u.termGone() == nil {
			u.t.Log("the lease was over before the master could put its term back")
			u.order()
			return nil
		}
		return err
	})
}

// termGone is nil when every node of the group says that the term is gone from Consul, and
// none is master.
func (u consulTrouble) termGone() error {
	all, err := u.members()
	if err != nil {
		return err
	}
	for name, m := range all {
		if !m.TermGone || m.Role == "master" {
			return fmt.Errorf("%s is a %s: %q %s", name, m.Role, m.Waiting, m.CoordinatorErr)
		}
	}
	return nil
}

// staysWithoutMaster waits until every node knows that the term is gone, and looks whether
// somebody is elected all the same.
func (u consulTrouble) staysWithoutMaster() {
	u.t.Helper()
	eventually(u.t, "every node says that the term is gone", time.Minute, u.termGone)
	hold(3 * time.Second) // a lease, a margin and an election
	if err := u.termGone(); err != nil {
		u.t.Errorf("somebody was elected by what is not there: %v", err)
	}
	if s, err := u.seen(); err != nil || s.Master != "" || s.Serves {
		u.t.Errorf("the group has a master: %+v, %v", s, err)
	}
	if _, err := u.group("check", "rz-a-g"); err == nil || !strings.Contains(err.Error(), "not safe") {
		u.t.Errorf("check of a group whose term is gone: %v", err)
	}
}

// order has an operator decide: all nodes answer, and the one with the longest log leads.
func (u consulTrouble) order() {
	u.t.Helper()
	var gone admin.Member
	eventually(u.t, "a fail-over by order", time.Minute, func() error {
		out, err := u.group("failover", "rz-a-g", "--reason", "the keys were deleted", "--yes")
		if err == nil && strings.Contains(out, "given up") {
			u.t.Errorf("the fail-over says %q, and all nodes answer", out)
		}
		return err
	})
	if m, err := u.member(u.master()); err == nil {
		gone = m
	}
	if gone.Epoch < 2 {
		u.t.Errorf("epoch %d after the order: epochs begin anew", gone.Epoch)
	}
}
