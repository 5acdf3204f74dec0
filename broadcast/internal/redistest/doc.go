// Package redistest runs private Redis processes for tests. It touches no other
// Redis: each listens on a free loopback port and keeps nothing on disk.
//
// A Server owns its process and one goroutine that reads its output; both end
// with the test. Nothing here is ordered.
package redistest
