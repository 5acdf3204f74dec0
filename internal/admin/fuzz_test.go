package admin

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"
)

// FuzzDeadLetterQuery reads queries of any form.
func FuzzDeadLetterQuery(f *testing.F) {
	f.Add(DeadLetterQuery{Queue: "%DLQ%g", From: 3, Limit: 4, MessageID: "m", Tag: "t", Properties: []string{"a=b"}, Since: time.Unix(1e9, 0), Pending: true}.values().Encode())
	f.Add("queue=&from=-1&limit=1e9&since=now")
	f.Fuzz(func(t *testing.T, text string) {
		v, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		q, err := parseLetterQuery(v)
		if err != nil {
			return
		}
		again, err := parseLetterQuery(q.values())
		again.Since, again.Until = again.Since.UTC(), again.Until.UTC()
		q.Since, q.Until = q.Since.UTC(), q.Until.UTC()
		if err != nil || !reflect.DeepEqual(again, q) {
			t.Errorf("%+v became %+v, %v", q, again, err)
		}
	})
}

// FuzzReplayRequest sends bodies of any form to the only request that changes
// something: they are served, or refused with a status that says whose fault it
// is.
func FuzzReplayRequest(f *testing.F) {
	f.Add(`{"queue":"q","offsets":[1,2],"force":true}`)
	f.Add(`{"queue":"q","offsets":[-1]}`)
	f.Add(`[` + strings.Repeat("[", 10000))
	f.Fuzz(func(t *testing.T, body string) {
		_, h := handler(&fakeLetters{})
		r := httptest.NewRequest("POST", "http://127.0.0.1/v1/dead-letters/replay", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK && w.Code != http.StatusBadRequest {
			t.Errorf("%d: %s", w.Code, w.Body)
		}
	})
}
