package render

import "fmt"

// merge returns the newer scene with what is gone from it added, and everything
// marked as it differs.
func merge(older, newer *scene) *scene {
	newer.diff = true
	newer.note = fmt.Sprintf("compared with %s, %s", older.title, older.note)
	before := older.zonesByName()
	placed := map[string]bool{} // city and zone
	was := map[string]*city{}
	for _, c := range older.cities {
		was[c.name] = c
		for _, z := range c.zones {
			placed[c.name+"/"+z.name] = true
		}
	}
	now := map[string]*city{}
	for _, c := range newer.cities {
		now[c.name] = c
		if was[c.name] == nil {
			c.mark = added
		}
		for _, z := range c.zones {
			switch old := before[z.name]; {
			case old == nil || !placed[c.name+"/"+z.name]:
				z.markAll(added)
			default:
				z.compare(old)
			}
		}
	}
	mergeGone(older, newer, now)
	for _, c := range newer.cities {
		old := was[c.name]
		if old == nil {
			old = &city{}
		}
		if now[c.name] == c {
			c.routers = mergeNodes(old.routers, c.routers)
			c.caches = mergeNodes(old.caches, c.caches)
			c.coordinators = mergeNodes(old.coordinators, c.coordinators)
		}
	}
	mergeStandbys(older, newer)
	mergeLinks(older, newer)
	return newer
}

// mergeGone adds cities and zones that are in the older scene only.
func mergeGone(older, newer *scene, now map[string]*city) {
	for _, c := range older.cities {
		target := now[c.name]
		if target == nil {
			gone := &city{name: c.name, mark: removed, routers: mergeNodes(c.routers, nil), caches: mergeNodes(c.caches, nil),
				coordinators: mergeNodes(c.coordinators, nil)}
			for _, z := range c.zones {
				gone.zones = append(gone.zones, z.markAll(removed))
			}
			newer.cities = append(newer.cities, gone)
			continue
		}
		has := map[string]bool{}
		for _, z := range target.zones {
			has[z.name] = true
		}
		for _, z := range c.zones {
			if !has[z.name] {
				target.zones = append(target.zones, z.markAll(removed))
			}
		}
	}
}

// markAll marks the zone and its groups and returns it.
func (z *zoneView) markAll(m mark) *zoneView {
	z.mark = m
	for i := range z.groups {
		z.groups[i].mark = m
	}
	return z
}

// compare marks what differs from the older zone of that name.
func (z *zoneView) compare(old *zoneView) {
	was := map[string]groupView{}
	for _, g := range old.groups {
		was[g.name] = g
	}
	if z.kind != old.kind || z.idle != old.idle || z.shards != old.shards {
		z.mark = changed
	}
	for i := range z.groups {
		g := &z.groups[i]
		o, ok := was[g.name]
		delete(was, g.name)
		switch {
		case !ok:
			g.mark = added
		case o.slots != g.slots || !sameNodes(o.nodes, g.nodes):
			g.mark = changed
		}
		if g.mark != same {
			z.mark = changed
		}
	}
	for _, g := range old.groups {
		if _, gone := was[g.name]; gone {
			g.mark, z.mark = removed, changed
			z.groups = append(z.groups, g)
		}
	}
}

func sameNodes(a, b []nodeView) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].name != b[i].name {
			return false
		}
	}
	return true
}

func mergeNodes(older, newer []nodeView) []nodeView {
	var all []nodeView
	was := map[string]bool{}
	for _, n := range older {
		was[n.name] = true
	}
	for _, n := range newer {
		if !was[n.name] {
			n.mark = added
		}
		delete(was, n.name)
		all = append(all, n)
	}
	for _, n := range older {
		if was[n.name] {
			all = append(all, nodeView{name: n.name, mark: removed})
		}
	}
	return all
}

func mergeStandbys(older, newer *scene) {
	was := map[standby]bool{}
	for _, s := range older.standbys {
		was[s] = true
	}
	for i, s := range newer.standbys {
		if !was[s] {
			newer.standbys[i].mark = added
		}
		delete(was, s)
	}
	for _, s := range older.standbys {
		if was[s] {
			s.mark = removed
			newer.standbys = append(newer.standbys, s)
		}
	}
}

// mergeLinks works on names of cities, since the scenes number them apart.
func mergeLinks(older, newer *scene) {
	number := map[string]int{}
	for i, c := range newer.cities {
		number[c.name] = i
	}
	was := map[[2]int]bool{}
	for _, l := range older.links {
		a, b := number[older.cities[l.a].name], number[older.cities[l.b].name]
		was[[2]int{min(a, b), max(a, b)}] = true
	}
	for i, l := range newer.links {
		if !was[[2]int{l.a, l.b}] {
			newer.links[i].mark = added
		}
		delete(was, [2]int{l.a, l.b})
	}
	for _, l := range older.links {
		a, b := number[older.cities[l.a].name], number[older.cities[l.b].name]
		if key := [2]int{min(a, b), max(a, b)}; was[key] {
			newer.links = append(newer.links, link{a: key[0], b: key[1], mark: removed})
		}
	}
}
