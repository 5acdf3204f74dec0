package cli

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// kindFlags says of which kind the messages of a load are.
type kindFlags struct {
	kind   string
	groups int           // message groups of FIFO messages
	delay  time.Duration // from now to when delayed messages are due
}

func (k *kindFlags) declare(c *cobra.Command, delay time.Duration) {
	c.Flags().StringVar(&k.kind, "kind", "normal", "kind of the messages, which the topic must be of: normal, fifo, delay or transaction")
	c.Flags().IntVar(&k.groups, "message-groups", 1000, "with --kind fifo: message groups, which take turns")
	c.Flags().DurationVar(&k.delay, "delay", delay, "with --kind delay: how far ahead messages are due")
}

func (k *kindFlags) check() error {
	switch k.kind {
	case "normal", "fifo", "delay", "transaction":
	default:
		return usageError{fmt.Errorf("--kind %q: write normal, fifo, delay or transaction", k.kind)}
	}
	if k.groups < 1 || k.delay <= 0 {
		return usageError{fmt.Errorf("--message-groups %d and --delay %v must be above zero", k.groups, k.delay)}
	}
	return nil
}

// wait is how long a message is held back on purpose.
func (k *kindFlags) wait() time.Duration {
	if k.kind == "delay" {
		return k.delay
	}
	return 0
}

// shape makes the message one of the kind. Messages of a turn share a message group.
func (k *kindFlags) shape(m *rocketmqclient.Message, turn uint64) {
	switch k.kind {
	case "fifo":
		m.Type, m.MessageGroup = pb.MessageType_FIFO, "g"+strconv.FormatUint(turn%uint64(k.groups), 10)
	case "delay":
		m.DeliverAt = time.Now().Add(k.delay)
	case "transaction":
		m.Type = pb.MessageType_TRANSACTION
	}
}
