package config

import (
	"slices"
	"testing"
)

func TestMistypedVariablesAreTold(t *testing.T) {
	got := UnreadVariables([]string{
		"HOME=/home/me", "MQROUTERX=1", "MQROUTER_NAME=a", "MQROUTER_ADMIN=x", "MQROUTER_REDIS_PASSWORD=p", "MQROUTER_BENCH_SECONDS=1",
		"MQROUTER_DATADIR=/d", "MQROUTER_ADMIN_LISEN=x", "MQROUTER_WEATHER=fine", "MQROUTER_FOO=1", "MQROUTER_LONG=1", "MQROUTER_FUZZ_MEMORY=1",
		// Of services named mqrouter and mqrouter-broker.
		"MQROUTER_SERVICE_HOST=10.0.0.1", "MQROUTER_SERVICE_PORT=8081", "MQROUTER_SERVICE_PORT_GRPC=8081", "MQROUTER_PORT=tcp://10.0.0.1:8081",
		"MQROUTER_PORT_8081_TCP_ADDR=10.0.0.1", "MQROUTER_BROKER_PORT_8081_TCP=tcp://10.0.0.1:8081",
	})
	want := []Unread{{"MQROUTER_DATADIR", "MQROUTER_DATA_DIR"}, {"MQROUTER_ADMIN_LISEN", "MQROUTER_ADMIN_LISTEN"}, {"MQROUTER_WEATHER", ""}, {"MQROUTER_FOO", ""}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestScrubRateIsBounded(t *testing.T) {
	for text, want := range map[string]int64{"": 0, "off": -1, "64KiB": 64 << 10, "8MiB": 8 << 20, "1GiB": 1 << 30} {
		if got, err := (Node{ScrubRate: text}).ScrubBytes(); err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"0", "63KiB", "2GiB", "-8MiB", "much", "8MiB/s"} {
		if got, err := (Node{ScrubRate: text}).ScrubBytes(); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func TestSegmentSizeIsBounded(t *testing.T) {
	for text, want := range map[string]int64{"": 0, "16MiB": 16 << 20, "1GiB": 1 << 30, "64 MiB": 64 << 20} {
		if got, err := (Node{SegmentSize: text}).SegmentBytes(); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"15MiB", "2GiB", "64MB", "big", "-16MiB"} {
		if got, err := (Node{SegmentSize: text}).SegmentBytes(); err == nil {
			t.Errorf("%q: %d was allowed", text, got)
		}
	}
}
