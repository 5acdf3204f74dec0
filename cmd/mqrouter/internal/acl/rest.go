package acl

import (
	"bytes"
	"time"
)

// A beginning of an access file is often a good one with fewer users. So a file that is
// written in place, and not renamed into it, is read until two readings in a row are the
// same, or for as long as restTries allow: one that changes all the time is taken then.
const (
	restFor   = 100 * time.Millisecond // between two readings
	restTries = 20
)

// rested returns a reader of the content of a file that rests. It blocks for restFor when
// that is another than at the last time. It is for one goroutine at a time.
func rested(read func(path string) ([]byte, error)) func(path string) ([]byte, error) {
	var last []byte
	return func(path string) ([]byte, error) {
		data, err := read(path)
		for n := 0; err == nil && !bytes.Equal(data, last) && n < restTries; n++ {
			last = data
			time.Sleep(restFor)
			data, err = read(path)
		}
		return data, err
	}
}
