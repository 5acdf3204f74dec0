package tails

import (
	"encoding/json"
	"errors"
	"io/fs"
	"path"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
)

// Progress is what became of a tail's messages when they were offered again. It is for
// people: what was stored again, the group's own log says.
type Progress struct {
	// Next and After are where the pass that is under way goes on (broker.TailPage); 0 =
	// none is, so what the counts lack was not looked at.
	Next   record.Position    `json:"next,omitempty"`
	After  record.Position    `json:"after,omitempty"`
	Pass   string             `json:"pass,omitempty"` // topic of the last pass; "" = all
	By     string             `json:"by"`
	Why    string             `json:"why"`
	At     time.Time          `json:"at"`
	Topics map[string]Offered `json:"topics"` // by topic, of the last pass over it; "" = those that the head does not list
	// Blocked are the message groups of the pass, with their topics, of which a message was
	// refused: those behind it are not offered, so that none overtakes it. At most MaxBlocked.
	Blocked []Blocked `json:"blocked,omitempty"`
	Reasons []Reason  `json:"reasons,omitempty"` // of what the pass refused, at most MaxReasons
}

// Bounds of a Progress.
const (
	MaxBlocked = 4096
	MaxReasons = 32
)

// Offered counts messages of clients by what became of them.
type Offered struct {
	Offered   int `json:"offered,omitempty"`   // stored again, now or before
	Duplicate int `json:"duplicate,omitempty"` // published again by their clients since
	Decided   int `json:"decided,omitempty"`   // decided since, or kept by the group
	Not       int `json:"not,omitempty"`       // the tail itself says that they are not to be
	Refused   int `json:"refused,omitempty"`
}

// Settled counts those that need nobody any more.
func (o *Offered) Settled() int { return o.Offered + o.Duplicate + o.Decided + o.Not }

// Blocked is a message group.
type Blocked struct {
	Topic string `json:"topic"`
	Group string `json:"group"`
}

// Reason says how many messages were refused for it.
type Reason struct {
	Text     string `json:"text"`
	Messages int    `json:"messages"`
}

// TopicOf is the name under which a topic is counted.
func (h *Head) TopicOf(topic string) string {
	for i := range h.Counts.Topics {
		if h.Counts.Topics[i].Topic == topic {
			return topic
		}
	}
	return ""
}

// Waiting counts the messages of clients that were not offered, or refused.
func (x *Info) Waiting() int {
	if x.Progress == nil {
		return x.Counts.Messages
	}
	n := x.Counts.Messages
	for _, o := range x.Progress.Topics {
		n -= o.Settled()
	}
	return max(n, 0)
}

const (
	offeredSuffix = ".offered"
	offering      = "offering" // a progress that is being written
	maxProgress   = 4 << 20    // bytes of its file
)

// SetProgress keeps what became of a tail's messages in place of what was kept before. At
// nil it is durable; a power cut leaves the old or the new one.
//
// Errors: ErrNone; those of the disk.
func (s *Store) SetProgress(id string, p *Progress) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list, err := s.load()
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].ID != id {
			continue
		}
		tmp := path.Join(s.dir, offering)
		if err := s.writeProgress(tmp, text); err != nil {
			return err
		}
		s.list = nil // unless all goes well, the folder says
		if err := s.fs.Rename(tmp, path.Join(s.dir, list[i].file+offeredSuffix)); err != nil {
			return err
		}
		if err := s.fs.SyncDir(s.dir); err != nil {
			return err
		}
		if list = slices.Clone(list); err == nil { // of load
			kept := *p
			list[i].Progress, s.list = &kept, list
		}
		return nil
	}
	return errors.Join(ErrNone, err)
}

func (s *Store) writeProgress(name string, text []byte) (err error) {
	f, err := s.fs.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.WriteAt(text, 0); err != nil {
		return err
	}
	if err := f.Truncate(int64(len(text))); err != nil {
		return err
	}
	return f.Sync()
}

// progress reads what is kept of a tail; nil when nothing is, or it cannot be read: the
// next offer makes it anew.
func (s *Store) progress(x *Info) *Progress {
	f, err := s.fs.Open(path.Join(s.dir, x.file+offeredSuffix))
	if err != nil {
		return nil
	}
	defer f.Close()
	text, err := readAll(f)
	p := new(Progress)
	if err != nil || json.Unmarshal(text, p) != nil {
		return nil
	}
	return p
}

func readAll(f disk.File) ([]byte, error) {
	n, err := f.Size()
	if err != nil || n > maxProgress {
		return nil, errors.Join(fs.ErrInvalid, err)
	}
	b := make([]byte, n)
	if got, err := f.ReadAt(b, 0); got < len(b) {
		return nil, errors.Join(fs.ErrInvalid, err)
	}
	return b, nil
}
