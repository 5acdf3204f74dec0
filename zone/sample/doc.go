// Package sample holds the deployments that `mqrouter dev` starts, all on 127.0.0.1:
// three cities with every kind of zone, and a small one in which a broker group has
// replicas. It owns their files and nothing else; parse them with zone.Parse.
package sample
