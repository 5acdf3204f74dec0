package render

// key is an entry of the legend.
type key struct {
	class, text string
	line        bool   // a line; else a box
	tip         string // arrow head of a line
}

func (k key) width() int { return 34 + runes(k.text)*charWidth + 22 }

// keys lists what the picture has, so that the legend explains nothing else.
func keys(s *scene) []key {
	kinds, remote, inCity, routers, caches, coordinators := map[string]bool{}, false, false, false, false, false
	for _, c := range s.cities {
		routers = routers || len(c.routers) > 0
		caches = caches || len(c.caches) > 0
		coordinators = coordinators || len(c.coordinators) > 0
		for _, z := range c.zones {
			kinds[z.kind] = true
		}
	}
	for _, b := range s.standbys {
		remote, inCity = remote || b.remote, inCity || !b.remote
	}
	var all []key
	add := func(there bool, k key) {
		if there {
			all = append(all, k)
		}
	}
	add(kinds["RZone"], key{class: "RZone", text: "RZone: users by shard"})
	add(kinds["GZone"], key{class: "GZone", text: "GZone: one active"})
	add(kinds["CZone"], key{class: "CZone", text: "CZone: the city's data"})
	add(routers, key{class: "router", text: "router"})
	add(caches, key{class: "cache", text: "cache"})
	add(coordinators, key{class: "coordinator", text: "coordinator"})
	add(len(s.links) > 0, key{class: "link", text: "QUIC between routers", line: true})
	add(inCity, key{class: "standby", text: "fails over in the city", line: true, tip: "standby"})
	add(remote, key{class: "remote", text: "fails over to another city", line: true, tip: "remote"})
	if s.topic != nil {
		add(true, key{class: "topic", text: "the topic's records", line: true, tip: "topic"})
		add(true, key{class: "card lands", text: "they land here"})
	}
	if s.diff {
		add(true, key{class: "card added", text: "+ new"})
		add(true, key{class: "card removed", text: "- gone"})
		add(true, key{class: "card changed", text: "~ changed"})
	}
	return all
}

const legendLine = 22

// legendRows breaks the keys into lines of the width.
func legendRows(all []key, width int) [][]key {
	var rows [][]key
	room := 0
	for _, k := range all {
		if room < k.width() {
			rows, room = append(rows, nil), width-2*margin
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], k)
		room -= k.width()
	}
	return rows
}

func legendHeight(s *scene, width int) int { return len(legendRows(keys(s), width)) * legendLine }

func legend(c *canvas, l *layout) {
	for i, row := range legendRows(keys(l.scene), l.width) {
		x, y := margin, l.legend+i*legendLine
		for _, k := range row {
			if k.line {
				c.printf("<path class=\"%s\" d=\"M%d %dH%d\"", k.class, x, y+8, x+26)
				if k.tip != "" {
					c.printf(" marker-end=\"url(#%s)\"", k.tip)
				}
				c.printf("/>\n")
			} else {
				c.rect(k.class, box{x, y + 1, 26, 14}, 3)
			}
			c.text("s", x+34, y+12, false, k.text)
			x += k.width()
		}
	}
}
