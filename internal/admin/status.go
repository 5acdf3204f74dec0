package admin

import (
	"time"
)

// Status is what one node says of itself. Slices have a stable order. Durations
// are nanoseconds in JSON.
type Status struct {
	Node     string    `json:"node"`
	Role     string    `json:"role"`
	City     string    `json:"city"`
	Zone     string    `json:"zone,omitempty"`
	Group    string    `json:"group,omitempty"`
	Version  string    `json:"version"`
	PID      int       `json:"pid"` // of the process, on its host
	Started  time.Time `json:"started"`
	Ready    bool      `json:"ready"`
	Reasons  []string  `json:"reasons,omitempty"` // why it is not ready, or works in a degraded way
	Error    string    `json:"error,omitempty"`   // set by the client when the node could not be asked
	Topology Topology  `json:"topology"`
	Members  int       `json:"members"` // live members of the city's gossip pool, this node included

	Log       *Log         `json:"log,omitempty"`
	Timers    *Timers      `json:"timers,omitempty"` // absent when no delayed message waits
	Limits    []Limit      `json:"limits,omitempty"` // of which something is in use, or was in the way
	Topics    []Topic      `json:"topics,omitempty"`
	Lite      []LiteTopics `json:"lite,omitempty"`
	Consumers []Consumer   `json:"consumers,omitempty"`
	Flows     []Flow       `json:"flows,omitempty"`

	Transactions []Transaction `json:"transactions,omitempty"` // topics with half messages that wait
	Decided      Decided       `json:"decided,omitzero"`
	Receipts     *Receipts     `json:"receipts,omitempty"` // absent when none was given, and none is to come
	Inbound      []Inbound     `json:"inbound,omitempty"`
	Links        []Link        `json:"links,omitempty"`
	Paths        []Path        `json:"paths,omitempty"`
	Cache        *Cache        `json:"cache,omitempty"`
	Member       *Member       `json:"member,omitempty"`      // of brokers of groups with several nodes
	Coordinator  *Coordinator  `json:"coordinator,omitempty"` // of nodes that are voters
}

// Topology names the topology that a node follows.
type Topology struct {
	Epoch   string `json:"epoch"`
	Digest  string `json:"digest"`
	Problem string `json:"problem,omitempty"` // why a newer file was not applied
}

// Log describes a broker's commit log. Sizes are bytes.
type Log struct {
	Incarnation string `json:"incarnation"`
	Epoch       uint64 `json:"epoch"` // lineage epoch
	Begin       uint64 `json:"begin"`
	Committed   uint64 `json:"committed"`
	Snapshot    uint64 `json:"snapshot"`          // the newest snapshot's; a start folds what comes after it
	Problem     string `json:"problem,omitempty"` // disk full, failed sync
}

// Timers describes the delayed messages that wait at a broker.
type Timers struct {
	Pending   uint64          `json:"pending"` // overdue and blocked ones included
	Limit     int             `json:"limit"`   // of pending: beyond it publishes are refused
	Hours     int             `json:"hours"`   // for which there are any
	Next      time.Time       `json:"next,omitzero"`
	Overdue   time.Duration   `json:"overdue,omitempty"`    // how late the next one is that nothing blocks
	Held      *int64          `json:"held,omitempty"`       // log bytes that they hold back; absent = not known
	Problem   string          `json:"problem,omitempty"`    // why what is due cannot be stored or looked at
	ClockStep time.Duration   `json:"clock_step,omitempty"` // of the wall clock, while it is not believed
	Blocked   []BlockedTimers `json:"blocked,omitempty"`
}

// Limit describes the use of a limit of a broker that its configuration sets.
type Limit struct {
	What    string `json:"what"`            // delayed messages, half messages, message ids
	Topic   string `json:"topic,omitempty"` // whose limit it is; empty = the broker's
	Used    int    `json:"used"`
	Limit   int    `json:"limit"`
	Refused uint64 `json:"refused,omitempty"` // publishes refused for it, since the start
}

// BlockedTimers are due messages that cannot be delivered now, for one reason. They
// are tried for ever.
type BlockedTimers struct {
	Topic string    `json:"topic"`
	Count int       `json:"count"`
	Since time.Time `json:"since"`
	Why   string    `json:"why"`
}

// Topic describes what a broker holds of a topic.
type Topic struct {
	Name  string `json:"name"`
	Queue int    `json:"queue"`
	First uint64 `json:"first"` // lowest offset held
	Next  uint64 `json:"next"`  // offset of the next message
}

// Consumer describes a consumer group's use of a topic at a broker.
type Consumer struct {
	Group    string `json:"group"`
	Topic    string `json:"topic"`
	Declared bool   `json:"declared"`
	Cache    bool   `json:"cache,omitempty"`
	Lag      uint64 `json:"lag"`       // messages that are not settled
	InFlight int    `json:"in_flight"` // of these: with consumers, or waiting for a retry
	Waiting  int    `json:"waiting"`   // receives that wait for messages
	// Of a group that reads in order: how many of the lag are known to wait behind an
	// earlier message of their message group, and how many message groups have one in
	// flight. Many behind few: a slow message group.
	Behind        int    `json:"behind,omitempty"`
	MessageGroups int    `json:"message_groups,omitempty"`
	Held          *int64 `json:"held,omitempty"` // log bytes that it holds back; absent = not known

	Lite *LiteUse `json:"lite,omitempty"` // of a topic of kind lite
}

// LiteTopics describes the lite topics of a topic at a broker.
type LiteTopics struct {
	Topic  string        `json:"topic"`
	Topics int           `json:"topics"` // that live
	Limit  int           `json:"limit"`  // beyond it a message that would make another one is refused
	TTL    time.Duration `json:"ttl"`    // after which one without a message is forgotten
	Idle   time.Duration `json:"idle"`   // of the one that was not used for longest
}

// LiteUse describes a consumer group's use of lite topics at a broker.
type LiteUse struct {
	Mode    string `json:"mode"`
	Clients int    `json:"clients"` // that have named lite topics
	Named   int    `json:"named"`   // lite topics that they have named, counted for each client
	Asleep  int    `json:"asleep"`  // lite topics with messages that wait for somebody to name them, or for others before them
}

// Transaction describes the half messages of a topic that wait for a decision.
type Transaction struct {
	Topic   string        `json:"topic"`
	Pending int           `json:"pending"`
	Oldest  time.Duration `json:"oldest"`
	Checked int           `json:"checked"`         // of these: producers were asked about them
	Alone   bool          `json:"alone,omitempty"` // no producer is connected that could be asked
}

// Decided counts what became of half messages since the broker's store was made.
type Decided struct {
	Committed  uint64 `json:"committed"`
	RolledBack uint64 `json:"rolled_back"`
	Parked     uint64 `json:"parked"`
	Repeated   uint64 `json:"repeated"` // records of decisions that came too late
}

// Receipts describes the receipts of the messages that were consumed at a broker.
type Receipts struct {
	Given  uint64         `json:"given"`          // messages that had one, since the store was made
	None   uint64         `json:"none,omitempty"` // likewise, that can have none
	Topics []ReceiptTopic `json:"topics,omitempty"`
}

// ReceiptTopic describes the messages of a topic that have no receipt yet.
type ReceiptTopic struct {
	Topic   string            `json:"topic"`
	To      string            `json:"to"`                // the topic of its receipts
	Open    uint64            `json:"open"`              // messages
	Slowest string            `json:"slowest,omitempty"` // the consumer group with the most of them to settle; absent = all are settled
	Waiting []ReceiptsWaiting `json:"waiting,omitempty"` // of these: settled, and their receipts wait
}

// ReceiptsWaiting are settled messages whose receipts wait for room in the backlog of a
// broker group.
type ReceiptsWaiting struct {
	Target   string    `json:"target"`
	Messages uint64    `json:"messages"`
	Since    time.Time `json:"since"`
}

// Flow describes one leg of a flow at its origin.
type Flow struct {
	Target       string        `json:"target"`           // destination group or channel
	Origin       string        `json:"origin,omitempty"` // group where a flow began that landed here and goes onward; empty = here
	Channel      bool          `json:"channel,omitempty"`
	City         string        `json:"city"`
	Group        string        `json:"group"`
	Class        string        `json:"class"`
	Lane         uint8         `json:"lane"`
	Head         uint64        `json:"head"`
	Settled      uint64        `json:"settled"`
	Backlog      uint64        `json:"backlog"` // records
	BacklogBytes int64         `json:"backlog_bytes"`
	OldestAge    time.Duration `json:"oldest_age"`
	RTT          time.Duration `json:"rtt"` // end to end, of the last probe; 0 = not measured
	State        string        `json:"state"`
	Held         string        `json:"held,omitempty"`
	Progress     time.Time     `json:"progress,omitzero"` // last confirmed progress
	Session      string        `json:"session,omitempty"`

	Removed   bool     `json:"removed,omitempty"`   // the topology has no such destination any more
	Lost      uint64   `json:"lost,omitempty"`      // records that the origin has declared lost for it, ever
	Untold    uint64   `json:"untold,omitempty"`    // of these: the destination has not heard of them yet
	Compacted uint64   `json:"compacted,omitempty"` // records left out since newer ones of their keys follow, ever
	Budgets   []Budget `json:"budgets,omitempty"`
}

// Budget is what a flow's destination holds back of one topic.
type Budget struct {
	Topic string `json:"topic"`
	Held  int64  `json:"held"`  // bytes, in all lanes
	Limit int64  `json:"limit"` // bytes; 0 = the topic is no longer declared
	End   string `json:"end"`   // refuse, gap or compact: what happens at the limit
}

// Inbound describes a flow at its destination.
type Inbound struct {
	Origin      string `json:"origin"`
	Incarnation string `json:"incarnation"`
	Target      string `json:"target"`
	Channel     bool   `json:"channel,omitempty"`
	Lane        uint8  `json:"lane"`
	Settled     uint64 `json:"settled"`
	Orphans     uint64 `json:"orphans,omitempty"`
}

// Link describes a router's link to a router of another city.
type Link struct {
	Peer       string        `json:"peer"`
	City       string        `json:"city"`
	Class      string        `json:"class"`
	State      string        `json:"state"`
	Since      time.Time     `json:"since,omitzero"`
	RTT        time.Duration `json:"rtt"`
	Sessions   int           `json:"sessions"`
	Sent       uint64        `json:"sent"`       // bytes on the wire, IP and UDP headers included
	Received   uint64        `json:"received"`   // likewise
	Reconnects uint64        `json:"reconnects"` // connections that replaced a lost one
	Problem    string        `json:"problem,omitempty"`

	Connections int           `json:"connections"`     // the link's own and those for sessions
	Out         float64       `json:"out"`             // bytes of sessions a second, sent
	In          float64       `json:"in"`              // likewise, received
	Loss        float64       `json:"loss"`            // part of the packets sent that were lost, 0 to 1; with correction: that it left
	Queue       time.Duration `json:"queue"`           // by which round trips are longer than the shortest
	Window      int64         `json:"window"`          // most bytes that sessions which sent of late may have on their way
	Bound       string        `json:"bound,omitempty"` // what keeps it from sending more: cpu, window, peer, path or rate; absent = nothing

	Correction *Correction `json:"correction,omitempty"` // absent = losses are not repaired
}

// Correction tells how losses of what is sent on a link are repaired. The links with
// a router share it.
type Correction struct {
	Loss       float64       `json:"loss"`       // part of the packets that the path loses, 0 to 1
	Redundancy float64       `json:"redundancy"` // parity packets for each packet, averaged over about five seconds
	Burst      float64       `json:"burst"`      // mean length of a run of losses
	Congested  bool          `json:"congested"`  // a queue stands on the path: nothing is hidden from congestion control
	Queue      time.Duration `json:"queue"`      // which takes so long
	Extra      uint64        `json:"extra"`      // bytes of parity and headers sent, beside Sent
	Recovered  uint64        `json:"recovered"`  // packets of the other end that were repaired here
}

// Path describes the way that a router's sessions of a class take to a city.
type Path struct {
	City     string        `json:"city"`
	Class    string        `json:"class"`
	Via      string        `json:"via,omitempty"`    // third city; absent = the direct link
	Reason   string        `json:"reason,omitempty"` // why there is a detour
	Since    time.Time     `json:"since,omitzero"`
	Up       bool          `json:"up"`                // a direct link takes sessions
	RTT      time.Duration `json:"rtt"`               // of the direct link; 0 = not measured
	Detours  []string      `json:"detours,omitempty"` // third cities that reach the city, in the order to try
	Direct   int           `json:"direct"`            // sessions on the direct link
	Detoured int           `json:"detoured"`          // sessions on a detour
	Return   time.Duration `json:"return"`            // how long the direct link must have worked before it is used again
	Changes  uint64        `json:"changes"`           // of the way, since the start
}

// Cache describes a cachesync node.
type Cache struct {
	Kind       string      `json:"kind"` // redis or memory
	Group      string      `json:"group"`
	State      string      `json:"state"`
	Offset     uint64      `json:"offset"`
	Lag        uint64      `json:"lag"` // landings not applied
	Applied    uint64      `json:"applied"`
	Superseded uint64      `json:"superseded"`
	Rejected   uint64      `json:"rejected"`
	Gaps       uint64      `json:"gaps"`
	Fills      uint64      `json:"fills"` // of the gaps: told to a cache that had nothing yet
	Watermarks []Watermark `json:"watermarks"`
	Problem    string      `json:"problem,omitempty"`
}

// Watermark says up to which number a cache has applied an origin's flow.
type Watermark struct {
	Origin      string `json:"origin"`
	Incarnation string `json:"incarnation"`
	Channel     string `json:"channel"`
	Number      uint64 `json:"number"`
}

// Sighting is one place in which a node has a message.
type Sighting struct {
	Node       string     `json:"node"`
	Group      string     `json:"group"`
	City       string     `json:"city"`
	Zone       string     `json:"zone"`
	What       string     `json:"what"` // published, landed, refused, dead letter, replayed
	Topic      string     `json:"topic"`
	Queue      int        `json:"queue"`
	Offset     int64      `json:"offset"` // -1 when it is in no queue here
	Position   uint64     `json:"position"`
	Stored     time.Time  `json:"stored"`          // where it was published; of a dead letter: when it was given up
	Landed     time.Time  `json:"landed,omitzero"` // when it landed here
	Replayed   bool       `json:"replayed,omitempty"`
	Flow       string     `json:"flow,omitempty"`
	Number     uint64     `json:"number,omitempty"`
	Settled    string     `json:"settled,omitempty"` // per destination city, at the origin
	Deliveries []Delivery `json:"deliveries,omitempty"`
}

// Delivery is the state of a message in one consumer group.
type Delivery struct {
	Group    string `json:"group"`
	State    string `json:"state"` // waiting, delivered, acknowledged
	Attempts int    `json:"attempts,omitempty"`
}

// CacheEntry is the answer of a cache lookup.
type CacheEntry struct {
	Key     string `json:"key"`
	Found   bool   `json:"found"`
	Version uint64 `json:"version,omitempty"`
	Deleted bool   `json:"deleted,omitempty"`
	Value   string `json:"value,omitempty"`
}
