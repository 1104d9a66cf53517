package steps

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/arms/fake"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// branching is a task of four branches: solved, not solved, solved in another way, and left alone.
func branching() bench.Manifest {
	exec := func(argv ...string) bench.Command { return bench.Command{Exec: argv, Timeout: "5s"} }
	m := workload()
	m.Experiment.Rollouts = 1
	m.Task.Setup = append(m.Task.Setup, exec("write", "/root/Desktop/draft", "begun"))
	m.Hygiene = hygiene()
	m.Task.Setup = append(m.Task.Setup, exec("write", "/root/dice", "of the checkpoint"))
	rename := exec("mv", "/root/Desktop/todo", "/root/Desktop/done")
	m.Task.Branching = &bench.Branching{
		Prefix:  []bench.Command{exec("append", "/root/Desktop/draft", "half"), exec("remember", "half")},
		Witness: []bench.Command{exec("cat", "/root/Desktop/draft"), exec("recall")},
		Branches: []bench.Branch{
			{Name: "right", Act: []bench.Command{rename, exec("remember", "right")}, Score: 1},
			{Name: "wrong", Act: []bench.Command{exec("remember", "wrong")}, Score: 0},
			{Name: "again", Act: []bench.Command{exec("remember", "again"), rename}, Score: 1},
			{Name: "idle", Act: []bench.Command{}, Score: 0},
		},
		Isolation: bench.Isolation{Watch: "2s", Period: "1s"},
	}
	return m
}

// hygiene has a die in a file: what a generator of random numbers in a process is elsewhere.
func hygiene() *bench.Hygiene {
	exec := func(argv ...string) bench.Command { return bench.Command{Exec: argv, Timeout: "5s"} }
	return &bench.Hygiene{
		Own:       []bench.Own{{Name: "dice", Reseed: exec("write", "/root/dice", "{seed}"), Read: exec("cat", "/root/dice")}},
		Residuals: []bench.Residual{{Name: "greeting", Read: exec("cat", "/etc/motd"), Why: "it is the image's"}},
	}
}

// branch runs a manifest that branches, so many steps at a time.
func branch(t *testing.T, m bench.Manifest, reset string, parallel int) ran {
	t.Helper()
	arm, err := fake.New(*m.Arms.Fake)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "canary")
	if err := os.WriteFile(program, []byte("canary $0 \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return executeBranches(t, arm, m, reset, program, parallel)
}

// Slots that the fake arm makes one at a time, in their order: the base, the second of the cold pair, two controls,
// the trunk; from @6 on the branches.
const trunkSlot = "@5"

// Each branch has what the prefix left, in files and in memory, acts in its own way and is a rollout with a score
// and a class of its own; all of them are alive at the same time.
func TestBranching(t *testing.T) {
	for _, reuse := range []string{"post_setup", "none"} {
		for _, reset := range []string{"restore", "cold"} {
			t.Run(reuse+" "+reset, func(t *testing.T) {
				m := branching()
				m.Experiment.Reuse, m.Experiment.Rollouts, m.Experiment.Warmup = reuse, 1, 1
				r := branch(t, m, reset, 4)
				if r.result.Verdict != engine.RunPassed {
					t.Fatalf("the run %s: %s", r.result.Verdict, r.result.Reason)
				}
				requireReleased(t, r)
				var have []string
				for _, x := range r.record.Rollouts {
					if x.Control != "" {
						continue
					}
					have = append(have, string(x.Branch)+" "+string(x.Class))
					if x.Clocks == nil || x.Clocks.Usable == "" || x.Warmup != (x.Index < 6) {
						t.Errorf("rollout %+v, clocks %+v", x, x.Clocks)
					}
				}
				once := []string{"right success", "wrong failed_valid", "again success", "idle failed_valid"}
				if want := append(once, once...); strings.Join(have, ", ") != strings.Join(want, ", ") {
					t.Errorf("have %q", have)
				}
				if reset == "cold" {
					return
				}
				for _, id := range []string{"r2/act", "r5/act"} {
					up := ancestors(r.plan, id)
					for _, other := range []string{"r2/reseed", "r3/reseed", "r4/reseed", "r5/reseed", "s0/gate-audit", "s0/gate-hygiene", "s0/isolate"} {
						if !up[other] {
							t.Errorf("%s does not wait for %s", id, other)
						}
					}
				}
				for k, id := range []string{"release/slot-0", "release/slot-3", "t1/restore"} {
					up := ancestors(r.plan, id)
					for _, other := range []string{"r2/gate-canary", "r5/gate-canary", "s0/gate-diverged", "s0/gate-parent"} {
						if !up[other] {
							t.Errorf("%d: %s does not wait for %s", k, id, other)
						}
					}
				}
			})
		}
	}
}

// Each gate between siblings fails on the fault that it is for, and no branch acts, or none has a valid class, then.
func TestBranchingFaults(t *testing.T) {
	for _, c := range []struct {
		fault   string
		step    string
		verdict bench.Verdict
		finding string
		// class of the branch that the fault is in, or of all.
		class bench.RolloutClass
	}{
		// What the prefix left.
		{"memory-lost@7", "r3/gate-carried", engine.Fail, "witness 1", record.Invalid},
		{"remember-ignored" + trunkSlot, "r2/gate-carried", engine.Pass, "", record.Success}, // the file shows the prefix; the memory has nothing to lose
		{"process-lost@7", "r3/gate-stopped-processes", engine.Fail, "pid 2", record.Invalid},
		{"state-dirty@6", "r2/gate-stopped-state", engine.Fail, "/tmp/left-over", record.Invalid},
		// What is to be each one's own.
		{"hostname-stuck@8", "r4/reseed", engine.Fail, "", record.EnvFailure},
		{"draw-repeats@restored", "s0/gate-hygiene", engine.Fail, "server-draw", record.Invalid},
		{"never-ready@9", "r5/readiness", engine.Fail, "", record.EnvFailure},
		{"canary-stale@6", "r2/reseed", engine.Fail, "/root/.canary", record.Contamination},
		// What they share.
		{"pipe-shared", "s0/gate-audit", engine.Fail, "pipe pipe:[1]", record.Invalid},
		{"pipe-shared@restored", "s0/gate-audit", engine.Fail, "pipe pipe:[1]", record.Invalid},
		{"device-shared@restored", "s0/gate-audit", engine.Fail, "device /dev/urandom", record.Invalid}, // no two cold slots do
		{"device-shared", "s0/gate-audit", engine.Pass, "", record.Success},                             // any two do
		{"unknown-objects@restored", "s0/audit", engine.VerdictUnknown, "slot-0", record.Invalid},
		{"unknown-objects@cold", "pair/audit", engine.VerdictUnknown, "slot-0", record.Invalid},
		{"canary-shared", "s0/isolate", engine.Fail, "slot-0", record.Invalid},
		// What the acts did.
		{"remember-ignored@8", "s0/gate-diverged", engine.Fail, "again and idle", record.Success},
		{"act-error@6", "r2/act", engine.Fail, "", record.Invalid},
		{"canary-changed@6", "r2/gate-canary", engine.Fail, "/root/.canary", record.Contamination},
		{"checkpoint-written@7", "s0/gate-parent", engine.Fail, "images/memory.json", record.FailedValid},
		{"dump-refused" + trunkSlot, "t0/dump", engine.Fail, "pid 1 POSIX READ lock on /run/plain.lock bytes 0-EOF", record.Invalid},
	} {
		t.Run(c.fault, func(t *testing.T) {
			m := branching()
			m.Arms.Fake.Faults = []string{c.fault}
			r := branch(t, m, "restore", 1)
			o := r.outcome(t, c.step)
			if o.Verdict != c.verdict {
				t.Fatalf("%s: %s, want %s: %+v %+v", c.step, o.Verdict, c.verdict, o.Findings, o.Error)
			}
			found := c.finding == ""
			for _, f := range o.Findings {
				found = found || f.Subject == c.finding
			}
			if !found {
				t.Errorf("%s finds %+v, want %q", c.step, o.Findings, c.finding)
			}
			if passed := r.result.Verdict == engine.RunPassed; passed != (c.verdict == engine.Pass) {
				t.Errorf("the run %s", r.result.Verdict)
			}
			index := int64(2)
			if before, _, ok := strings.Cut(c.step, "/"); ok && before[0] == 'r' {
				index = int64(before[1] - '0')
			}
			if _, nth, ok := strings.Cut(c.fault, "@"); ok && c.step[0] == 's' && nth[0] >= '6' && nth[0] <= '9' {
				index = int64(nth[0] - '4')
			}
			for _, x := range r.record.Rollouts {
				if x.Index == index && x.Class != c.class {
					t.Errorf("rollout %d: %s (%s), want %s", x.Index, x.Class, x.Reason, c.class)
				}
			}
			if len(r.open) > 0 || len(r.left) > 0 {
				t.Errorf("left behind: %+v %q", r.open, r.left)
			}
		})
	}
}

// What a manifest has made anew is compared like all else: a hook that does nothing, and one whose result nobody can
// read, are found, in branches and in siblings of an ordinary task.
func TestHygieneHooks(t *testing.T) {
	ordinary := func() bench.Manifest {
		m := branching()
		m.Task.Branching = nil
		m.Experiment.Rollouts, m.Experiment.Slots = 4, 2
		return m
	}
	for _, c := range []struct {
		name    string
		m       bench.Manifest
		change  func(*bench.Manifest)
		step    string
		verdict bench.Verdict
		about   string
	}{
		{"branches", branching(), func(*bench.Manifest) {}, "s0/gate-hygiene", engine.Pass, ""},
		{"siblings", ordinary(), func(*bench.Manifest) {}, "s1/gate-hygiene", engine.Pass, ""},
		{"nothing is made anew", branching(), func(m *bench.Manifest) { m.Hygiene.Own[0].Reseed.Exec = []string{"true"} }, "s0/gate-hygiene", engine.Fail, "dice"},
		{"nothing is made anew in siblings", ordinary(), func(m *bench.Manifest) { m.Hygiene.Own[0].Reseed.Exec = []string{"true"} }, "s0/gate-hygiene", engine.Fail, "dice"},
		{"the same in each", ordinary(), func(m *bench.Manifest) { m.Hygiene.Own[0].Reseed.Exec[2] = "4" }, "s0/gate-hygiene", engine.Fail, "dice"},
		{"the hook fails", ordinary(), func(m *bench.Manifest) { m.Hygiene.Own[0].Reseed.Exec = []string{"false"} }, "r0/reseed", engine.Fail, ""},
		{"unread", ordinary(), func(m *bench.Manifest) { m.Hygiene.Own[0].Read.Exec[1] = "/root/none" }, "s0/gate-hygiene", engine.VerdictUnknown, "r2 dice"},
		{"residual unread", ordinary(), func(m *bench.Manifest) { m.Hygiene.Residuals[0].Read.Exec[1] = "/root/none" }, "s0/gate-hygiene", engine.VerdictUnknown, "greeting"},
		{"host name stuck", ordinary(), func(m *bench.Manifest) { m.Arms.Fake.Faults = []string{"hostname-stuck@restored"} }, "r0/reseed", engine.Fail, ""},
		{"the server draws the same", ordinary(), func(m *bench.Manifest) { m.Arms.Fake.Faults = []string{"draw-repeats@restored"} }, "s0/gate-hygiene", engine.Fail, "server-draw"},
		{"a pipe in common", ordinary(), func(m *bench.Manifest) { m.Arms.Fake.Faults = []string{"pipe-shared@restored"} }, "s0/gate-audit", engine.Fail, "pipe pipe:[1]"},
		{"a device in common", ordinary(), func(m *bench.Manifest) { m.Arms.Fake.Faults = []string{"device-shared@restored"} }, "s0/gate-audit", engine.Fail, "device /dev/urandom"},
		{"a device that cold slots share too", ordinary(), func(m *bench.Manifest) { m.Arms.Fake.Faults = []string{"device-shared"} }, "s0/gate-audit", engine.Pass, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.change(&c.m)
			r := branch(t, c.m, "restore", 2)
			o := r.outcome(t, c.step)
			found := c.about == ""
			for _, f := range o.Findings {
				found = found || f.Subject == c.about
			}
			if o.Verdict != c.verdict || !found {
				t.Errorf("%s: %s, want %s about %q: %+v %+v", c.step, o.Verdict, c.verdict, c.about, o.Findings, o.Error)
			}
			if passed := r.result.Verdict == engine.RunPassed; passed != (c.verdict == engine.Pass) {
				t.Errorf("the run %s: %s", r.result.Verdict, r.result.Reason)
			}
			if c.verdict != engine.Pass && strings.HasPrefix(c.step, "s") {
				if acted := r.outcome(t, "r2/act"); acted.Verdict == engine.Pass {
					t.Error("somebody acted in siblings that are not separate")
				}
			}
			if len(r.open) > 0 || len(r.left) > 0 {
				t.Errorf("left behind: %+v %q", r.open, r.left)
			}
		})
	}
}

// A witness that the prefix does not change cannot tell whether anything was carried over.
func TestBranchingBlindWitness(t *testing.T) {
	m := branching()
	m.Task.Branching.Witness = []bench.Command{{Exec: []string{"true"}, Timeout: "5s"}}
	r := branch(t, m, "restore", 1)
	if o := r.outcome(t, "r2/gate-carried"); o.Verdict != engine.VerdictUnknown || r.result.Verdict != engine.RunBlocked {
		t.Errorf("%+v, the run %s", o, r.result.Verdict)
	}
}

// A branch whose score is not the one that the manifest states fails the run, and is worth nothing itself.
func TestBranchingScore(t *testing.T) {
	for _, reset := range []string{"restore", "cold"} {
		m := branching()
		m.Task.Branching.Branches[1].Score = 1
		r := branch(t, m, reset, 1)
		if o := r.outcome(t, "r3/evaluate-after"); o.Verdict != engine.Fail || r.result.Verdict != engine.RunFailed {
			t.Errorf("%s: %+v, the run %s", reset, o, r.result.Verdict)
		}
		if x := r.record.Rollouts[3]; x.Class != record.Invalid || *x.After != 0 {
			t.Errorf("%s: %+v", reset, x)
		}
	}
}
