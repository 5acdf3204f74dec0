package broker

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// zoneMutants are promises that a zone could break, and what the model then says.
var zoneMutants = map[string]struct {
	says   string
	mutant zoneMutant
}{
	"a message comes twice at once": {"is in hands", zoneMutant{
		delivered: func(_ *zoneModel, _ int, _ zone.ConsumerGroup, list []Delivery) []Delivery {
			return append(list, list...)
		},
	}},
	"a message is lost": {"never came", zoneMutant{
		delivered: func(m *zoneModel, i int, g zone.ConsumerGroup, list []Delivery) []Delivery {
			return slices.DeleteFunc(list, func(d Delivery) bool {
				if m.rng.IntN(50) > 0 {
					return false
				}
				m.s[i].ack(g, d)
				return true
			})
		},
	}},
	"a delay is too short": {"was delivered: visible", zoneMutant{
		publish: func(_ *zoneModel, _ *station, msg Message) Message {
			if !msg.DeliverAt.IsZero() {
				msg.DeliverAt = msg.DeliverAt.Add(-time.Minute)
			}
			return msg
		},
	}},
	"a copy is a message of its own": {"nobody sent that", zoneMutant{
		publish: func(m *zoneModel, _ *station, msg Message) Message {
			if m.all[msg.ID] != nil {
				msg.ID += "-copy"
			}
			return msg
		},
	}},
	"a message group is in disorder": {"before", zoneMutant{
		publish: func(m *zoneModel, _ *station, msg Message) Message {
			if msg.MessageGroup != "" && msg.Topic.Name == kindFIFO && m.rng.IntN(4) == 0 {
				msg.MessageGroup += "-other"
			}
			return msg
		},
	}},
	"a lite topic comes to who does not want it": {"has not named", zoneMutant{
		asks: func(m *zoneModel, who seat) seat { return seat{who.g, liteSeats[m.rng.IntN(len(liteSeats))]} },
	}},
	"a lite topic is not moved": {"before", zoneMutant{
		sync: func(_ *zoneModel, r LiteRequest) LiteRequest {
			if r.From == LiteFromMin {
				r.From = LiteFromLast
			}
			return r
		},
	}},
	"a restart forgets what was acknowledged": {"after it was settled", zoneMutant{
		ended: func(m *zoneModel, i int) {
			for _, id := range m.order {
				x := m.all[id]
				for _, r := range x.ofGroup {
					if x.topic == kindNormal && r.hands != nil && r.hands.by == i && !r.settled {
						r.settled = true // although it was not
						return
					}
				}
			}
		},
	}},
}

// TestZoneModelTellsBrokenPromises: each mutant is found within a few histories.
func TestZoneModelTellsBrokenPromises(t *testing.T) {
	for name, c := range zoneMutants {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1); seed <= 10; seed++ {
				text := ""
				synctest.Test(t, func(t *testing.T) { text = runMutant(t, seed, &c.mutant) })
				if strings.Contains(text, c.says) {
					return
				}
			}
			t.Errorf("no history tells %q", c.says)
		})
	}
}

// runMutant returns the promise that a history found broken, or nothing.
func runMutant(t *testing.T, seed uint64, mutant *zoneMutant) (text string) {
	m := newZoneModel(t, seed, map[string]int{})
	m.mutant = mutant
	defer func() {
		m.close()
		switch r := recover().(type) {
		case nil:
		case brokenPromise:
			text = string(r)
		default:
			panic(r)
		}
	}()
	m.run()
	return ""
}
