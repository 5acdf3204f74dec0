package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Bounds of an access file.
const (
	MaxAccessBytes = 4 << 20 // of the file
	maxUsers       = 10_000
	maxPatterns    = 1024 // of one list
	maxPattern     = 256  // bytes
	maxKey         = 64   // bytes of an access key
	minSecret      = 16   // bytes: whoever sees one signature can try secrets at leisure
	maxSecret      = 256  // bytes
	maxSkew        = time.Hour
	defaultSkew    = 5 * time.Minute
)

// AccessError is a fault in an access file. It never has a secret in it.
type AccessError struct {
	File string
	Line int // from 1; 0 = the file as a whole
	Text string
}

// Error puts the place before the text.
func (e *AccessError) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Text
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Text)
}

// accessFile is the file as it is written.
type accessFile struct {
	Clock struct {
		Skew    *scalar   `yaml:"skew"`
		Offsets yaml.Node `yaml:"offsets"`
	} `yaml:"clock"`
	Anonymous *rights   `yaml:"anonymous"`
	Users     []account `yaml:"users"`
}

// rights are what somebody may do.
type rights struct {
	Publish []scalar `yaml:"publish"`
	Consume []scalar `yaml:"consume"`
	Groups  []scalar `yaml:"groups"`
}

// account is a user.
type account struct {
	Key     scalar   `yaml:"access_key"`
	Secret  *scalar  `yaml:"secret"`
	Secrets []scalar `yaml:"secrets"`
	rights  `yaml:",inline"`
}

// scalar is a text and where it stands.
type scalar struct {
	text string
	line int
}

// UnmarshalYAML implements yaml.Unmarshaler. It takes text only: numbers and
// booleans would be secrets and names that were meant to be quoted.
func (s *scalar) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.ScalarNode {
		return fmt.Errorf("line %d: a text is needed", n.Line)
	}
	if n.Tag == "!!null" {
		return fmt.Errorf("line %d: a value is missing", n.Line)
	}
	s.text, s.line = n.Value, n.Line
	return nil
}

// ParseAccess reads an access file; file is its name in errors. It reports every
// fault, each an *AccessError.
func ParseAccess(data []byte, file string) (*Access, error) {
	p := accessParser{file: file}
	if len(data) > MaxAccessBytes {
		p.fault(0, "the file has %d bytes, the limit is %d", len(data), MaxAccessBytes)
		return nil, p.err()
	}
	var f accessFile
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil {
		p.syntax(err)
		return nil, p.err()
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		p.fault(0, "there is more than one document in the file")
	}
	a := &Access{users: make(map[string]*User, len(f.Users)), nobody: &User{secrets: [2][]byte{bytes.Repeat([]byte{'x'}, minSecret)}}}
	p.clock(&f, a)
	if f.Anonymous != nil {
		a.anonymous = &User{}
		p.rights(f.Anonymous, a.anonymous)
	}
	if len(f.Users) > maxUsers {
		p.fault(0, "%d users, the limit is %d", len(f.Users), maxUsers)
		return nil, p.err()
	}
	for i := range f.Users {
		p.user(&f.Users[i], a)
	}
	if len(f.Users) == 0 && f.Anonymous == nil {
		p.fault(0, "nobody may do anything: list users, or say what anonymous clients may do")
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	return a, nil
}

// accessParser collects faults.
type accessParser struct {
	file   string
	faults []error
}

func (p *accessParser) fault(line int, format string, args ...any) {
	p.faults = append(p.faults, &AccessError{File: p.file, Line: line, Text: fmt.Sprintf(format, args...)})
}

func (p *accessParser) err() error { return errors.Join(p.faults...) }

// syntax reports what the YAML library says, without its values: they may be
// secrets.
func (p *accessParser) syntax(err error) {
	if errors.Is(err, io.EOF) {
		p.fault(0, "the file is empty")
		return
	}
	texts := []string{err.Error()}
	var list *yaml.TypeError
	if errors.As(err, &list) {
		texts = list.Errors
	}
	for _, t := range texts {
		line := 0
		t = strings.TrimPrefix(t, "yaml: ")
		if _, err := fmt.Sscanf(t, "line %d:", &line); err == nil {
			_, t, _ = strings.Cut(t, ": ")
		}
		switch {
		case strings.Contains(t, "not found in type"):
			t = strings.Fields(t)[1] + " is not a key of this file: clock, anonymous and users are; of a user access_key, secret, secrets, publish, consume, groups"
		case strings.HasPrefix(t, "cannot unmarshal"):
			t = "a value is of another kind than its key needs: lists are written [a, b]"
		case list == nil:
			t = "this is not YAML: " + t + "; check the text at and before this line"
		}
		p.fault(line, "%s", t)
	}
}

func (p *accessParser) clock(f *accessFile, a *Access) {
	a.skew = defaultSkew
	if s := f.Clock.Skew; s != nil {
		d, err := time.ParseDuration(s.text)
		switch {
		case s.text == "off":
			a.skew = 0
		case err != nil || d < time.Second || d > maxSkew:
			p.fault(s.line, "clock skew %q: write a duration from 1s to %v, or off", s.text, maxSkew)
		default:
			a.skew = d
		}
	}
	n := &f.Clock.Offsets
	if n.IsZero() || n.Kind == yaml.ScalarNode && n.Value == "any" {
		return
	}
	var list []scalar
	if err := n.Decode(&list); err != nil || len(list) == 0 {
		p.fault(n.Line, "clock offsets: write any, or a list such as [UTC, \"+08:00\"]")
		return
	}
	for _, s := range list {
		at, err := time.Parse("-07:00", s.text)
		_, seconds := at.Zone()
		offset := time.Duration(seconds) * time.Second
		switch {
		case s.text == "UTC":
			offset = 0
		case err != nil || offset.Abs() > maxOffset || offset%quarter != 0:
			p.fault(s.line, "clock offset %q: write UTC or a quoted offset such as \"+08:00\"", s.text)
		}
		a.offsets = append(a.offsets, offset)
	}
}

func (p *accessParser) user(w *account, a *Access) {
	key := w.Key
	switch {
	case key.text == "":
		p.fault(key.line, "a user has no access_key")
		return
	case len(key.text) > maxKey || !keyText(key.text):
		p.fault(key.line, "access_key: 1 to %d letters, digits and . _ - @ are allowed", maxKey)
		return
	case a.users[key.text] != nil:
		p.fault(key.line, "the access_key %s is there twice", key.text)
		return
	}
	u := &User{Key: key.text}
	secrets := w.Secrets
	switch {
	case w.Secret != nil && len(secrets) > 0:
		p.fault(key.line, "user %s has secret and secrets: write one of them", key.text)
	case w.Secret != nil:
		secrets = []scalar{*w.Secret}
	case len(secrets) == 0:
		p.fault(key.line, "user %s has no secret", key.text)
	case len(secrets) > len(u.secrets):
		p.fault(secrets[0].line, "user %s has %d secrets; at most two are taken, the new one and the old one", key.text, len(secrets))
	}
	for i, s := range secrets[:min(len(secrets), len(u.secrets))] {
		if len(s.text) < minSecret || len(s.text) > maxSecret {
			p.fault(s.line, "a secret of user %s has %d bytes; %d to %d are needed, for example from: openssl rand -hex 24", key.text, len(s.text), minSecret, maxSecret)
		}
		u.secrets[i] = []byte(s.text)
	}
	p.rights(&w.rights, u)
	a.users[u.Key] = u
}

func (p *accessParser) rights(w *rights, u *User) {
	u.publish = p.patterns("publish", w.Publish)
	u.consume = p.patterns("consume", w.Consume)
	u.groups = p.patterns("groups", w.Groups)
}

func (p *accessParser) patterns(what string, list []scalar) patterns {
	if len(list) > maxPatterns {
		p.fault(list[0].line, "%s has %d names, the limit is %d", what, len(list), maxPatterns)
		return patterns{}
	}
	names := make([]string, 0, len(list))
	for _, s := range list {
		name := strings.TrimSuffix(s.text, "*")
		switch {
		case s.text == "" || len(s.text) > maxPattern || !nameText(name):
			p.fault(s.line, "%s: %.64q is no name: letters, digits, %%, |, _ and - are allowed, and one * at the end for all names that begin so", what, s.text)
		case slices.Contains(names, s.text):
			p.fault(s.line, "%s has %s twice", what, s.text)
		}
		names = append(names, s.text)
	}
	return newPatterns(names)
}

func letterOrDigit(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

func nameText(s string) bool {
	for i := range len(s) {
		if !letterOrDigit(s[i]) && !strings.ContainsRune("%|_-", rune(s[i])) {
			return false
		}
	}
	return true
}

func keyText(s string) bool {
	for i := range len(s) {
		if !letterOrDigit(s[i]) && !strings.ContainsRune("._-@", rune(s[i])) {
			return false
		}
	}
	return true
}
