package zone

// Parse reads a topology from YAML. name stands before each line of the error
// and is usually the file's name. The error is a *ProblemsError with every
// fault of the file; the topology is nil then. Parse keeps no reference to
// data.
func Parse(data []byte, name string) (*Topology, error) {
	d := &draft{topo: &Topology{}}
	root, ok := parseYAML(data, &d.problems)
	if !ok {
		return nil, d.err(name)
	}
	d.readTopology(root)
	d.link()
	d.settle()
	d.validate()
	if err := d.err(name); err != nil {
		return nil, err
	}
	for _, t := range d.topo.Topics {
		t.faults = &resolveFaults{}
		t.topology = d.topo
	}
	d.topo.index.hot = makeHot(d.topo)
	d.topo.Digest = digest(d.topo)
	return d.topo, nil
}

// settle computes what follows from the file: CZones, the active GZone, owners
// of shards and slots. Where the file is wrong it settles what it can, so that
// validate can report the rest too.
func (d *draft) settle() {
	t := d.topo
	gzones := 0
	for _, z := range d.zones {
		if z.info.Kind == GZone {
			gzones++
		}
	}
	for _, z := range d.zones {
		switch z.info.Kind {
		case CZone:
			z.info.Active = true
			if z.info.City.CZone == nil {
				z.info.City.CZone = z.info
			}
		case GZone:
			// A GZone that is the only one is active without saying so.
			z.info.Active = z.active || gzones == 1 && z.activeAt.line == 0
			if z.info.Active && t.index.activeGZone == nil {
				t.index.activeGZone = z.info
			}
		default:
			z.info.Active = true
		}
		if z.info.Name != "" {
			t.index.destinations[string(z.info.Name)] = z.info
		}
	}
	for _, c := range t.Cities {
		if c.Name != "" && c.CZone != nil {
			t.index.destinations[string(c.Name)] = c.CZone
		}
	}
	d.settleShards()
	d.settleSlots()
}

// settleShards gives each shard to the first zone that claims it.
func (d *draft) settleShards() {
	t := d.topo
	t.index.shardOwners = make([]*ZoneInfo, t.ShardCount)
	claims := uint64(0) // bounds the work on a file in which every zone claims every shard
	for _, o := range d.shards.owners {
		z := t.index.zones[Zone(o.zone.name)]
		if z == nil {
			continue
		}
		for _, s := range o.spans {
			if claims += uint64(s.hi-s.lo) + 1; claims > 4*maxShards {
				return
			}
			for i := s.lo; i <= s.hi && i < t.ShardCount; i++ {
				if t.index.shardOwners[i] == nil {
					t.index.shardOwners[i] = z
					z.Shards++
				}
			}
		}
	}
}

// settleSlots fills each zone's slot table; zones divided alike share one.
func (d *draft) settleSlots() {
	shared := map[[Slots]uint16]*[Slots]uint16{}
	for _, z := range d.zones {
		if len(z.groups) < 2 {
			continue
		}
		var table [Slots]uint16
		for gi, g := range z.groups {
			for _, s := range g.slots {
				for i := s.lo; i <= s.hi; i++ {
					table[i] = uint16(gi)
				}
			}
		}
		if shared[table] == nil {
			shared[table] = &table
		}
		z.info.slots = shared[table]
	}
}
