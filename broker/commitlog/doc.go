// Package commitlog owns the commit log of a broker group.
package commitlog
