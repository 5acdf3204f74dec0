package admin

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"
)

type fakeGroups struct{ resets []ResetRequest }

func (f *fakeGroups) Reset(_ context.Context, r ResetRequest) ([]GroupReset, error) {
	f.resets = append(f.resets, r)
	if r.Group == "nobody" {
		return nil, &RequestError{Status: http.StatusNotFound, Err: errors.New("not here")}
	}
	return []GroupReset{{Node: "n", Queue: 3, Next: 9, To: 4, Skipped: 2}}, nil
}

func TestClientAndServerAgreeOnResets(t *testing.T) {
	f := &fakeGroups{}
	s, _ := handler(&fakeLetters{})
	srv := httptest.NewServer(s.routes(&Options{Node: fakeNode{}, Groups: f}))
	defer srv.Close()
	addr, c := strings.TrimPrefix(srv.URL, "http://"), NewClient(nil, 5*time.Second)
	queue := 3
	for _, want := range []ResetRequest{
		{Group: "g", Topic: "t", To: "earliest", Preview: true},
		{Group: "g", Topic: "t", To: "time", Time: time.Unix(1e9, 7).UTC(), Queue: &queue},
		{Group: "g", Topic: "%DLQ%x", To: "offset", Offset: 1 << 62},
	} {
		got, err := c.ResetGroup(t.Context(), addr, want)
		if err != nil || len(got) != 1 || got[0] != (GroupReset{Node: "n", Queue: 3, Next: 9, To: 4, Skipped: 2}) {
			t.Errorf("%+v, %v", got, err)
		}
		if last := f.resets[len(f.resets)-1]; !reflect.DeepEqual(last, want) {
			t.Errorf("the server read %+v, want %+v", last, want)
		}
	}
	var answer *AnswerError
	if _, err := c.ResetGroup(t.Context(), addr, ResetRequest{Group: "nobody", Topic: "t", To: "latest"}); !errors.As(err, &answer) || answer.Status != http.StatusNotFound {
		t.Errorf("%v", err)
	}
	n := len(f.resets)
	for _, body := range []string{``, `{}`, `{"group":"g"}`, `{"group":"g","topic":"t","colour":1}`, `{"group":"g","topic":"` + strings.Repeat("t", maxRequest) + `"}`} {
		resp, err := srv.Client().Post(srv.URL+"/v1/groups/reset", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%.40s: status %d", body, resp.StatusCode)
		}
	}
	resp, err := srv.Client().Post(srv.URL+"/v1/groups/reset", "text/plain", strings.NewReader(`{"group":"g","topic":"t"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnsupportedMediaType {
		t.Errorf("a form: status %d", resp.StatusCode)
	}
	if len(f.resets) != n {
		t.Error("a request that was refused got through")
	}
}
