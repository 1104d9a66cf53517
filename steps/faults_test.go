package steps

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/arms/fake"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// where a fault shows: the step, its verdict, and the class of the rollout
// that it belongs to or, for a step of no rollout, of the first.
type where struct {
	step    string
	verdict bench.Verdict
	class   bench.RolloutClass
	// finding is the subject of a finding of the step; errors have none.
	finding string
}

// passes is a fault that changes no verdict.
var passes = where{class: record.Success}

// notThere is a fault that this way of resetting cannot have.
var notThere = where{}

// Every fault of the fake arm, in both ways of resetting. The first rollout is
// the control in which nobody acts: where it is not met it ends failed_valid.
var faults = []struct {
	fault         string
	restore, cold where
}{
	{"mount-refused", where{"mount", engine.Fail, record.Invalid, ""}, where{"mount", engine.Fail, record.Invalid, ""}},
	{"image-changed", where{"gate-image", engine.Fail, record.FailedValid, ""}, where{"gate-image", engine.Fail, record.FailedValid, ""}},
	{"image-unreadable", where{"gate-image", engine.VerdictUnknown, record.FailedValid, ""}, where{"gate-image", engine.VerdictUnknown, record.FailedValid, ""}},
	{"lacks-locks", where{"r0/gate-stopped-locks", engine.NotApplicable, record.FailedValid, "locks"}, passes},

	{"provision-error", where{"base/provision", engine.Fail, record.Invalid, ""}, where{"r0/provision", engine.Fail, record.EnvFailure, ""}},
	{"provision-hang", where{"base/provision", engine.Fail, record.Invalid, ""}, where{"r0/provision", engine.Fail, record.EnvFailure, ""}},
	{"provision-dead", where{"base/readiness", engine.Fail, record.Invalid, ""}, where{"r0/readiness", engine.Fail, record.EnvFailure, ""}},

	// What only a task that branches asks for: TestBranchingFaults.
	{"hostname-stuck", passes, passes}, {"draw-repeats", passes, passes}, {"remember-ignored", passes, passes}, {"canary-shared", passes, passes},
	{"pipe-shared", passes, passes}, {"device-shared", passes, passes}, {"unknown-objects", passes, passes},
	{"memory-lost", passes, notThere}, {"checkpoint-written", passes, notThere},

	{"slow", passes, passes},
	{"no-picture", passes, passes},   // nobody has to look: TestLook
	{"other-system", passes, passes}, // a comparison sees them: TestInspectSees
	{"unknown-system", passes, passes},
	{"slow-start", passes, passes},
	{"never-ready", where{"base/readiness", engine.Fail, record.Invalid, ""}, where{"r0/readiness", engine.Fail, record.EnvFailure, ""}},
	{"never-ready@restored", where{"r0/readiness", engine.Fail, record.EnvFailure, ""}, passes},
	{"service-dead", where{"base/readiness", engine.Fail, record.Invalid, ""}, where{"r0/readiness", engine.Fail, record.EnvFailure, ""}},
	{"service-dead@restored", where{"r0/readiness", engine.Fail, record.EnvFailure, ""}, passes},
	{"server-wrong-digest", where{"base/gate-server", engine.Fail, record.Invalid, "guest server"}, where{"r0/gate-server", engine.Fail, record.Invalid, "guest server"}},

	// Cases 27, 11, 6, 7, 4, 13, 29.
	{"limits-ignored", where{"base/gate-limits", engine.Fail, record.Invalid, "memory"}, where{"r0/gate-limits", engine.Fail, record.Invalid, "memory"}},
	{"limits-ignored@restored", where{"r0/gate-stopped-limits", engine.Fail, record.Invalid, "memory"}, passes},
	{"task-outside", where{"base/gate-limits", engine.Fail, record.Invalid, "task 1073741825"}, where{"r0/gate-limits", engine.Fail, record.Invalid, "task 1073741825"}},
	{"task-outside@restored", where{"r0/gate-stopped-limits", engine.Fail, record.Invalid, "task 1073741825"}, passes},
	{"foreign-mount", where{"base/gate-mount-contract", engine.Fail, record.Invalid, "/dev/tty"}, where{"r0/gate-mount-contract", engine.Fail, record.Invalid, "/dev/tty"}},
	{"foreign-mount@restored", where{"r0/gate-stopped-mounts", engine.Fail, record.Invalid, "/dev/tty"}, passes},
	{"foreign-sys", where{"base/gate-mount-contract", engine.Fail, record.Invalid, "/sys/fs/bpf"}, where{"r0/gate-mount-contract", engine.Fail, record.Invalid, "/sys/kernel/debug"}},
	{"network-down", where{"base/gate-network-up", engine.Fail, record.Invalid, "lo"}, where{"r0/gate-network-up", engine.Fail, record.Invalid, "lo"}},
	{"network-down@restored", where{"r0/gate-stopped-network", engine.Fail, record.Invalid, "lo"}, passes},
	{"outside-socket", where{"base/gate-enclosed-enclosure", engine.Fail, record.Invalid, "pid 1 descriptor 9"}, passes},
	{"tool-config", where{"base/gate-tool-config", engine.Fail, record.Invalid, "/etc/fake/default.conf"}, where{"r0/gate-tool-config", engine.Fail, record.Invalid, "/etc/fake/default.conf"}},

	{"limits-unknown", where{"base/gate-limits", engine.VerdictUnknown, record.Invalid, "limits"}, where{"r0/gate-limits", engine.VerdictUnknown, record.Invalid, "limits"}},
	{"limits-unknown@restored", where{"r0/gate-stopped-limits", engine.VerdictUnknown, record.Invalid, "limits"}, passes},
	{"unknown-mounts", where{"base/gate-mount-contract", engine.VerdictUnknown, record.Invalid, "mounts"}, where{"r0/gate-mount-contract", engine.VerdictUnknown, record.Invalid, "mounts"}},
	{"unknown-mounts@restored", where{"r0/gate-stopped-mounts", engine.VerdictUnknown, record.Invalid, "mounts"}, passes},
	{"unknown-network", where{"base/gate-network-up", engine.VerdictUnknown, record.Invalid, "network"}, where{"r0/gate-network-up", engine.VerdictUnknown, record.Invalid, "network"}},
	{"unknown-network@restored", where{"r0/gate-stopped-network", engine.VerdictUnknown, record.Invalid, "network"}, passes},
	{"unknown-locks", where{"r0/gate-stopped-locks", engine.VerdictUnknown, record.Invalid, "locks"}, passes},
	{"unknown-processes", where{"r0/gate-stopped-processes", engine.VerdictUnknown, record.Invalid, "processes"}, passes},
	{"unknown-state", where{"r0/gate-stopped-state", engine.VerdictUnknown, record.Invalid, "state"}, where{"r0/evaluate-after", engine.VerdictUnknown, record.VerifierUnavailable, ""}},
	{"unknown-enclosure", where{"base/gate-enclosed-enclosure", engine.VerdictUnknown, record.Invalid, "enclosure"}, passes},
	{"unknown-tool-config", where{"base/gate-tool-config", engine.VerdictUnknown, record.Invalid, "tool configuration"}, where{"r0/gate-tool-config", engine.VerdictUnknown, record.Invalid, "tool configuration"}},

	// Case 3, and what a dump can leave out.
	{"dump-error", where{"base/dump", engine.Fail, record.Invalid, ""}, passes},
	{"dump-refused", where{"base/dump", engine.Fail, record.Invalid, "pid 1 POSIX READ lock on /run/plain.lock bytes 0-EOF"}, passes},
	{"dump-hang", where{"base/dump", engine.Fail, record.Invalid, ""}, passes},
	{"dump-no-network", where{"base/gate-checkpoint", engine.Fail, record.Invalid, "network"}, passes},
	{"dump-foreign", where{"r0/restore", engine.Fail, record.EnvFailure, "fake-version"}, passes},
	{"checkpoint-damaged", where{"r0/restore", engine.Fail, record.EnvFailure, "images/memory.json"}, passes}, // case 12

	{"restore-error", where{"r0/restore", engine.Fail, record.EnvFailure, ""}, notThere},
	{"restore-hang", where{"r0/restore", engine.Fail, record.EnvFailure, ""}, notThere},             // case 30
	{"restore-ignores-deadline", where{"r0/restore", engine.Fail, record.EnvFailure, ""}, notThere}, // case 30
	{"resume-error", where{"r0/resume", engine.Fail, record.EnvFailure, ""}, notThere},
	{"lock-lost", where{"r0/gate-stopped-locks", engine.Fail, record.Invalid, "pid 2 POSIX READ lock on /run/mapped.lock bytes 0-EOF"}, notThere}, // case 1
	{"lock-extra", where{"r0/gate-stopped-locks", engine.Fail, record.Invalid, "pid 1 FLOCK WRITE lock on /run/other.lock bytes 0-EOF"}, notThere},
	{"process-lost", where{"r0/gate-stopped-processes", engine.Fail, record.Invalid, "pid 2"}, notThere},
	{"process-argv", where{"r0/gate-stopped-processes", engine.Fail, record.Invalid, "pid 1"}, notThere},
	{"state-dirty", where{"r0/gate-stopped-state", engine.Fail, record.Invalid, "/tmp/left-over"}, notThere},
	{"token-lost", where{"r0/gate-live", engine.Fail, record.Invalid, "token"}, notThere},
	{"counter-stopped", where{"r0/gate-live", engine.Fail, record.Invalid, "counter"}, notThere},
	{"canary-stale", where{"r0/reseed", engine.Fail, record.Contamination, "/root/.canary"}, notThere},

	// Case 21: what gives no score is no score, never 0.
	{"checker-missing", where{"r0/evaluate-before", engine.VerdictUnknown, record.VerifierUnavailable, ""}, where{"r0/evaluate-before", engine.VerdictUnknown, record.VerifierUnavailable, ""}},
	{"checker-hang", where{"r0/evaluate-before", engine.VerdictUnknown, record.VerifierUnavailable, ""}, where{"r0/evaluate-before", engine.VerdictUnknown, record.VerifierUnavailable, ""}},
	{"checker-signal", where{"r0/evaluate-before", engine.VerdictUnknown, record.VerifierUnavailable, ""}, where{"r0/evaluate-before", engine.VerdictUnknown, record.VerifierUnavailable, ""}},
	{"checker-stub", where{"r0/evaluate-before", engine.VerdictUnknown, record.VerifierUnavailable, ""}, where{"r0/evaluate-before", engine.VerdictUnknown, record.VerifierUnavailable, ""}},
	{"checker-exception", where{"r0/evaluate-before", engine.VerdictUnknown, record.VerifierUnavailable, ""}, where{"r0/evaluate-before", engine.VerdictUnknown, record.VerifierUnavailable, ""}},
	{"checker-kills-server", where{"r0/evaluate-before", engine.VerdictUnknown, record.VerifierUnavailable, ""}, where{"r0/evaluate-before", engine.VerdictUnknown, record.VerifierUnavailable, ""}},
	{"closure-unknown", where{"r0/evaluate-before", engine.VerdictUnknown, record.VerifierUnavailable, ""}, where{"r0/evaluate-before", engine.VerdictUnknown, record.VerifierUnavailable, ""}},
	{"checker-other", passes, passes}, // the same in every slot
	{"checker-other@3", where{"r1/gate-stopped-state", engine.Fail, record.Invalid, "/usr/bin/test"}, where{"r2/evaluate-before", engine.Fail, record.Contamination, "/usr/bin/test"}},
	{"checker-swapped", where{"r1/evaluate-after", engine.Fail, record.Contamination, "/usr/bin/test"}, where{"r1/evaluate-after", engine.Fail, record.Contamination, "/usr/bin/test"}},
	{"checker-swapped-unseen", where{"r1/evaluate-after", engine.Fail, record.Contamination, "/usr/bin/test"}, where{"r1/evaluate-after", engine.Fail, record.Contamination, "/usr/bin/test"}},
	{"act-error", where{"r1/act", engine.Fail, record.Invalid, ""}, where{"r1/act", engine.Fail, record.Invalid, ""}},
	{"act-kills-server", where{"r1/act", engine.Fail, record.EnvFailure, ""}, where{"r1/act", engine.Fail, record.EnvFailure, ""}},
	{"canary-changed", where{"r1/gate-canary", engine.Fail, record.Contamination, "/root/.canary"}, where{"r1/gate-canary", engine.Fail, record.Contamination, "/root/.canary"}},
	{"unknown-memory", where{"r0/measure", engine.VerdictUnknown, record.Invalid, "memory"}, where{"r0/measure", engine.VerdictUnknown, record.Invalid, "memory"}},

	// What is left of a run, and what is not its own.
	{"leaves-process", where{"gate-cleanup", engine.Fail, record.FailedValid, "process 1073742007"}, where{"gate-cleanup", engine.Fail, record.FailedValid, "process 1073742007"}},
	{"host-changed", where{"gate-cleanup", engine.Fail, record.FailedValid, "sysctl net.ipv4.ip_forward"}, where{"gate-cleanup", engine.Fail, record.FailedValid, "sysctl net.ipv4.ip_forward"}},
	{"host-busy", passes, passes},
	{"unknown-survey", where{"survey", engine.VerdictUnknown, record.Invalid, ""}, where{"survey", engine.VerdictUnknown, record.Invalid, ""}},
	{"unknown-cleanup", where{"gate-cleanup", engine.VerdictUnknown, record.FailedValid, "host"}, where{"gate-cleanup", engine.VerdictUnknown, record.FailedValid, "host"}},
	{"lacks-cleanup", where{"gate-cleanup", engine.NotApplicable, record.FailedValid, "cleanup"}, where{"gate-cleanup", engine.NotApplicable, record.FailedValid, "cleanup"}},
	{"release-error", where{"release/slot-0", engine.Fail, record.FailedValid, ""}, where{"release/slot-0", engine.Fail, record.FailedValid, ""}},
}

func TestFaults(t *testing.T) {
	for _, f := range faults {
		for reset, want := range map[string]where{"restore": f.restore, "cold": f.cold} {
			if want == notThere {
				continue
			}
			t.Run(f.fault+"/"+reset, func(t *testing.T) {
				m := workload()
				m.Arms.Fake.Faults = []string{f.fault}
				r := execute(t, m, reset)
				if want.step == "" {
					requirePassed(t, r)
					return
				}
				requireFault(t, r, f.fault, want)
			})
		}
	}
}

func requirePassed(t *testing.T, r ran) {
	t.Helper()
	if r.result.Verdict != engine.RunPassed || engine.ExitCode(r.result.Verdict) != 0 {
		t.Errorf("the run %s: %s", r.result.Verdict, r.result.Reason)
	}
	for _, o := range r.result.Outcomes {
		if o.Verdict != engine.Pass && o.Verdict != engine.NotApplicable {
			t.Errorf("step %s: %s %+v %+v", o.Step, o.Verdict, o.Error, o.Findings)
		}
	}
	for _, x := range r.record.Rollouts {
		class, after := record.Success, 1.0
		if x.Control == "none" {
			class, after = record.FailedValid, 0
		}
		if x.Class != class || x.Before == nil || *x.Before != 0 || x.After == nil || *x.After != after || x.Memory == nil {
			t.Errorf("rollout %+v", x)
		}
	}
	requireReleased(t, r)
}

func requireReleased(t *testing.T, r ran) {
	t.Helper()
	for _, o := range r.open {
		t.Errorf("the ledger says that %s %+v is not gone", o.Kind, o.Claim)
	}
	for _, name := range r.left {
		t.Errorf("left in the scratch directory: %s", name)
	}
}

func requireFault(t *testing.T, r ran, fault string, want where) {
	t.Helper()
	o := r.outcome(t, want.step)
	if o.Verdict != want.verdict {
		t.Errorf("step %s: %s, want %s; error %+v, findings %+v", o.Step, o.Verdict, want.verdict, o.Error, o.Findings)
	}
	switch {
	case want.finding == "" && o.Error == nil:
		t.Errorf("step %s says nothing: %+v", o.Step, o)
	case want.finding != "":
		named := false
		for _, f := range o.Findings {
			named = named || f.Subject == want.finding
		}
		if !named {
			t.Errorf("step %s names %+v, want %q", o.Step, o.Findings, want.finding)
		}
	}

	// Failure spreads as not_run to whoever depends on it, and to nobody else.
	// Beside the culprit there may be others that the same fault meets.
	release := strings.HasPrefix(want.step, "release/")
	below := r.dependants(want.step)
	for _, s := range r.plan.Steps {
		v := r.outcome(t, s.Id).Verdict
		switch {
		case s.Id == want.step:
		case s.Id == "gate-cleanup" && fault == "unknown-survey": // there is nothing to compare with
			if v != engine.VerdictUnknown {
				t.Errorf("step %s: %s", s.Id, v)
			}
		case s.Release:
			if v != engine.Pass && !release && fault != "restore-ignores-deadline" {
				t.Errorf("release step %s: %s %+v", s.Id, v, r.outcome(t, s.Id).Error)
			}
		case below[s.Id] && v != engine.NotRun && want.verdict != engine.NotApplicable:
			t.Errorf("step %s depends on %s and is %s", s.Id, want.step, v)
		case !below[s.Id] && v == engine.NotRun && fault != "restore-ignores-deadline" && !dependsOnAnother(t, r, s.Id, want.step):
			t.Errorf("step %s does not depend on %s and was not run", s.Id, want.step)
		}
	}

	verdict := map[bench.Verdict]bench.RunVerdict{
		engine.Fail: engine.RunFailed, engine.VerdictUnknown: engine.RunBlocked, engine.NotApplicable: engine.RunPassed,
	}[want.verdict]
	code := map[bench.RunVerdict]int{engine.RunPassed: 0, engine.RunFailed: 1, engine.RunBlocked: 3}[verdict]
	if r.result.Verdict != verdict || engine.ExitCode(r.result.Verdict) != code {
		t.Errorf("the run %s (exit %d), want %s (%d): %s", r.result.Verdict, engine.ExitCode(r.result.Verdict), verdict, code, r.result.Reason)
	}
	if (r.result.Reason == "") != (verdict == engine.RunPassed) {
		t.Errorf("reason %q for a run that %s", r.result.Reason, verdict)
	}
	rollout := 0
	if _, err := fmt.Sscanf(want.step, "r%d/", &rollout); err != nil {
		rollout = 0
	}
	if rollout >= len(r.record.Rollouts) || r.record.Rollouts[rollout].Class != want.class {
		t.Errorf("rollouts %+v, want number %d to be %s", r.record.Rollouts, rollout, want.class)
	}
	switch fault {
	case "release-error": // the fault is that it leaves something
	case "restore-ignores-deadline":
		requireReleased(t, r)
		if len(r.result.Findings) == 0 {
			t.Error("the run does not say that a step did not heed its context")
		}
	default:
		requireReleased(t, r)
		if len(r.result.Findings) > 0 {
			t.Errorf("findings of the run itself: %+v", r.result.Findings)
		}
	}
}

// dependsOnAnother says whether a step that was not run depends on another step that ended badly.
func dependsOnAnother(t *testing.T, r ran, id, culprit string) bool {
	t.Helper()
	for _, o := range r.result.Outcomes {
		if o.Step != culprit && (o.Verdict == engine.Fail || o.Verdict == engine.VerdictUnknown) && r.dependants(o.Step)[id] {
			return true
		}
	}
	return false
}

func TestEveryFaultIsTried(t *testing.T) {
	tried := map[string]bool{}
	for _, f := range faults {
		name, _, _ := strings.Cut(f.fault, "@")
		tried[name] = true
	}
	for _, name := range fake.Knobs() {
		if !tried[name] {
			t.Errorf("fault %s of the fake arm is in no run", name)
		}
	}
}

// A fault in one rollout leaves those before it as they were.
func TestFaultInALaterRollout(t *testing.T) {
	m := workload()
	m.Experiment.Rollouts = 3
	m.Arms.Fake.Faults = []string{"lock-lost@5"} // the base, two controls, the first rollout, the second
	r := execute(t, m, "restore")
	requireFault(t, r, "lock-lost@5", where{"r3/gate-stopped-locks", engine.Fail, record.Invalid, "pid 2 POSIX READ lock on /run/mapped.lock bytes 0-EOF"})
	for i, want := range []bench.RolloutClass{record.FailedValid, record.Success, record.Success, record.Invalid, record.Invalid} {
		if got := r.record.Rollouts[i]; got.Class != want {
			t.Errorf("rollout %d: %s (%s), want %s", i, got.Class, got.Reason, want)
		}
	}
}

// A sibling that fails takes no other with it.
func TestFaultInASibling(t *testing.T) {
	m := workload()
	m.Experiment.Rollouts, m.Experiment.Slots = 6, 3
	m.Arms.Fake.Faults = []string{"token-lost@5"} // one of the three restores of the first round
	r := execute(t, m, "restore")
	if r.result.Verdict != engine.RunFailed {
		t.Errorf("the run %s", r.result.Verdict)
	}
	classes := map[bench.RolloutClass]int{}
	for _, x := range r.record.Rollouts {
		classes[x.Class]++
	}
	if classes[record.Success] != 5 || classes[record.FailedValid] != 1 || classes[record.Invalid] != 2 {
		t.Errorf("classes %v, want the slot's two rollouts invalid, the others' four and the oracle's success, and nobody's failed", classes)
	}
	requireReleased(t, r)
}

// An interrupted run is blocked, and everything is released.
func TestInterrupted(t *testing.T) {
	m := workload()
	m.Arms.Fake.Faults = []string{"restore-hang"}
	r := executeUntil(t, m, "restore", 20*time.Second)
	if r.result.Verdict != engine.RunBlocked {
		t.Errorf("the run %s: %s", r.result.Verdict, r.result.Reason)
	}
	if o := r.outcome(t, "r0/restore"); o.Verdict != engine.VerdictUnknown {
		t.Errorf("the interrupted step: %+v", o)
	}
	if c := r.record.Rollouts[0].Class; c != record.Invalid {
		t.Errorf("the interrupted rollout is %s", c)
	}
	requireReleased(t, r)
}
