//go:build linux && !elsewhere

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/arms/crashtest"
)

// Records of the crash suite are counted once each, with what failed; one of no commit is refused.
func TestCrashRecord(t *testing.T) {
	write := func(name string, r crashRecord) string {
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	r := crashRecord{
		Started: time.Unix(1, 0).UTC(), Commit: strings.Repeat("a", 40), Total: 2, Tried: map[string]map[string]int{"drums": {"ledger": 1, "criu": 1}, "fake": {}},
		Results: []crashtest.Result{{Arm: "drums", Name: "one", Killed: true}, {Arm: "drums", Name: "two", Killed: true, Inside: true, Problems: []string{"left"}}},
	}
	first := write("first.json", r)
	out, err := exec.Command("../../scripts/crash-record", first, first).Output()
	if err != nil {
		t.Fatal(err)
	}
	var kept struct {
		Totals map[string]map[string]int
		Runs   []struct {
			Arm    string
			Failed []struct{ Window string }
		}
	}
	if err := json.Unmarshal(out, &kept); err != nil {
		t.Fatal(err)
	}
	d := kept.Totals["drums"]
	if len(kept.Totals) != 1 || d["windows"] != 2 || d["inside"] != 1 || d["failed"] != 1 || len(kept.Runs) != 1 || kept.Runs[0].Failed[0].Window != "two" {
		t.Errorf("%s", out)
	}
	joined := filepath.Join(t.TempDir(), "joined.json")
	if err := os.WriteFile(joined, out, 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err := exec.Command("../../scripts/crash-record", joined, first).Output(); err != nil || string(again) != string(out) {
		t.Errorf("joined once more: %v\n%s", err, again)
	}
	for _, commit := range []string{"", strings.Repeat("a", 40) + " with changes"} {
		r.Commit = commit
		if out, err := exec.Command("../../scripts/crash-record", write("other.json", r)).CombinedOutput(); err == nil || !strings.Contains(string(out), "is of no commit") {
			t.Errorf("commit %q: %v\n%s", commit, err, out)
		}
	}
}
