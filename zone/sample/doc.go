// Package sample holds the deployment that `mqrouter dev` starts: three cities
// with every kind of zone, all on 127.0.0.1. It owns the file and nothing else;
// parse it with zone.Parse.
package sample
