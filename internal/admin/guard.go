package admin

import (
	"encoding/json"
	"mime"
	"net"
	"net/http"
)

// mayWrite refuses requests of web pages that an operator has open: a form
// cannot send JSON, and a script may not without being asked. Over TLS it asks
// for an operator's certificate.
func (s *Server) mayWrite(w http.ResponseWriter, r *http.Request) bool {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		http.Error(w, "send application/json", http.StatusUnsupportedMediaType)
		return false
	}
	if !atHome(w, r) {
		return false
	}
	if r.TLS != nil && s.operator != nil {
		if err := s.operator(r.TLS); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return false
		}
	}
	return true
}

// atHome refuses plain requests that name this server by anything but an address
// or localhost: a web page whose name was pointed at 127.0.0.1 after it was loaded
// is of one origin with this server for a browser, which then asks nobody.
func atHome(w http.ResponseWriter, r *http.Request) bool {
	if r.TLS != nil {
		return true // a certificate says who it is
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if host == "" || host == "localhost" || net.ParseIP(trimBrackets(host)) != nil {
		return true
	}
	http.Error(w, "without TLS, name this server by its address or as localhost", http.StatusForbidden)
	return false
}

func trimBrackets(host string) string {
	if n := len(host); n > 2 && host[0] == '[' && host[n-1] == ']' {
		return host[1 : n-1]
	}
	return host
}

// who names the caller in the log: as its certificate does, and where it is.
func who(r *http.Request) string {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		return r.TLS.PeerCertificates[0].Subject.CommonName + " at " + r.RemoteAddr
	}
	return r.RemoteAddr
}

// maxRequest bounds the body of a request, in bytes.
const maxRequest = 64 << 10

// readBody reads the body of a request, of most bytes at most, into v. Keys that are
// unknown are errors.
func readBody(w http.ResponseWriter, r *http.Request, most int64, v any) error {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, most))
	dec.DisallowUnknownFields()
	return dec.Decode(v)
}
