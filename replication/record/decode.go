package record

import "github.com/mqrouter/mqrouter/zone"

// Decode fills r with all fields of the view, replacing what was there. Body
// and Cause point into the view's bytes; everything else is copied. It cannot
// fail for a view that Parse returned, but checks the body: *ChecksumError.
func (v View) Decode(r *Record) error {
	if err := v.Verify(); err != nil {
		return err
	}
	kind, checksum := v.Digest()
	*r = Record{
		Type:         v.Type(),
		Flags:        v.Flags(),
		Identity:     v.Identity(),
		Topic:        zone.Topic(v.Topic()),
		Queue:        v.Queue(),
		Kind:         v.Kind(),
		Class:        v.Class(),
		Durability:   v.Durability(),
		Shard:        v.Shard(),
		Slot:         v.Slot(),
		GroupHash:    v.GroupHash(),
		Target:       string(v.Target()),
		Channel:      v.Channel(),
		Lane:         v.Lane(),
		RouteEpoch:   v.RouteEpoch(),
		Residency:    shortStrings[zone.City](v.field(tagResidency)),
		Born:         v.Born(),
		Stored:       v.Stored(),
		DeliverAt:    v.DeliverAt(),
		ExpireAt:     v.ExpireAt(),
		MessageID:    string(v.MessageID()),
		Tag:          string(v.Tag()),
		Keys:         shortStrings[string](v.field(tagKeys)),
		MessageGroup: string(v.MessageGroup()),
		Attempt:      v.Attempt(),
		TraceContext: string(v.TraceContext()),
		BornHost:     string(v.BornHost()),
		Encoding:     v.Encoding(),
		Digest:       Digest{Type: kind, Checksum: string(checksum)},
		Priority:     v.Priority(),
		Once:         v.Once(),
		Again:        v.decodeAgain(),
	}
	v.Properties(func(key, value []byte) bool {
		r.Properties = append(r.Properties, Property{Key: string(key), Value: string(value)})
		return true
	})
	if c := v.Cause(); len(c) > 0 {
		r.Cause = c
	}
	if b := v.Body(); len(b) > 0 {
		r.Body = b
	}
	return nil
}

func shortStrings[S ~string](field []byte) []S {
	if len(field) == 0 {
		return nil
	}
	list := make([]S, 0, countShort(field))
	eachShort(field, func(item []byte) bool {
		list = append(list, S(item))
		return true
	})
	return list
}
