//go:build linux && !elsewhere

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/record/recordtest"
	"github.com/drumsbench/drumsbench/engine/register"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// listed runs drumsbench ls and returns the runs' names, newest first.
func listed(t *testing.T, args ...string) (names []string) {
	t.Helper()
	code, out, errs := call(t, append([]string{"ls", "-o", "json"}, args...)...)
	var list []listedRun
	if err := json.Unmarshal([]byte(out), &list); code != 0 || err != nil {
		t.Fatalf("%d %v %s", code, err, errs)
	}
	for _, r := range list {
		names = append(names, r.Run)
	}
	return names
}

// Runs are found by what their records say, and a record that changes, comes or
// goes is seen at once, whatever the index had.
func TestLs(t *testing.T) {
	state := t.TempDir()
	runs := filepath.Join(state, "runs")
	if got := listed(t, "--state", state); got != nil {
		t.Errorf("no run yet: %v", got)
	}
	recordtest.Run{Name: "a", Manifest: "locks", Arm: "drums", Controls: true, Warmups: 1, Rollouts: 3}.Make(t, filepath.Join(runs, "x", "a"))
	recordtest.Run{Name: "b", Manifest: "rename", Arm: "oci", Reset: "cold"}.Make(t, filepath.Join(runs, "x", "b"))
	recordtest.Run{Name: "c", Manifest: "locks", Arm: "oci", Gate: "locks", Verdict: engine.Fail}.Make(t, filepath.Join(runs, "c"))
	recordtest.Run{Name: "d", Manifest: "locks", Arm: "oci", Gate: "live", Verdict: engine.Review}.Make(t, filepath.Join(runs, "d"))
	// One that crashed, and one that an engine works in.
	recordtest.Run{}.Make(t, filepath.Join(runs, "crashed"))
	if err := os.Remove(filepath.Join(runs, "crashed", record.RecordFile)); err != nil {
		t.Fatal(err)
	}
	held, err := record.Create(filepath.Join(runs, "held"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()

	for range 2 { // the second time from the index
		for _, c := range []struct {
			args []string
			want string
		}{
			{nil, "d c b a crashed held"},
			{[]string{"--manifest", "locks", "--limit", "2"}, "d c"},
			{[]string{"--arm", "drums", "--arm", "oci", "--manifest", "rename"}, "b"},
			{[]string{"--reset", "cold"}, "b"},
			{[]string{"--is", "failed"}, "c crashed"},
			{[]string{"--is", "review"}, "d"},
			{[]string{"--is", "passed,running"}, "b a held"},
			{[]string{"--is", "verified"}, ""},
			{[]string{"--since", "1h", "--is", "preliminary"}, "d b a"},
			{[]string{"--until", "2020-01-01"}, ""},
			{[]string{"--since", time.Now().Add(time.Hour).UTC().Format(time.RFC3339)}, ""},
			{[]string{filepath.Join(runs, "x")}, "b a"},
		} {
			if got := strings.Join(listed(t, append([]string{"--state", state}, c.args...)...), " "); got != c.want {
				t.Errorf("ls %v: %q, want %q", c.args, got, c.want)
			}
		}
	}
	if code, out, _ := call(t, "ls", "--state", state, "--manifest", "locks"); code != 0 || !strings.Contains(out, "locks     drums  restore  preliminary  passed   3  ") || !strings.HasSuffix(out, "3 runs of 6\n") {
		t.Errorf("%d\n%s", code, out)
	}
	for _, wrong := range [][]string{{"--is", "fine"}, {"--since", "yesterday"}, {filepath.Join(state, "nowhere")}} {
		if code, out, _ := call(t, append([]string{"ls", "--state", state}, wrong...)...); code != codeUsage || out != "" {
			t.Errorf("%v: %d %s", wrong, code, out)
		}
	}

	// The same size, another text.
	path := filepath.Join(runs, "x", "a", record.RecordFile)
	data, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(strings.Replace(string(data), `"manifest":"locks"`, `"manifest":"socks"`, 1)), 0o644)
	}
	err = errors.Join(err, os.RemoveAll(filepath.Join(runs, "c")))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(listed(t, "--state", state, "--manifest", "socks", "--manifest", "locks"), " "); got != "d a" {
		t.Errorf("after a change: %s", got)
	}
	// An index that cannot be read is none.
	if err := os.WriteFile(filepath.Join(state, "cache", "runs.index"), []byte("nonsense"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(listed(t, "--state", state), " "); got != "d b a crashed held" {
		t.Errorf("with a broken index: %s", got)
	}
	// A record that cannot be read is listed, and is no success.
	if err := os.WriteFile(path, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(listed(t, "--state", state, "--is", "failed"), " "); got != "crashed a" {
		t.Errorf("with a broken record: %s", got)
	}
}

// What was judged is remembered as long as every file that it was judged from has
// its identity, and judged again once one has not.
func TestLsJudgesAgain(t *testing.T) {
	state := t.TempDir()
	o := recordtest.Run{Name: "e/one", Rollouts: 7, Bars: []bench.Bar{{Name: "quick", Metric: "usable", Of: bench.BarSide{Arm: "fake", Reset: "restore"}, P50: &bench.Bound{Max: "1h"}, N: 7}}}
	reg, err := register.New(o.Plans(), recordtest.Engine, time.Now().Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	o.Registration = reg.JSON
	dir := filepath.Join(state, "runs", "one")
	o.Make(t, dir)
	is := func() string {
		t.Helper()
		code, out, errs := call(t, "ls", "-o", "json", "--state", state)
		var list []listedRun
		if err := json.Unmarshal([]byte(out), &list); code != 0 || err != nil || len(list) != 1 || list[0].Registration != reg.Digest {
			t.Fatalf("%d %v %s %s", code, err, out, errs)
		}
		return list[0].State
	}
	judged := is()
	remember := func() {
		t.Helper()
		index := openRunIndex(filepath.Join(state, "cache", "runs.index"))
		if got := index.judged[reg.Digest].States[dir]; got != judged {
			t.Fatalf("the index has %q, it was judged %s", got, judged)
		}
		index.judged[reg.Digest].States[dir] = "remembered"
		index.changed, index.seen[dir] = true, true
		if err := index.save(nil); err != nil {
			t.Fatal(err)
		}
		if got := is(); got != "remembered" {
			t.Errorf("it was judged again: %s", got)
		}
	}
	for _, name := range judgedFiles {
		path := filepath.Join(dir, name)
		if name == record.ReviewsFile {
			continue // it comes, below
		}
		remember()
		if err := os.Chtimes(path, time.Now(), time.Now().Add(-time.Minute)); err != nil {
			t.Fatal(err)
		}
		if got := is(); got != judged {
			t.Errorf("%s is another one, and it is %s as before", name, got)
		}
	}
	remember()
	if err := register.AddStart(filepath.Join(state, registrationsFolder), register.Start{Registration: reg.Digest, Time: "2026-01-01T00:00:00Z", Run: "/elsewhere"}); err != nil {
		t.Fatal(err)
	}
	if got := is(); got == "remembered" {
		t.Error("another run was started, and it is as before")
	}
	if err := os.WriteFile(filepath.Join(dir, record.ReviewsFile), []byte("{}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := is(); got != "failed" {
		t.Errorf("a file was put there, and it is %s", got)
	}
}

// BenchmarkLs lists 10,000 runs: with an index, and without one.
func BenchmarkLs(b *testing.B) {
	const n = 10_000
	state := b.TempDir()
	runs := filepath.Join(state, "runs")
	recordtest.Run{Rollouts: 5, Controls: true}.Make(b, filepath.Join(state, "one"))
	data, err := os.ReadFile(filepath.Join(state, "one", record.RecordFile))
	if err != nil {
		b.Fatal(err)
	}
	for i := range n {
		dir := filepath.Join(runs, fmt.Sprint("day-", i%20), fmt.Sprint("run-", i))
		err := errors.Join(os.MkdirAll(filepath.Join(dir, record.EvidenceFolder), 0o755), os.WriteFile(filepath.Join(dir, record.RecordFile), data, 0o644))
		if err != nil {
			b.Fatal(err)
		}
	}
	list := func(b *testing.B) {
		if code, out, errs := call(b, "ls", "--state", state, "--limit", "1", "--is", "passed"); code != 0 || !strings.Contains(out, "1 run of 10000, 9999 more match") {
			b.Fatalf("%d %s %s", code, out, errs)
		}
	}
	b.Run("no-index", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			_ = os.Remove(filepath.Join(state, "cache", "runs.index"))
			b.StartTimer()
			list(b)
		}
		b.ReportMetric(float64(len(data)), "bytes/record")
	})
	b.Run("index", func(b *testing.B) {
		for b.Loop() {
			list(b)
		}
	})
}
