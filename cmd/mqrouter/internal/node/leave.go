package node

import (
	"errors"
	"fmt"

	"github.com/mqrouter/mqrouter/broker/commitlog"
)

// toldToLeave says what an operator does about a store that was a member's.
func toldToLeave(err error) error {
	var member *commitlog.MemberError
	if !errors.As(err, &member) {
		return err
	}
	return fmt.Errorf("%w; if the topology is right and this node lacks nothing of what the group has acknowledged, start it with leave-group %d, "+
		"and empty the data folders of the group's other nodes before one of them comes back (runbook: Remove a node)", err, member.Epoch)
}
