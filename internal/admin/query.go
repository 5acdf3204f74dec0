package admin

import (
	"errors"
	"net/url"
	"strconv"
	"time"
)

// queryWriter writes the fields of a query; what is zero is left out.
type queryWriter url.Values

func (w queryWriter) text(key, value string) {
	if value != "" {
		url.Values(w).Set(key, value)
	}
}

func (w queryWriter) number(key string, n uint64) {
	if n > 0 {
		url.Values(w).Set(key, strconv.FormatUint(n, 10))
	}
}

func (w queryWriter) moment(key string, t time.Time) {
	if !t.IsZero() {
		url.Values(w).Set(key, t.UTC().Format(time.RFC3339Nano))
	}
}

// page writes what every query for a page of messages has.
func (w queryWriter) page(limit int, id string, since, until time.Time) {
	w.number("limit", uint64(max(limit, 0)))
	w.text("id", id)
	w.moment("since", since)
	w.moment("until", until)
}

func (w queryWriter) flag(key string, on bool) {
	if on {
		url.Values(w).Set(key, "true")
	}
}

// queryReader reads what a queryWriter wrote, and collects all that is wrong with it.
type queryReader struct {
	values url.Values
	errs   []error
}

// number reads a number of at most so many bits; 0 when it is not there.
func (r *queryReader) number(key string, bits int) uint64 {
	if !r.values.Has(key) {
		return 0
	}
	n, err := strconv.ParseUint(r.values.Get(key), 10, bits)
	r.fail(err)
	return n
}

func (r *queryReader) moment(key string) time.Time {
	if !r.values.Has(key) {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, r.values.Get(key))
	r.fail(err)
	return t
}

// page reads what queryWriter.page wrote.
func (r *queryReader) page() (limit int, id string, since, until time.Time) {
	return int(r.number("limit", 31)), r.values.Get("id"), r.moment("since"), r.moment("until")
}

func (r *queryReader) flag(key string) bool { return r.values.Get(key) == "true" }

// fail adds to what is wrong; nil is nothing.
func (r *queryReader) fail(err error) { r.errs = append(r.errs, err) }

func (r *queryReader) err() error { return errors.Join(r.errs...) }
