package tails

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
)

// Bounds of a store.
const (
	// DefaultMax is how many bytes the tails of a member have together: some minutes of
	// a busy master.
	DefaultMax = 8 << 30
	// MaxTails is how many there may be.
	MaxTails = 64
)

// ErrRoom says that the tails that are kept leave no room for another one.
var ErrRoom = errors.New("tails: no room beside the tails that are kept: offer them again, and drop them")

// ErrNone says that there is no tail of that id.
var ErrNone = errors.New("tails: there is no such tail")

// Head says what a tail is and what is in it.
type Head struct {
	Group       string             `json:"group"`
	Node        string             `json:"node"`
	Incarnation record.Incarnation `json:"incarnation"`
	Epoch       uint64             `json:"epoch"` // of the last lineage in it
	From        record.Position    `json:"from"`  // end of what the log had in common with its master's
	End         record.Position    `json:"end"`
	// Committed is up to where this member knew the log to be committed: what stands
	// below was acknowledged, as far as anybody asked.
	Committed record.Position `json:"committed"`
	// Forced says that an operator had ordered a fail-over with loss since: then
	// whatever is in it may have been acknowledged. Else only what asked for less than
	// all members in sync.
	Forced bool                  `json:"forced"`
	Saved  time.Time             `json:"saved"`
	Table  []record.LineageStart `json:"lineage"` // the rows that reach into it
	Counts Counts                `json:"counts"`
	// Settled says what consumer groups had settled of the messages in it, as far as the
	// log told; at most MaxSettled ranges. Unsure: there were more.
	Settled []Settled `json:"settled,omitempty"`
	Unsure  bool      `json:"unsure,omitempty"`
}

// MaxSettled bounds the ranges of a head's Settled.
const MaxSettled = 4096

// Settled is what a consumer group had settled of a topic: the topic's messages in ranges
// of positions, ascending, both ends included.
type Settled struct {
	Group  string               `json:"group"`
	Topic  string               `json:"topic"`
	Ranges [][2]record.Position `json:"ranges"`
}

// Has reports whether the message of the topic at the position is in a range.
func (s *Settled) Has(p record.Position) bool {
	i, _ := slices.BinarySearchFunc(s.Ranges, p, func(r [2]record.Position, p record.Position) int { return cmp.Compare(r[1], p) })
	return i < len(s.Ranges) && s.Ranges[i][0] <= p
}

// Counts says how much of what is in a tail.
type Counts struct {
	Records  int            `json:"records"`
	Kinds    map[string]int `json:"kinds"`            // records by kind, in the words of package broker
	Topics   []Topic        `json:"topics,omitempty"` // by name, at most MaxTopics
	More     int            `json:"more,omitempty"`   // messages of further topics
	Messages int            `json:"messages"`         // of clients
	Certain  int            `json:"certain"`          // of these: surely acknowledged
}

// MaxTopics bounds the topics that are counted one by one.
const MaxTopics = 256

// Topic counts the messages of one.
type Topic struct {
	Topic    string `json:"topic"`
	Messages int    `json:"messages"`
	Certain  int    `json:"certain"` // surely acknowledged
}

// Info is a tail that is kept.
type Info struct {
	ID    string
	Bytes int64 // of its file
	Head
	Progress *Progress // nil = it was not offered again; not to be changed
	// Damage says why the file cannot be read as a tail: then the ID is the file's name,
	// and the Head is empty.
	Damage error
	file   string // its name
}

// Store is the tails in a folder. Make one with New.
type Store struct {
	fs  disk.FS
	dir string
	max int64

	mu   sync.Mutex // one change at a time
	list []Info     // by name; nil = not read yet; guarded by mu
}

// New returns the store of a folder, which need not exist. max bounds its bytes; 0 =
// DefaultMax.
func New(fsys disk.FS, dir string, most int64) *Store {
	if most <= 0 {
		most = DefaultMax
	}
	return &Store{fs: fsys, dir: dir, max: most}
}

const (
	suffix   = ".tail"
	incoming = "incoming"
)

// ID returns the id of a tail with that head.
func (h *Head) ID() string {
	return strconv.FormatUint(h.Epoch, 10) + "-" + strconv.FormatUint(uint64(h.From), 10) + "-" + strconv.FormatUint(uint64(h.End), 10)
}

func (h *Head) name() string { return fmt.Sprintf("%016x-%s%s", uint64(h.Incarnation), h.ID(), suffix) }

// List returns the tails, oldest lineage first, and before them the files that cannot be
// read as one. It reads their heads, once unless there is such a file.
func (s *Store) List() ([]Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list, err := s.load()
	return slices.Clone(list), err
}

// load returns what List does, and keeps it unless a file could not be read. mu is held.
func (s *Store) load() ([]Info, error) {
	if s.list != nil {
		return s.list, nil
	}
	names, err := s.fs.List(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	list, whole := []Info{}, true
	for _, n := range names {
		if !strings.HasSuffix(n, suffix) {
			continue
		}
		info := s.head(n)
		whole = whole && info.Damage == nil
		list = append(list, info)
	}
	sortInfos(list)
	if whole {
		s.list = list
	}
	return list, nil
}

func sortInfos(list []Info) {
	slices.SortFunc(list, func(a, b Info) int {
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.From, b.From), cmp.Compare(a.End, b.End), cmp.Compare(a.Incarnation, b.Incarnation), cmp.Compare(a.ID, b.ID))
	})
}

// head tells of a file.
func (s *Store) head(name string) Info {
	r, size, err := openFile(s.fs, path.Join(s.dir, name))
	if err != nil {
		return Info{ID: name, Bytes: size, Damage: err, file: name}
	}
	defer r.close()
	if r.head.name() != name {
		return Info{ID: name, Bytes: size, Damage: &FileError{Name: name, What: "the file is of another tail"}, file: name}
	}
	x := Info{ID: r.head.ID(), Bytes: size, Head: r.head, file: name}
	x.Progress = s.progress(&x)
	return x
}

// Find returns the tail of an id; with the id of a damaged one comes its Damage.
func (s *Store) Find(id string) (Info, error) {
	list, err := s.List()
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].ID == id {
			return list[i], list[i].Damage
		}
	}
	return Info{}, errors.Join(ErrNone, err)
}

// Drop removes a tail, or what is left of one, for ever; at nil that is durable.
func (s *Store) Drop(id string) (Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list, err := s.load()
	i := slices.IndexFunc(list, func(x Info) bool { return x.ID == id })
	if i < 0 {
		return Info{}, errors.Join(ErrNone, err)
	}
	x := list[i]
	s.list = nil // whatever becomes of it, the folder says
	if err := s.fs.Remove(path.Join(s.dir, x.file+offeredSuffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return x, err
	}
	if err := s.fs.Remove(path.Join(s.dir, x.file)); err != nil {
		return x, err
	}
	return x, s.fs.SyncDir(s.dir)
}
