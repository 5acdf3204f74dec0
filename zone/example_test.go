package zone_test

import (
	"errors"
	"fmt"

	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

func ExampleTopology_Resolve() {
	topology, err := zone.Parse(sample.YAML, "sample.yaml")
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := topology.Resolve(zone.Query{
		Topic: topology.FindTopic("transfer"),
		From:  topology.FindZone("rz01"),
		User:  "208812345685",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(d.Shard, d.Zone.Name, d.Zone.City.Name, d.Reach)

	_, err = topology.Resolve(zone.Query{Topic: topology.FindTopic("transfer"), From: topology.FindZone("rz01")})
	fmt.Println(errors.Is(err, zone.ErrMissingUser), err)
	// Output:
	// 85 rz05 shenzhen far
	// true topic transfer: the message has no user id (read from property userId)
}

func ExampleParse_problems() {
	_, err := zone.Parse([]byte("deployment: shop\ncitys: []\n"), "shop.yaml")
	fmt.Println(err)
	// Output:
	// shop.yaml:1:1: the topology has no epoch; add the key epoch
	// shop.yaml:2:1: the topology has no key "citys"; did you mean cities?
}

func ExampleTopology_Explain() {
	topology, err := zone.Parse(sample.YAML, "sample.yaml")
	if err != nil {
		fmt.Println(err)
		return
	}
	q := zone.QueryFor(topology.FindTopic("ledger"), topology.FindZone("rz05"), "")
	for _, step := range topology.Explain(q)[2:] {
		fmt.Println(step)
	}
	// Output:
	// published: in zone rz05 (RZone) of city shenzhen
	// route: global: the active GZone is gz01 of city shanghai
	// lands: in broker group gz01-a, zone gz01, city shanghai: through the routers of both cities
}
