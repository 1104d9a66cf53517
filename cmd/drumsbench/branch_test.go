//go:build linux && !elsewhere

package main

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	site "github.com/drumsbench/drumsbench/engine/report"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

var branchArm = flag.String("branch-arm", "oci", "the arm of TestBranchManifest; qemu is emulated, and takes minutes")

// Branches on an arm other than that of docs/experiments.md, with nothing of the task
// in the first checkpoint: the trunk does the set-up, and every check between the siblings passes.
func TestBranchManifest(t *testing.T) {
	manifest := filepath.Join(realState(), "manifests", "manifests", "branch")
	if _, err := os.Stat(manifest); err != nil {
		t.Fatalf("%v: scripts/prepare makes it", err)
	}
	base := filepath.Join(realState(), "runs")
	if err := os.MkdirAll(base, 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := os.MkdirTemp(base, "drums-branch-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(out) })
	said, err := exec.Command("drumsbench", "--state", realState(), "run", "--arm", *branchArm, "-t", "accel=tcg", "--reset", "restore", "-t", "reuse=none", "-t", "rollouts=1", "--out", out, manifest).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	run := filepath.Join(out, *branchArm+"-restore")
	nothingOwned(t, run)
	r := readBack(t, run)
	var lines []string
	for _, l := range site.Branches(r) {
		lines = append(lines, string(l.Branch)+" "+site.ClassesText(l.Classes)+" "+site.Scores(l.Before)+">"+site.Scores(l.After))
	}
	if got, want := strings.Join(lines, ", "), "right success 0.0>1.0, wrong failed_valid 0.0>0.0, again success 0.0>1.0, idle failed_valid 0.0>0.0"; r.Verdict != engine.RunPassed || got != want {
		t.Errorf("%s: %s, want %s", r.Verdict, got, want)
	}
	checks := site.SiblingChecks(r)
	for _, c := range checks {
		if c.Passed != c.Asked {
			t.Errorf("%s: %d of %d", c.Name, c.Passed, c.Asked)
		}
	}
	if len(checks) != 6 {
		t.Errorf("checks %+v", checks)
	}
	var plan bench.Plan
	data, err := os.ReadFile(filepath.Join(run, record.PlanFile))
	if err == nil {
		err = json.Unmarshal(data, &plan)
	}
	if err != nil {
		t.Fatal(err)
	}
	setups := map[string]int{}
	for _, s := range plan.Steps {
		var p bench.PrepareParams
		if s.Kind == "prepare" {
			if err := json.Unmarshal([]byte(s.Params), &p); err != nil {
				t.Fatal(err)
			}
			setups[strings.Split(s.Id, "/")[0]] = len(p.Setup)
		}
	}
	if setups["t0"] != 1 || setups["base"] != 0 || setups["r2"] != 0 {
		t.Errorf("the set-up is done in %v", setups)
	}
}
