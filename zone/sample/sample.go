package sample

import (
	"bytes"
	_ "embed"
	"fmt"
	"text/template"
)

// YAML is the sample topology. The caller does not change it.
//
//go:embed sample.yaml
var YAML []byte

//go:embed replicas.yaml.tmpl
var replicas string

// Replicated returns the topology of a smaller deployment, of two cities, in which the
// broker group of one zone has so many nodes, which vote: three or five.
func Replicated(nodes int) ([]byte, error) {
	if nodes != 3 && nodes != 5 {
		return nil, fmt.Errorf("sample: a group of %d nodes: they vote, so there are three or five", nodes)
	}
	var numbers []int
	for n := range nodes {
		numbers = append(numbers, n+1)
	}
	t, err := template.New("replicas").Parse(replicas)
	if err != nil {
		return nil, fmt.Errorf("sample: %w", err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, numbers); err != nil {
		return nil, fmt.Errorf("sample: %w", err)
	}
	return b.Bytes(), nil
}
