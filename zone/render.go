package zone

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// ShowColumns is the width that Show keeps to.
const ShowColumns = 100

// Show draws the topology as tables for people, no line longer than
// ShowColumns.
func Show(t *Topology) string {
	var b strings.Builder
	fmt.Fprintf(&b, "deployment %s   epoch %s   digest %x\n", t.Deployment, t.Epoch, t.Digest[:8])
	nodes := len(t.index.nodes)
	fmt.Fprintf(&b, "%s, %s, %s, %s, %s\n", count(len(t.Cities), "city", "cities"), count(len(t.index.zoneList), "zone", "zones"),
		count(nodes, "node", "nodes"), count(len(t.Topics), "topic", "topics"), count(len(t.Groups), "consumer group", "consumer groups"))
	if t.ShardCount > 0 {
		fmt.Fprintf(&b, "user shards: %d, %s\n", t.ShardCount, t.shardReason())
	}
	undeclared := "are refused"
	if t.UnknownGroupsNewest {
		undeclared = "start at the newest message"
	}
	fmt.Fprintf(&b, "consumer groups that are not declared %s\n", undeclared)
	b.WriteString(viaText(t))
	showZones(&b, t)
	showBrokers(&b, t)
	showRouters(&b, t)
	showCoordinators(&b, t)
	showTopics(&b, t)
	showConsumers(&b, t)
	return b.String()
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func showZones(b *strings.Builder, t *Topology) {
	rows := [][]string{{"CITY", "ZONE", "KIND", "SHARDS", "STANDBY", "GROUP", "SLOTS"}}
	shards := shardRanges(t)
	for _, c := range t.Cities {
		city := string(c.Name)
		for _, z := range c.Zones {
			zone, kind, owns, standby := string(z.Name), z.Kind.String(), shards[z.Index], standbyText(z)
			if z.Kind == GZone && z.Active {
				kind += "*"
			}
			slots := slotRanges(z)
			for gi, g := range z.Groups {
				rows = append(rows, []string{city, zone, kind, owns, standby, string(g.Name), slots[gi]})
				city, zone, kind, owns, standby = "", "", "", "", ""
			}
		}
	}
	table(b, rows)
	if t.index.activeGZone != nil {
		b.WriteString("* the active GZone; standbys: in the city / in another one\n")
	} else {
		b.WriteString("standbys: in the city / in another one\n")
	}
}

func standbyText(z *ZoneInfo) string {
	in, out := "-", "-"
	if z.InCityStandby != nil {
		in = string(z.InCityStandby.Name)
	}
	if z.RemoteStandby != nil {
		out = string(z.RemoteStandby.Name)
	}
	if in == "-" && out == "-" {
		return "-"
	}
	return in + " / " + out
}

func showBrokers(b *strings.Builder, t *Topology) {
	rooms := slices.ContainsFunc(brokers(t), func(n *NodeInfo) bool { return n.Room != "" })
	rows := [][]string{{"ZONE", "BROKER", "HOST", "CLIENTS", "PEER", "GOSSIP", "ADMIN"}}
	if rooms {
		rows[0] = append(rows[0], "ROOM")
	}
	for _, z := range t.index.zoneList {
		zone := string(z.Name)
		for _, g := range z.Groups {
			for _, n := range g.Nodes {
				row := append([]string{zone, string(n.Name)}, hostAndPorts(n.Client, n.Peer, n.Gossip, n.Admin)...)
				if rooms {
					row = append(row, orDash(string(n.Room)))
				}
				rows = append(rows, row)
				zone = ""
			}
		}
	}
	table(b, rows)
}

// hostAndPorts returns the host that all addresses share and ":port" for each
// address; or "-" and the whole addresses when they share none.
func hostAndPorts(addrs ...string) []string {
	host := addrs[0][:strings.LastIndexByte(addrs[0], ':')]
	shared := true
	for _, a := range addrs {
		shared = shared && (a == "" || a[:strings.LastIndexByte(a, ':')] == host)
	}
	out := []string{"-"}
	if shared {
		out[0] = host
	}
	for _, a := range addrs {
		if shared {
			a = strings.TrimPrefix(a, host)
		}
		out = append(out, orDash(a))
	}
	return out
}

// shardRanges returns for each zone, by index, the shards that it owns.
func shardRanges(t *Topology) []string {
	owned := make([][]uint32, len(t.index.zoneList))
	for s, z := range t.index.shardOwners {
		owned[z.Index] = append(owned[z.Index], uint32(s))
	}
	out := make([]string, len(owned))
	for i, list := range owned {
		out[i] = orDash(rangesText(list))
	}
	return out
}

// slotRanges returns for each group of the zone the slots that it owns.
func slotRanges(z *ZoneInfo) []string {
	if z.slots == nil {
		return []string{fmt.Sprintf("0-%d", Slots-1)}
	}
	owned := make([][]uint32, len(z.Groups))
	for s, g := range z.slots {
		owned[g] = append(owned[g], uint32(s))
	}
	out := make([]string, len(owned))
	for i, list := range owned {
		out[i] = orDash(rangesText(list))
	}
	return out
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func showRouters(b *strings.Builder, t *Topology) {
	rows := [][]string{{"CITY", "ROUTER", "HOST", "QUIC", "PEER", "GOSSIP", "WAN", "ADMIN"}}
	caches := [][]string{{"CITY", "CACHE", "ADMIN"}}
	for _, c := range t.Cities {
		city := string(c.Name)
		for _, n := range c.Routers {
			rows = append(rows, append([]string{city, string(n.Name)}, hostAndPorts(n.QUIC, n.Peer, n.Gossip, n.WAN, n.Admin)...))
			city = ""
		}
		city = string(c.Name)
		for _, n := range c.Caches {
			caches = append(caches, []string{city, string(n.Name), n.Admin})
			city = ""
		}
	}
	for _, rows := range [][][]string{rows, caches} {
		if len(rows) > 1 {
			table(b, rows)
		}
	}
}

func showTopics(b *strings.Builder, t *Topology) {
	rows := [][]string{{"TOPIC", "ROUTE", "KIND", "CLASS", "QUEUES", "KEPT", "BUDGET", "BODY", "CITIES"}}
	for _, topic := range t.Topics {
		cities := "all"
		if topic.resident != nil {
			cities = cityNames(topic.Residency)
		}
		kind := topic.Kind.String()
		if topic.Kind == KindDelay {
			kind += " to " + FormatDuration(topic.MaxDelay)
		}
		if topic.Kind == KindLite {
			kind += fmt.Sprintf(", %d topics for %s", topic.Lite.Topics, FormatDuration(topic.Lite.TTL))
		}
		if promise := topic.promise(); promise != "" {
			kind += ", " + promise
		}
		if topic.Receipts != nil {
			kind += ", receipts to " + string(topic.Receipts.Name)
		}
		if topic.Idempotent > 0 {
			kind += ", once in " + FormatDuration(topic.Idempotent)
		}
		rows = append(rows, []string{string(topic.Name), topic.Route.String(), kind, topic.Class.String(),
			fmt.Sprint(topic.Queues), FormatDuration(topic.Retention), formatSize(topic.Budget) + " " + topic.AtBudget.String(),
			formatSize(int64(topic.MaxBody)), cities})
	}
	if len(rows) > 1 {
		table(b, rows)
	}
}

func showConsumers(b *strings.Builder, t *Topology) {
	rows := [][]string{{"CONSUMER GROUP", "TOPICS", "ZONES", "ATTEMPTS", "RETRY AFTER", "NOTES"}}
	for _, g := range t.Groups {
		topics := make([]string, len(g.Topics))
		for i, topic := range g.Topics {
			topics[i] = string(topic.Name)
		}
		zones := "where topics land"
		if len(g.Zones) > 0 {
			names := make([]string, len(g.Zones))
			for i, z := range g.Zones {
				names[i] = string(z.Name)
			}
			zones = listed(names, 4)
		}
		var notes []string
		if g.FIFO {
			notes = append(notes, "fifo")
		}
		if g.Lite != LiteShared {
			notes = append(notes, "lite "+g.Lite.String())
		}
		attempts, retry := fmt.Sprint(g.MaxAttempts), g.Backoff.String()
		if g.Cache {
			notes, attempts, retry = append(notes, "cache"), "-", "-"
		}
		if g.Hold > 0 {
			notes = append(notes, "holds "+formatSize(g.Hold))
		}
		rows = append(rows, []string{string(g.Name), listed(topics, 4), zones, attempts, retry, strings.Join(notes, ", ")})
	}
	if len(rows) > 1 {
		table(b, rows)
	}
}

// String returns the policy in short: "1s x2 to 10m", or its steps.
func (p Backoff) String() string {
	if len(p.Steps) == 0 {
		return fmt.Sprintf("%s x%g to %s", FormatDuration(p.Initial), p.Multiplier, FormatDuration(p.Max))
	}
	steps := make([]string, len(p.Steps))
	for i, s := range p.Steps {
		steps[i] = FormatDuration(s)
	}
	return listed(steps, 4)
}

// table writes a blank line and rows in columns. When they are wider than
// ShowColumns, the widest columns give way and their cells go on in the next
// lines, so that nothing is lost.
func table(b *strings.Builder, rows [][]string) {
	const gap = 2
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for total(widths)+gap*(len(widths)-1) > ShowColumns {
		widest := 0
		for i, w := range widths {
			if w > widths[widest] {
				widest = i
			}
		}
		widths[widest]--
	}
	b.WriteByte('\n')
	for _, row := range rows {
		cells := make([][]string, len(row))
		lines := 1
		for i, cell := range row {
			cells[i] = fold(cell, widths[i])
			lines = max(lines, len(cells[i]))
		}
		for l := range lines {
			var line strings.Builder
			for i := range row {
				text := ""
				if l < len(cells[i]) {
					text = cells[i][l]
				}
				line.WriteString(text)
				line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text)+gap))
			}
			b.WriteString(strings.TrimRight(line.String(), " "))
			b.WriteByte('\n')
		}
	}
}

func total(widths []int) int {
	sum := 0
	for _, w := range widths {
		sum += w
	}
	return sum
}

// fold breaks text into pieces of at most width characters: at a blank, else
// after a mark that separates parts of names, else anywhere.
func fold(text string, width int) []string {
	var out []string
	r := []rune(text)
	for len(r) > width {
		cut, rest := width, width
		for i := width; i > width/2; i-- {
			if r[i] == ' ' {
				cut, rest = i, i+1
				break
			}
			if cut == width && strings.ContainsRune("_-.,:/", r[i-1]) {
				cut, rest = i, i
			}
		}
		out = append(out, string(r[:cut]))
		r = r[rest:]
	}
	return append(out, string(r))
}
