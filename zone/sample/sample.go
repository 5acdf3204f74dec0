package sample

import _ "embed"

// YAML is the sample topology. The caller does not change it.
//
//go:embed sample.yaml
var YAML []byte
