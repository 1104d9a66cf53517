//go:build linux && !elsewhere

package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/arms/doctor"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// What -o json prints is host facts as the schema has them.
func TestDoctorPrintsHostFacts(t *testing.T) {
	for _, args := range [][]string{{"--arm", "fake"}, {}, {"--arm", "drums", "--arm", "fake"}} {
		var stdout, stderr bytes.Buffer
		code := run(append([]string{"doctor", "-o", "json", "--state", t.TempDir()}, args...), &stdout, &stderr)
		if stderr.Len() > 0 || code == codeUsage {
			t.Fatalf("%q: code %d, %s", args, code, stderr.String())
		}
		if err := compile.Validate("HostFacts", stdout.Bytes()); err != nil {
			t.Errorf("%q: %v", args, err)
		}
		var facts bench.HostFacts
		if err := json.Unmarshal(stdout.Bytes(), &facts); err != nil {
			t.Fatal(err)
		}
		if len(facts.Facts) == 0 || len(facts.Arms) != max(1, len(args)/2) {
			t.Errorf("%q: %d facts, %d arms", args, len(facts.Facts), len(facts.Arms))
		}
	}
}

func TestHealthExit(t *testing.T) {
	for _, c := range []struct {
		verdicts string
		want     int
	}{
		{"ok", 0}, {"ok ok", 0}, {"ok unknown", 3}, {"unknown lack", 1}, {"lack ok", 1},
	} {
		var arms []bench.ArmHealth
		for _, v := range strings.Fields(c.verdicts) {
			arms = append(arms, bench.ArmHealth{Verdict: v})
		}
		if have := healthExit(arms); have != c.want {
			t.Errorf("%s: have %d, want %d", c.verdicts, have, c.want)
		}
	}
}

func TestHealthText(t *testing.T) {
	have := healthText([]bench.ArmHealth{{Arm: "drums", Verdict: doctor.Unknown, Findings: []bench.HostFinding{
		{Subject: "a", Severity: doctor.OK, Text: "good"},
		{Subject: "bb", Severity: doctor.Warn, Text: "so\nso", Remedy: "mend"},
		{Subject: "c", Severity: doctor.Unknown, Text: "who knows", Remedy: "ask"},
	}}})
	want := `drums: it is not known whether it can run on this host, 0 lack, 1 unknown, 1 warn, 1 ok
  unknown  c   who knows
               remedy: ask
  warn     bb  so so
               remedy: mend
  ok       a   good
`
	if have != want {
		t.Errorf("have\n%swant\n%s", have, want)
	}
}
