//go:build linux && !elsewhere

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/record/recordtest"
)

// call runs the program in this process.
func call(t testing.TB, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(args, &out, &errs)
	return code, out.String(), errs.String()
}

// A person's way through a run that waits: see what waits and the pictures' paths,
// decide, and the verdict follows; verify finds it sound, and a site has it.
func TestReview(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	recordtest.Run{Gate: "live", Verdict: engine.Review, Rollouts: 2, Evidence: map[string][]byte{"screen.png": []byte("a picture")}}.Make(t, dir)

	code, out, _ := call(t, "review", dir)
	if code != codeReview || strings.Count(out, ": waits\n") != 2 || !strings.Contains(out, "2 of 2 steps wait") {
		t.Fatalf("%d %s", code, out)
	}
	for _, line := range strings.Split(out, "\n") {
		if path, is := strings.CutPrefix(line, "  look at "); is {
			if data, err := os.ReadFile(path); err != nil || string(data) != "a picture" {
				t.Errorf("%s: %v %q", path, err, data)
			}
		}
	}
	for _, wrong := range [][]string{
		{"review", dir, "--decide", "pass", "--by", "A. Person"},
		{"review", dir, "--decide", "pass", "--reason", "looked"},
		{"review", dir, "--decide", "pass", "--by", " ", "--reason", "looked"},
		{"review", dir, "--decide", "pass", "--by", "A. Person", "--reason", "looked"}, // which of the two?
		{"review", dir, "--decide", "perhaps", "--by", "A", "--reason", "b"},
		{"review", dir, "--by", "A"},
		{"review", t.TempDir()},
	} {
		if code, out, _ := call(t, wrong...); code != codeUsage || out != "" {
			t.Errorf("%v: %d %s", wrong[1:], code, out)
		}
	}
	decide := func(step string) (int, string, string) {
		return call(t, "review", dir, "--step", step, "--decide", "pass", "--by", "A. Person", "--reason", "the \x1b[31mfolder is there")
	}
	if code, out, errs := decide("r0/gate-live"); code != codeReview || !strings.Contains(out, "1 of 2 steps wait") || strings.Contains(out, "\x1b") {
		t.Errorf("%d %q %s", code, out, errs)
	}
	if code, _, errs := decide("r0/gate-live"); code != codeFailed || !strings.Contains(errs, "a decision is final") {
		t.Errorf("decided twice: %d %s", code, errs)
	}
	// A site does not count a run that still waits.
	site := filepath.Join(t.TempDir(), "site")
	if code, out, errs := call(t, "report", "--out", site, dir); code != 0 || !strings.Contains(out, "1 preliminary") {
		t.Fatalf("%d %s %s", code, out, errs)
	}
	if csv, err := os.ReadFile(filepath.Join(site, "data", "metrics.csv")); err != nil || bytes.Contains(csv, []byte("usable")) {
		t.Errorf("a run that waits has a number: %v", err)
	}
	if code, out, errs := call(t, "review", dir, "--decide", "pass", "--by", "A. Person", "--reason", "there too"); code != 0 || !strings.Contains(out, "run/one: passed; 0 of 2 steps wait") {
		t.Errorf("%d %s %s", code, out, errs)
	}
	if code, out, _ := call(t, "verify", dir); code != codeBlocked && code != 0 || strings.Contains(out, "damaged") {
		t.Errorf("verify: %d %s", code, out)
	}
	report, err := record.Verify(dir)
	if err != nil || len(report.Damage)+len(report.Crash)+len(report.Unknown) > 0 {
		t.Errorf("%v %+v", err, report)
	}

	// A run that somebody changed is not reviewed.
	events := filepath.Join(dir, record.EventsFile)
	data, err := os.ReadFile(events)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(events, bytes.Replace(data, []byte(`"verdict":"pass"`), []byte(`"verdict":"fail"`), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := call(t, "review", dir); code != codeFailed || out != "" || !strings.Contains(errs, "not sound") {
		t.Errorf("%d %s %s", code, out, errs)
	}
}
