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

type fakeOrders struct {
	by       string
	switched []SwitchOrder
	failed   []FailoverOrder
	extent   ExtentQuery
}

func (f *fakeOrders) Switch(_ context.Context, by string, o SwitchOrder) ([]GroupTerm, error) {
	f.by, f.switched = by, append(f.switched, o)
	return []GroupTerm{{Group: o.Group, Epoch: 5, Master: o.To}}, nil
}

func (f *fakeOrders) Failover(_ context.Context, by string, o FailoverOrder) ([]GroupTerm, error) {
	f.by, f.failed = by, append(f.failed, o)
	if !o.AllowLoss {
		return nil, &RequestError{Status: http.StatusConflict, Err: errors.New("not in sync")}
	}
	return []GroupTerm{{Group: o.Group, Epoch: 6, Master: o.To, Lost: &GroupLoss{Epoch: 6, From: 7, Known: 9}}}, nil
}

func (f *fakeOrders) Extent(_ context.Context, q ExtentQuery) (LogExtent, error) {
	f.extent = q
	return LogExtent{From: q.From, To: q.To, Records: 3, Topics: []TopicCount{{"t", 2}}}, nil
}

func TestClientAndServerAgreeOnBrokerGroups(t *testing.T) {
	f := &fakeOrders{}
	s, _ := handler(&fakeLetters{})
	srv := httptest.NewServer(s.routes(&Options{Node: fakeNode{}, BrokerGroups: f}))
	defer srv.Close()
	addr, c := strings.TrimPrefix(srv.URL, "http://"), NewClient(nil, 5*time.Second)
	change := SwitchOrder{Group: "g", To: "g-2", Why: "w", Operator: "alice@host"}
	if list, err := c.Switch(t.Context(), addr, change); err != nil || !reflect.DeepEqual(list, []GroupTerm{{Group: "g", Epoch: 5, Master: "g-2"}}) {
		t.Errorf("%+v, %v", list, err)
	}
	if !reflect.DeepEqual(f.switched, []SwitchOrder{change}) || !strings.HasPrefix(f.by, "alice@host (127.0.0.1:") {
		t.Errorf("the server read %+v by %q", f.switched, f.by)
	}
	force := FailoverOrder{Group: "g", To: "g-3", AllowLoss: true, Why: "w"}
	list, err := c.Failover(t.Context(), addr, force)
	if err != nil || len(list) != 1 || list[0].Lost == nil || list[0].Lost.Known != 9 || !reflect.DeepEqual(f.failed, []FailoverOrder{force}) || !strings.HasPrefix(f.by, "127.0.0.1:") {
		t.Errorf("%+v, %v; read %+v by %q", list, err, f.failed, f.by)
	}
	var answer *AnswerError
	if _, err := c.Failover(t.Context(), addr, FailoverOrder{Group: "g"}); !errors.As(err, &answer) || answer.Status != http.StatusConflict || !strings.Contains(answer.Text, "not in sync") {
		t.Errorf("a refusal came as %v", err)
	}
	if x, err := c.Extent(t.Context(), addr, ExtentQuery{1 << 63, 1<<63 + 5}); err != nil || x.Records != 3 || f.extent != (ExtentQuery{1 << 63, 1<<63 + 5}) {
		t.Errorf("%+v, %v; read %+v", x, err, f.extent)
	}
	for _, path := range []string{"switch", "failover"} { // a web page's form must not order anything
		resp, err := http.Post(srv.URL+"/v1/brokergroup/"+path, "text/plain", strings.NewReader(`{"group":"g"}`))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusUnsupportedMediaType {
			t.Errorf("%s by a form: %d", path, resp.StatusCode)
		}
	}
}
