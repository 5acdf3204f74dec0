package wire

import "strconv"

// The codes. Their values are part of the format.
const (
	CodeOK Code = iota
	CodeUnsupported
	CodeMalformed
	CodeUnknownGroup
	CodeNotMaster
	CodeWrongIdentity
	CodeWrongDeployment
	CodeTopologyBehind
	CodeTopologyAhead
	CodeHeld
	CodeTooMany
	CodeDraining
	CodeNoRoute
	CodeSlowPeer
	CodeSuperseded
	CodeDiverged
	CodeSealed
	CodeInternal
	CodeShutdown
	CodeResidency
	CodeTimeout
	CodeHops
	CodeRelayed
	CodeNotHeld
	codeCount
)

// codes is the table of codes: whether the same request may succeed later
// without anybody changing it, and what it means.
var codes = [codeCount]struct {
	name      string
	retryable bool
	text      string
}{
	CodeOK:              {"ok", false, "ended as agreed"},
	CodeUnsupported:     {"unsupported", false, "the peer does not support this version, frame or feature"},
	CodeMalformed:       {"malformed", false, "the peer received bytes that are not a valid frame"},
	CodeUnknownGroup:    {"unknown-group", true, "the peer's topology has no such group, topic or subscription"},
	CodeNotMaster:       {"not-master", true, "the peer is not the master of the group"},
	CodeWrongIdentity:   {"wrong-identity", false, "the certificate, the greeting and the topology do not agree"},
	CodeWrongDeployment: {"wrong-deployment", false, "the peer belongs to another deployment"},
	CodeTopologyBehind:  {"topology-behind", true, "the peer's topology is older than the request needs"},
	CodeTopologyAhead:   {"topology-ahead", true, "the peer's topology is newer than the request's"},
	CodeHeld:            {"held", true, "the peer cannot take records now"},
	CodeTooMany:         {"too-many", true, "the peer is at its bound of sessions or connections"},
	CodeDraining:        {"draining", true, "the peer is about to stop"},
	CodeNoRoute:         {"no-route", true, "the peer has no way to the destination now"},
	CodeSlowPeer:        {"slow-peer", true, "a hop could not pass bytes on in time"},
	CodeSuperseded:      {"superseded", false, "a newer session of the flow has taken over"},
	CodeDiverged:        {"diverged", false, "origin and destination do not agree about the flow's content"},
	CodeSealed:          {"sealed", false, "the flow is sealed at the destination"},
	CodeInternal:        {"internal", true, "the peer failed"},
	CodeShutdown:        {"shutdown", true, "the connection ended"},
	CodeResidency:       {"residency", false, "the records may not enter the city"},
	CodeTimeout:         {"timeout", true, "the peer waited too long"},
	CodeHops:            {"too-many-hops", true, "the session has crossed as many cities as it may, or one of them twice"},
	CodeRelayed:         {"relayed", true, "another city that has landed the records serves them"},
	CodeNotHeld:         {"not-held", true, "the peer has not landed the records that are asked for"},
}

// Known reports whether this version knows the code.
func (c Code) Known() bool { return c < codeCount }

// Retryable reports whether the same request may succeed later without
// anybody changing it. A code of a newer peer is retryable: giving up is the
// decision that cannot be taken back.
func (c Code) Retryable() bool { return !c.Known() || codes[c].retryable }

// String returns the code's short name, the form used in logs and metrics.
func (c Code) String() string {
	if !c.Known() {
		return "code-" + strconv.Itoa(int(c))
	}
	return codes[c].name
}

// Text says what the code means, for people.
func (c Code) Text() string {
	if !c.Known() {
		return "a code of a newer peer"
	}
	return codes[c].text
}
