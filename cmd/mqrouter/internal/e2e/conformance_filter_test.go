package e2e

import (
	"maps"
	"time"
)

// filterScenarios subscribe with SQL expressions.
var filterScenarios = []scenario{
	{name: "sql", far: true, run: sqlFilter},
	{name: "sql refusals", run: sqlRefusals},
}

// sqlFilter asks for properties: only what matches comes.
func sqlFilter(s *stage) {
	const expression = "(amount > 100 AND region IN ('hz', 'sh')) OR note IS NOT NULL AND amount BETWEEN 5 AND 10"
	mine := "scene = '" + s.tag() + "' AND (" + expression + ")"
	sql := map[string]any{"sql": true}
	push := s.consumer("push", s.there(), "transfer", mine, sql)
	simple := s.consumer("simple", s.there(), "transfer", mine, sql)
	producer := s.producer(rz01, "transfer")
	var want []string
	for _, c := range []struct {
		amount, region, note string
		matches              bool
	}{
		{"101", "hz", "", true},
		{"100", "hz", "", false},
		{"1000", "sz", "", false},
		{"250", "sh", "", true},
		{"250.5", "sh", "", true},
		{"7", "sz", "", false},
		{"7", "sz", "it's", true},
		{"11", "sz", "x", false},
		{"", "hz", "", false},
		{"many", "hz", "", false},
	} {
		p := map[string]string{"scene": s.tag(), "region": c.region}
		maps.Copy(p, s.to())
		if c.amount != "" {
			p["amount"] = c.amount
		}
		if c.note != "" {
			p["note"] = c.note
		}
		if id := s.send(producer, message{topic: "transfer", body: c.amount + c.region + c.note, properties: p}); c.matches {
			want = append(want, id)
		}
	}
	s.same("simple", s.take(simple, len(want)), want)
	s.same("push", s.pushed(push, len(want)), want)
	if late := s.receive(simple, 30*time.Second); len(late) > 0 {
		s.Errorf("after the last that matches came %s", bodies(late))
	}
}

// sqlRefusals subscribes with what is no expression: the client is told so.
func sqlRefusals(s *stage) {
	for _, expression := range []string{"amount >", "amount > 'x' AND", "a IN ()", "amount BETWEEN 5", "'unclosed"} {
		name := s.name("simple")
		fields := map[string]any{"client": name, "endpoint": s.at(rz01), "group": groupName(s.d.lang, s.scenario, "simple"),
			"topics": map[string]string{"orders": expression}, "await": 3000, "sql": true}
		err := s.d.call("simple", fields, nil)
		if err == nil {
			s.Cleanup(func() { s.d.closing.Go(func() { s.d.close(name) }) })
			_, err = s.tryReceive(name, 30*time.Second)
		}
		s.thrown("subscribe with "+expression, err)
		s.Logf("%s: %v", expression, err)
	}
}
