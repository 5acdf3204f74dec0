package node

import "strings"

// storeMeters tells of a broker's store that its disk has damaged.
func storeMeters(m *meterSet) func(*look) {
	damaged := m.gauge("mqrouter.store.damaged", "{store}", "1 while the store cannot be opened for damage, and stays since the group may need it; status tells why.")
	aside := m.gauge("mqrouter.store.set_aside", "{folder}", "Damaged logs in the data folder that this node has moved aside.")
	return func(l *look) {
		is, n := false, int64(0) // of a broker that is its group's only node, too
		if s := l.status.Member; s != nil {
			is = s.Damaged
			for _, folder := range s.SetAside {
				if strings.HasPrefix(folder, damagedPrefix) {
					n++
				}
			}
		}
		l.ObserveInt64(damaged, one(is))
		l.ObserveInt64(aside, n)
	}
}

// damagedPrefix begins the names of logs that were moved aside since they are damaged.
const damagedPrefix = asidePrefix + "damaged-"
