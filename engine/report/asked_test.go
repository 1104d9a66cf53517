package report

import (
	"fmt"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine/compare"
	"github.com/drumsbench/drumsbench/engine/record/recordtest"
)

// The index says of each metric what it takes and where it is measured, of each kind of
// comparison what has to be equal, and of a host that was busy that it was.
func TestAsked(t *testing.T) {
	r := load(t, recordtest.Run{Rollouts: 2, Facts: probed()})
	s, err := askedSection([]*Run{r})
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for _, row := range s.Tables[0].Rows {
		have[row[0].Text] = row[3].Text
	}
	for metric, want := range map[string]string{"Cold start, restore and reset latency": "in 1 record", "Failure rates": "in 1 record", "Stable N": "not measured",
		"Isolation": "not measured", "Footprint of an arm": "not measured", "Learning curve, and cost to a fixed success rate": "not measured"} {
		if have[metric] != want {
			t.Errorf("%s: %q, want %q", metric, have[metric], want)
		}
	}
	rules, err := samenessSection([]*Run{r})
	all, serr := compare.Sameness()
	if err != nil || serr != nil || len(rules.Tables[0].Rows) != len(all.Facts) || len(all.Facts) < 40 {
		t.Fatal(rules, err, serr)
	}
	for i, f := range all.Facts {
		r := f.Rules
		if got, want := cells(rules.Tables[0].Rows[i]), fmt.Sprintf("%s | %s | %s | %s | %s | %s | %s", f.Title, r.Arm, r.Reset, r.Branch, r.Setting, r.Slots, r.Repeat); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	files := write(t, Input{Runs: []*Run{r}})
	for _, name := range []string{"index.html", "data/report.json", "data/report.md"} {
		for _, want := range []string{"The host was not quiet before the run", "others used is 0.6200", "not measured"} {
			if !strings.Contains(files[name], want) {
				t.Errorf("%s lacks %q", name, want)
			}
		}
	}
	if strings.Contains(files["index.html"], "not quiet after") || !strings.Contains(files["index.html"], "1 record of 1 arm, 0 comparisons. No two sides have been compared") {
		t.Error("the index says what is not so")
	}
	blind := load(t, recordtest.Run{})
	if text := strings.Join(blind.caveats(), "\n"); !strings.Contains(text, "Whether the host was quiet before the run is not known") {
		t.Error(text)
	}
}
