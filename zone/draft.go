package zone

// A draft is the file as it was read: the values of the topology to be, the
// names that still have to be looked up, and where each of them stands.
type draft struct {
	reader
	topo *Topology

	deploymentAt place
	epochAt      place
	shards       draftShards
	cities       []*draftCity
	zones        []*draftZone // of all cities, in file order
	topics       []*draftTopic
	consumers    []*draftConsumers
}

type draftShards struct {
	declared bool
	at       place
	owners   []draftOwner
	ownersAt place
	garbled  bool // some ranges could not be read
}

type draftOwner struct {
	zone  ref
	spans []span
}

type draftCity struct {
	info        *CityInfo
	at          place // of the name
	zones       []*draftZone
	routers     []*draftNode
	caches      []*draftNode
	coordinator *draftCoordinator // nil when the file does not say it
	maxBodyAt   place
	via         ref  // the name is empty when the file does not say broadcasts_via
	cyclic      bool // broadcasts_via leads back to the city
}

type draftZone struct {
	info      *ZoneInfo
	city      *draftCity
	at        place // of the name
	activeAt  place // zero when the file does not say active
	active    bool
	maxBodyAt place // zero when the file does not say max_body
	standby   draftStandby
	groups    []*draftGroup
}

type draftStandby struct {
	inCity, remote ref // the name is empty when the file does not say it
}

type draftGroup struct {
	info    *GroupInfo
	at      place // of the name
	slots   []span
	slotsAt place // zero when the file does not say slots
	garbled bool  // some ranges could not be read
	nodes   []*draftNode
}

type draftNode struct {
	info  *NodeInfo
	at    place // of the name
	addrs []draftAddr
}

type draftAddr struct {
	key   string // such as client
	value string // as NodeInfo holds it
	at    place
}

type draftTopic struct {
	info          *TopicInfo
	at            place // of the name
	residency     []ref
	residencyAt   place // zero when the file does not say residency
	maxBodyAt     place
	routeAt       place
	kindAt        place
	maxDelayAt    place
	receipts      ref // the name is empty when the file does not say it
	classAt       place
	budgetAt      place
	idempotentAt  place // zero when the file does not say it
	minInSyncAt   place // zero when the file does not say it
	transactionAt place
	liteAt        place
	channel       ref // the name is empty when the file does not say it
}

// or returns the place, or other when the file does not have it.
func (p place) or(other place) place {
	if p.line == 0 {
		return other
	}
	return p
}

type draftConsumers struct {
	info    *ConsumerGroupInfo
	at      place // of the name
	fifoAt  place // zero when the file does not say fifo
	liteAt  place // likewise
	topics  []ref
	zones   []ref
	zonesAt place
	cacheAt place
	maxAt   place
}

// none is the word for a standby that is left out on purpose.
const none = "none"

// Bounds and defaults of what a file may say. The defaults follow RocketMQ
// where it has one: bodies of 4 MiB, 16 attempts, records kept 72 hours.
const (
	maxShards        = 1 << 20
	defaultBody      = 4 << 20 // what all official clients receive
	maxBodyBytes     = 7 << 20 // with the header of its record it fits into a frame between nodes, which has 8 MiB
	maxQueues        = 1024
	defaultQueues    = 4
	defaultRetention = 3 * day
	maxRetention     = 366 * day
	defaultMaxDelay  = 30 * day
	maxMaxDelay      = 366 * day
	defaultBudget    = 1 << 30
	maxBudget        = 1 << 50
	defaultAttempts  = 16
	maxAttempts      = 1000
)
