package broker

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// MemberStatus is what a broker is in its group. That of a broker that is alone has
// RoleAlone and nothing else.
type MemberStatus struct {
	Role        Role
	Epoch       uint64          // of the last lineage of the log
	End, Synced record.Position // of what is written and durable here, committed or not
	Committed   record.Position
	Lag         int64     // bytes that are written here and not committed
	Unfolded    int64     // bytes that are committed and not folded; of a store that was just received: all
	InSync      int       // members in sync, as the master counts them; 0 = not known
	Master      zone.Node // as far as it is known here; empty = nobody
	MasterEpoch uint64
	Cold        bool   // the store was received, and its log is not yet where its snapshot is
	Stopped     string // why the log takes nothing any more; empty when it does
}

// MemberStatus returns what the broker is in its group now. It does not block on
// the disk.
func (b *Broker) MemberStatus() MemberStatus {
	st := MemberStatus{Role: b.Role()}
	if b.member == nil {
		return st
	}
	l := b.shared
	st.Epoch, st.Committed, st.Synced, st.End = l.Epoch(), l.Committed(), l.Synced(), l.End()
	st.Lag = max(int64(st.End)-int64(st.Committed), 0)
	b.mu.RLock()
	st.Cold, st.Unfolded = b.cold, max(int64(st.Committed)-int64(b.state.position), 0)
	b.mu.RUnlock()
	if b.member.InSync != nil {
		st.InSync = b.member.InSync()
	}
	if b.member.Master != nil {
		st.Master, st.MasterEpoch = b.member.Master()
	}
	if err := l.Err(); err != nil {
		st.Stopped = err.Error()
	}
	return st
}

// memberGauges registers what a member of a group with replicas tells.
func memberGauges(m metric.Meter, b *Broker) (metric.Registration, error) {
	role, err1 := m.Int64ObservableGauge("mqrouter.member.role", metric.WithDescription("1 for what the broker is in its group: replica, promoting, master, draining or deposed"))
	epoch, err2 := m.Int64ObservableGauge("mqrouter.member.epoch", metric.WithDescription("epoch of the last lineage of the log"))
	lag, err3 := m.Int64ObservableGauge("mqrouter.member.uncommitted", metric.WithUnit("By"), metric.WithDescription("log bytes that are written here and not committed by the group"))
	behind, err4 := m.Int64ObservableGauge("mqrouter.member.unfolded", metric.WithUnit("By"), metric.WithDescription("log bytes that are committed and not folded here"))
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	return m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		st := b.MemberStatus()
		for r := RoleReplica; r <= RoleDeposed; r++ {
			is := int64(0)
			if st.Role == r {
				is = 1
			}
			o.ObserveInt64(role, is, metric.WithAttributes(attribute.String("role", r.String())))
		}
		o.ObserveInt64(epoch, int64(st.Epoch))
		o.ObserveInt64(lag, st.Lag)
		o.ObserveInt64(behind, st.Unfolded)
		return nil
	}, role, epoch, lag, behind)
}
