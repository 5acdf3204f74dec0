// Package sample holds the deployment that `mqrouter dev` starts: three cities
// with every kind of zone, all on 127.0.0.1. It owns the file and nothing else;
// parse it with zone.Parse.
package sample

import _ "embed"

// YAML is the sample topology. The caller does not change it.
//
//go:embed sample.yaml
var YAML []byte
