package rocketmq

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// memStore keeps messages in memory as the broker does on disk: one queue a topic,
// progress for each consumer group, handles that name group, topic, offset and
// delivery.
type memStore struct {
	topo *zone.Topology

	mu      sync.Mutex
	topics  map[zone.Topic][]broker.Delivery
	held    map[string]*hold // group/topic/offset -> delivery state
	changed chan struct{}    // closed and renewed at every change

	receive error                                                // instead of receiving
	lasting bool                                                 // receives wait for as long as who asks does
	empty   bool                                                 // receives find nothing, at once
	publish func([]broker.Message, []broker.PublishResult) error // instead of storing
	settle  func(op, handle string) error                        // before settling
	last    broker.ReceiveRequest
	waits   []time.Duration // of ChangeInvisible
	gone    []string        // of ClientsGone
	ended   []string        // of EndRenewal
	lite    []broker.LiteRequest
	left    []string
}

// hold is one message's state in a consumer group.
type hold struct {
	attempt int
	until   time.Time
	done    bool
	serial  int // of the newest handle
}

func newMemStore(topo *zone.Topology) *memStore {
	return &memStore{topo: topo, topics: map[zone.Topic][]broker.Delivery{}, held: map[string]*hold{}, changed: make(chan struct{})}
}

func (s *memStore) Topology() *zone.Topology { return s.topo }

// EndRenewal implements Store: this one renews nothing.
func (s *memStore) EndRenewal(_ context.Context, g zone.ConsumerGroup, t zone.Topic, handle string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _, err := s.use("end renewal", g, t, handle)
	if err == nil {
		s.ended = append(s.ended, handle)
	}
	return err
}

// ClientsGone implements Store: this one renews nothing.
func (s *memStore) ClientsGone(ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = append(s.gone, ids...)
}

// Recall implements Store: nothing waits here.
func (s *memStore) Recall(_ context.Context, t zone.Topic, _ string) (string, error) {
	return "", &broker.Error{Op: "recall", Kind: broker.KindSettled, Topic: t}
}

func (s *memStore) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *memStore) Publish(_ context.Context, msgs []broker.Message, out []broker.PublishResult) error {
	if s.publish != nil {
		return s.publish(msgs, out)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range msgs {
		m := &msgs[i]
		d, err := s.topo.Resolve(zone.Query{Topic: m.Topic, From: s.topo.Zones()[0], User: m.Properties["user"], MessageID: m.ID})
		if err != nil {
			out[i].Err = &broker.Error{Op: "publish", Kind: broker.KindUnroutable, Topic: m.Topic.Name, Err: err}
			continue
		}
		rec := &record.Record{
			Type: record.TypeMessage, Topic: m.Topic.Name, Kind: m.Kind, Class: zone.ClassBulk, Durability: zone.DurabilityAllInSync, Shard: record.NoShard,
			Born: m.Born, Stored: time.Now(), MessageID: m.ID, Tag: m.Tag, Keys: m.Keys, MessageGroup: m.MessageGroup,
			TraceContext: m.TraceContext, BornHost: m.BornHost, Encoding: m.Encoding, Digest: m.Digest, Body: m.Body, Priority: m.Priority,
		}
		for k, v := range m.Properties {
			rec.Properties = append(rec.Properties, record.Property{Key: k, Value: v})
		}
		offset := s.store(m.Topic.Name, rec)
		out[i] = broker.PublishResult{Offset: offset, Level: broker.LevelStored, Destination: d}
	}
	s.wake()
	return nil
}

// store appends a record to a topic; the caller holds mu.
func (s *memStore) store(t zone.Topic, rec *record.Record) int64 {
	b, err := record.AppendRecord(nil, rec)
	if err != nil {
		panic(err) // a fault of the test
	}
	v, err := record.Parse(b)
	if err != nil {
		panic(err)
	}
	offset := int64(len(s.topics[t]))
	s.topics[t] = append(s.topics[t], broker.Delivery{Record: v, Topic: t, Queue: 0, Offset: offset, Stored: time.Now()})
	return offset
}

func (s *memStore) Receive(ctx context.Context, r broker.ReceiveRequest) ([]broker.Delivery, error) {
	timer := time.NewTimer(r.Wait)
	defer timer.Stop()
	for {
		s.mu.Lock()
		s.last = r
		if s.receive != nil {
			s.mu.Unlock()
			return nil, s.receive
		}
		if s.empty {
			s.mu.Unlock()
			return nil, nil
		}
		got, next := s.pop(r)
		changed, lasting := s.changed, s.lasting
		s.mu.Unlock()
		if len(got) > 0 {
			return got, nil
		}
		visible, over := time.NewTimer(next), timer.C
		if lasting {
			over = nil
		}
		select {
		case <-changed:
		case <-visible.C:
		case <-over:
			visible.Stop()
			return nil, nil
		case <-ctx.Done():
			visible.Stop()
			return nil, ctx.Err()
		}
		visible.Stop()
	}
}

// pop takes what is visible; next is when to look again; the caller holds mu.
func (s *memStore) pop(r broker.ReceiveRequest) (got []broker.Delivery, next time.Duration) {
	next = time.Hour
	now := time.Now()
	for _, d := range s.topics[r.Topic] {
		key := fmt.Sprintf("%s/%s/%d", r.Group, r.Topic, d.Offset)
		h := s.held[key]
		if h == nil {
			h = &hold{}
			s.held[key] = h
		}
		if !r.Filter.Matches(&d.Record) {
			h.done = true
		}
		if h.done || len(got) == r.Max {
			continue
		}
		if wait := h.until.Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		h.attempt++
		h.serial++
		h.until = now.Add(r.Invisible)
		d.Attempt, d.Invisible, d.Handle = h.attempt, r.Invisible, key+"/"+strconv.Itoa(h.serial)
		got = append(got, d)
	}
	return got, next
}

func (s *memStore) EndTransaction(_ context.Context, t zone.Topic, _ string, _ broker.Resolution) error {
	return &broker.Error{Op: "end transaction", Kind: broker.KindTransaction, Topic: t}
}

// use finds the hold of a good handle; the caller holds mu.
func (s *memStore) use(op string, g zone.ConsumerGroup, t zone.Topic, handle string) (string, *hold, error) {
	if s.settle != nil {
		if err := s.settle(op, handle); err != nil {
			return "", nil, err
		}
	}
	i := strings.LastIndexByte(handle, '/')
	if i < 0 || !strings.HasPrefix(handle, fmt.Sprintf("%s/%s/", g, t)) {
		return "", nil, &broker.Error{Op: op, Kind: broker.KindHandle, Group: g, Topic: t, Text: "malformed or foreign"}
	}
	h := s.held[handle[:i]]
	if h == nil || strconv.Itoa(h.serial) != handle[i+1:] {
		return "", nil, &broker.Error{Op: op, Kind: broker.KindHandle, Group: g, Topic: t, Text: "no longer valid"}
	}
	return handle[:i], h, nil
}

func (s *memStore) Ack(_ context.Context, g zone.ConsumerGroup, t zone.Topic, handle string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, h, err := s.use("ack", g, t, handle)
	if err == nil {
		h.done = true
	}
	return err
}

func (s *memStore) ChangeInvisible(_ context.Context, g zone.ConsumerGroup, t zone.Topic, handle string, d time.Duration) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, h, err := s.use("change invisible", g, t, handle)
	if err != nil {
		return "", err
	}
	s.waits = append(s.waits, d)
	h.until = time.Now().Add(d)
	h.serial++
	s.wake()
	return key + "/" + strconv.Itoa(h.serial), nil
}

func (s *memStore) Suspend(ctx context.Context, g zone.ConsumerGroup, t zone.Topic, handle string, d time.Duration) (string, error) {
	renewed, err := s.ChangeInvisible(ctx, g, t, handle, d)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.held[handle[:strings.LastIndexByte(handle, '/')]].attempt--
	}
	return renewed, err
}

func (s *memStore) DeadLetter(_ context.Context, g zone.ConsumerGroup, t zone.Topic, handle string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, h, err := s.use("dead letter", g, t, handle)
	if err != nil {
		return err
	}
	if !h.done {
		h.done = true
		offset, _ := strconv.Atoi(key[strings.LastIndexByte(key, '/')+1:])
		var rec record.Record
		if err := s.topics[t][offset].Record.Decode(&rec); err != nil {
			return err
		}
		rec.Type, rec.Topic = record.TypeDeadLetter, broker.DeadLetterTopic(g)
		// See broker.Cause: version, kind, topic; all else is zero.
		rec.Cause = append(append([]byte{1, byte(broker.CauseConsumer), byte(len(t))}, t...), make([]byte, 41)...)
		s.store(broker.DeadLetterTopic(g), &rec)
		s.wake()
	}
	return nil
}
