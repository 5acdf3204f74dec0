package policy

import (
	"slices"
	"strings"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// deadLetters begins the name of the dead-letter topic of a consumer group.
const deadLetters = "%DLQ%"

// Access says which clients may do what. It is immutable and safe for concurrent
// use; ParseAccess makes one from a file.
type Access struct {
	skew      time.Duration // 0: the clock is not checked
	offsets   []time.Duration
	anonymous *User // nil: clients without credentials are refused
	users     map[string]*User
	nobody    *User // stands for access keys that there are not
}

// User is an access key and what it may do; the anonymous one has the key "".
type User struct {
	Key     string
	secrets [2][]byte // the second one may be empty: a secret that is going out of use
	publish patterns
	consume patterns
	groups  patterns
}

// Anonymous reports whether u stands for clients without credentials.
func (u *User) Anonymous() bool { return u.Key == "" }

// Name is what logs call the user.
func (u *User) Name() string {
	if u.Anonymous() {
		return "anonymous"
	}
	return u.Key
}

// MayPublish reports whether the user may send to the topic, recall from it and end
// its transactions.
func (u *User) MayPublish(t zone.Topic) bool { return u.publish.match(string(t)) }

// MayRead reports whether the user may read the topic, by itself: to find its
// queues, and the offsets in them. The dead letters of a consumer group may be read
// by whoever may consume for that group, and by nobody else whose pattern does not
// name dead letters.
func (u *User) MayRead(t zone.Topic) bool {
	if g, ok := strings.CutPrefix(string(t), deadLetters); ok {
		return g != "" && u.groups.match(g) || u.consume.matchFrom(deadLetters, string(t))
	}
	return u.consume.match(string(t))
}

// MayConsume reports whether the user may act for the consumer group on the topic:
// receive, acknowledge, set offsets. It takes both permissions.
func (u *User) MayConsume(g zone.ConsumerGroup, t zone.Topic) bool {
	return u.MayAct(g) && u.MayRead(t)
}

// MayAct reports whether the user may act for the consumer group.
func (u *User) MayAct(g zone.ConsumerGroup) bool { return u.groups.match(string(g)) }

// Publish, Consume and Groups return the patterns of the file, for people.
func (u *User) Publish() []string { return u.publish.source }

// Consume is like Publish.
func (u *User) Consume() []string { return u.consume.source }

// Groups is like Publish.
func (u *User) Groups() []string { return u.groups.source }

// Users returns the users in the order of their keys, the anonymous one first if
// there is one.
func (a *Access) Users() []*User {
	list := make([]*User, 0, len(a.users)+1)
	for _, u := range a.users {
		list = append(list, u)
	}
	slices.SortFunc(list, func(a, b *User) int { return strings.Compare(a.Key, b.Key) })
	if a.anonymous != nil {
		list = slices.Insert(list, 0, a.anonymous)
	}
	return list
}

// patterns are names, and beginnings of names with a star behind.
type patterns struct {
	source []string
	names  map[string]struct{}
	starts []string
}

func newPatterns(list []string) patterns {
	p := patterns{source: list, names: map[string]struct{}{}}
	for _, s := range list {
		if start, ok := strings.CutSuffix(s, "*"); ok {
			p.starts = append(p.starts, start)
			continue
		}
		p.names[s] = struct{}{}
	}
	return p
}

func (p *patterns) match(name string) bool {
	if _, ok := p.names[name]; ok {
		return true
	}
	for _, s := range p.starts {
		if strings.HasPrefix(name, s) {
			return name != ""
		}
	}
	return false
}

// matchFrom is match with the patterns that begin so.
func (p *patterns) matchFrom(start, name string) bool {
	if _, ok := p.names[name]; ok {
		return true
	}
	for _, s := range p.starts {
		if strings.HasPrefix(s, start) && strings.HasPrefix(name, s) {
			return true
		}
	}
	return false
}
