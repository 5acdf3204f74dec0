package broker

import "flag"

// relaySeeds is how many schedules of faults the tests of relays run; one of them
// is replayed by its name, with -run.
var relaySeeds = flag.Uint64("relay-seeds", defaultRelaySeeds, "run the tests of relays with this many seeds")
