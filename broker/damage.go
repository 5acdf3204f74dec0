package broker

import "time"

// Bounds of the lines about damage: each damaged message is tried again, and
// would be told again, every second.
const (
	damageWindow = 10 * time.Second
	damageLines  = 100
)
