package steps

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/arms/fake"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// The rollout in which the oracle acts is the second; the oracle of these tests is the agent.
const agentRollout = 1

// sh is a command that the agent gives beside the one that solves the task.
func sh(text string) bench.Command {
	return bench.Command{Exec: []string{"sh", "-c", text}, Timeout: "5s"}
}

// Whatever the checker stands on, an agent that changes it gets no score: the
// rollout is contaminated, and the file is named.
func TestAgentChangesTheChecker(t *testing.T) {
	for _, c := range []struct {
		name    string
		checker func(*bench.Checker)
		agent   string
		file    string
	}{
		{"replaces the program", nil, "write /usr/bin/test true", "/usr/bin/test"},
		{"removes the program", nil, "rm /usr/bin/test", "/usr/bin/test"},
		{"puts a fake before it", nil, "write /usr/local/bin/test true", "/usr/local/bin/test"},
		{"preloads a library", nil, "write /etc/ld.so.preload /tmp/x.so", "/etc/ld.so.preload"},
		{"replaces the guest server", nil, "write /usr/local/bin/guestd other", "/usr/local/bin/guestd"},
		{"replaces what a shell names", func(c *bench.Checker) { c.Exec = []string{"sh", "-c", "test -d /root/Desktop/done"} }, "write /usr/bin/test true", "/usr/bin/test"},
		{"puts a fake before what a shell names", func(c *bench.Checker) { c.Exec = []string{"sh", "-c", "test -d /root/Desktop/done"} }, "write /usr/local/bin/test true", "/usr/bin/test"},
		{"makes the file of answers", func(c *bench.Checker) { c.Files = []bench.GuestPath{"/root/answers"} }, "write /root/answers yes", "/root/answers"},
		{"changes a folder of answers", func(c *bench.Checker) { c.Files = []bench.GuestPath{"/etc"} }, "write /etc/motd yes", "/etc/motd"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := workload()
			m.Task.Oracle = append(m.Task.Oracle, sh(c.agent))
			if c.checker != nil {
				c.checker(&m.Checker)
			}
			r := execute(t, m, "cold")
			requireContaminated(t, r, c.file)
			// What the manifest says that the task changes is no change.
			if strings.HasPrefix(c.name, "replaces the program") || strings.HasPrefix(c.name, "preloads") {
				m.Checker.MayChange = []bench.GuestPath{bench.GuestPath(c.file)}
				requirePassed(t, execute(t, m, "cold"))
			}
		})
	}
}

func requireContaminated(t *testing.T, r ran, file string) {
	t.Helper()
	x := r.record.Rollouts[agentRollout]
	if x.Class != record.Contamination || x.After != nil || !strings.Contains(x.Reason, filepath.Base(file)) {
		t.Errorf("rollout %+v", x)
	}
	o := r.outcome(t, fmt.Sprintf("r%d/evaluate-after", agentRollout))
	if o.Verdict != engine.Fail || o.Error != nil || len(o.Findings) == 0 || o.Findings[0].Hint == "" {
		t.Errorf("%+v", o)
	}
	named := false
	for _, f := range o.Findings {
		named = named || f.Subject == file && f.Want != f.Have
	}
	if !named {
		t.Errorf("%s is not named: %+v", file, o.Findings)
	}
	if r.result.Verdict != engine.RunFailed {
		t.Errorf("the run %s: %s", r.result.Verdict, r.result.Reason)
	}
	requireReleased(t, r)
}

// pinned puts a checker beside the manifest; its copy runs in the guest.
func pinned(t *testing.T, m *bench.Manifest, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "check"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	m.Checker.Program = &bench.PinnedFile{File: "check", Sha256: canonical.Sum([]byte(text))}
	m.Checker.Exec = []string{guest.ProgramPlace}
	return dir
}

// The checker runs from its pinned copy: it is put there anew for each
// evaluation, nothing of it is there while somebody acts, and another file is refused.
func TestCheckerFromItsPinnedCopy(t *testing.T) {
	m := workload()
	dir := pinned(t, &m, "test -d /root/Desktop/done\n")
	arm := newFake(t, m)
	r := executeIn(t, arm, m, "restore", 0, dir)
	requirePassed(t, r)
	for _, step := range []string{"r1/evaluate-before", "r1/evaluate-after"} {
		if have := r.facts(t, step)[FactProgram]; have != string(m.Checker.Program.Sha256) {
			t.Errorf("%s ran %q", step, have)
		}
	}
	before, after := r.facts(t, "r1/evaluate-before"), r.facts(t, "r1/evaluate-after")
	if before[FactClosure] == "" || before[FactClosure] != after[FactClosure] || before[FactClosure] != r.facts(t, "r2/evaluate-before")[FactClosure] {
		t.Errorf("the closures differ: %q, %q", before[FactClosure], after[FactClosure])
	}
	if !strings.HasPrefix(before[FactResolved], guest.ProgramPlace) {
		t.Errorf("it ran %q", before[FactResolved])
	}

	if err := os.WriteFile(filepath.Join(dir, "check"), []byte("true\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r = executeIn(t, newFake(t, m), m, "restore", 0, dir)
	o := r.outcome(t, "r0/evaluate-before")
	if o.Verdict != engine.Fail || o.Error == nil || o.Error.Cause != engine.CauseRefused || r.record.Rollouts[0].Class != record.VerifierUnavailable {
		t.Errorf("another program than the pinned one: %+v, %s", o, r.record.Rollouts[0].Class)
	}
}

// A time-out, a missing result file and a guest that nobody reaches are never a
// 0, and neither is anything else that is no answer.
func TestNoAnswerIsNoZero(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*bench.Manifest)
		fault  string
		step   string
		text   string
	}{
		{"time-out", nil, "checker-hang", "r0/evaluate-before", "timed out after 5s"},
		{"no result file", func(m *bench.Manifest) { m.Checker.Results = []bench.GuestPath{"/root/export.csv"} }, "", "r0/evaluate-after", "the result file /root/export.csv"},
		{"unreachable guest", nil, "checker-kills-server", "r0/evaluate-before", "dead"},
		{"signal", nil, "checker-signal", "r0/evaluate-before", "signal"},
		{"127", nil, "checker-missing", "r0/evaluate-before", "exit status 127"},
		{"126 as the status of failure", func(m *bench.Manifest) {
			m.Checker.Exec, m.Checker.Failure.Exit = []string{"exit", "126"}, 126
		}, "", "r0/evaluate-before", "exit status 126"},
		{"no such program", func(m *bench.Manifest) { m.Checker.Exec = []string{"judge"} }, "", "r0/evaluate-before", "judge is not in the guest"},
		{"a missing module", nil, "checker-stub", "r0/evaluate-before", "No module named 'judge'"},
		{"an exception", nil, "checker-exception", "r0/evaluate-before", "ended in an exception"},
		{"unknown closure", nil, "closure-unknown", "r0/evaluate-before", "stands on"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := workload()
			if c.change != nil {
				c.change(&m)
			}
			if c.fault != "" {
				m.Arms.Fake.Faults = []string{c.fault}
			}
			r := execute(t, m, "restore")
			x := r.record.Rollouts[0]
			if x.Class != record.VerifierUnavailable || !strings.Contains(x.Reason, c.text) {
				t.Errorf("rollout is %s: %s", x.Class, x.Reason)
			}
			if strings.HasSuffix(c.step, "before") && x.Before != nil || x.After != nil {
				t.Errorf("it has a score: %+v", x)
			}
			if o := r.outcome(t, c.step); o.Verdict != engine.VerdictUnknown || o.Error == nil {
				t.Errorf("%+v", o)
			}
			if r.result.Verdict != engine.RunBlocked {
				t.Errorf("the run %s", r.result.Verdict)
			}
			requireReleased(t, r)
		})
	}
}

// A result file that is there does not stand in the way, empty or not.
func TestResultFile(t *testing.T) {
	m := workload()
	m.Task.Setup = append(m.Task.Setup, sh("write /root/export.csv a,b"), sh("touch /root/empty"))
	m.Checker.Results = []bench.GuestPath{"/root/export.csv", "/root/empty"}
	requirePassed(t, execute(t, m, "restore"))
}

// A task that its controls do not hold for is quarantined with the reason, and nothing after them is run.
func TestControlsQuarantineATask(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*bench.Manifest)
		step   string
		reason string
	}{
		{"the checker always says 1", func(m *bench.Manifest) { m.Checker.Exec = []string{"true"} }, "r0/evaluate-before", "nobody acted"},
		{"the checker always says 0", func(m *bench.Manifest) { m.Checker.Exec = []string{"false"} }, "r1/evaluate-after", "the oracle acted"},
		{"the task is solved from the start", func(m *bench.Manifest) { m.Task.Setup = append(m.Task.Setup, m.Task.Oracle...) }, "r0/evaluate-before", "nobody acted"},
		{"the oracle does not solve it", func(m *bench.Manifest) { m.Task.Oracle = []bench.Command{sh("true")} }, "r1/evaluate-after", "the oracle acted"},
		{"the oracle changes the checker", func(m *bench.Manifest) { m.Task.Oracle = append(m.Task.Oracle, sh("write /usr/bin/test true")) }, "r1/evaluate-after", "/usr/bin/test"},
	} {
		for _, reset := range []string{"restore", "cold"} {
			t.Run(c.name+"/"+reset, func(t *testing.T) {
				m := workload()
				c.change(&m)
				r := execute(t, m, reset)
				if r.result.Verdict != engine.RunFailed || r.record.Verdict != engine.RunFailed {
					t.Errorf("the run %s, its record %s", r.result.Verdict, r.record.Verdict)
				}
				if !strings.Contains(r.record.Reason, "task quarantined") || !strings.Contains(r.record.Reason, c.reason) {
					t.Errorf("reason %q", r.record.Reason)
				}
				if o := r.outcome(t, c.step); o.Verdict != engine.Fail {
					t.Errorf("%s: %+v", c.step, o)
				}
				for _, x := range r.record.Rollouts {
					if x.Control == "" && (x.Before != nil || x.After != nil || x.Clocks != nil || x.Class == record.Success || x.Class == record.FailedValid) {
						t.Errorf("a rollout after the controls has numbers: %+v", x)
					}
				}
				requireReleased(t, r)
			})
		}
	}
}

// What stands in something's place is declared and recorded; what is declared does not stand in the way.
func TestSubstitutes(t *testing.T) {
	stub := bench.Substitute{What: "judge", With: "a table of known answers", Why: "the judge costs money"}
	m := workload()
	m.Checker.Substitutes = []bench.Substitute{stub}
	m.Policy = &bench.Policy{Oracle: &bench.OraclePolicy{}, Substitutes: []bench.Substitute{{What: "mouse", With: "none", Why: "the task needs none"}}}
	m.Arms.Fake.Faults = []string{"checker-stub"}
	r := execute(t, m, "restore")
	// The module that is missing is the declared one: its exit status counts, and it is always 1.
	if !strings.Contains(r.record.Reason, "task quarantined") {
		t.Errorf("%s: %s", r.record.Verdict, r.record.Reason)
	}
	if have := r.facts(t, "r0/evaluate-before")[FactSubstitute]; have != "judge: a table of known answers: the judge costs money" {
		t.Errorf("fact %q", have)
	}
	m.Arms.Fake.Faults = []string{}
	r = execute(t, m, "restore")
	requirePassed(t, r)
	if have := r.facts(t, "r2/act")[FactPolicySubstitute]; have != "mouse: none: the task needs none" {
		t.Errorf("fact %q", have)
	}
}

// The signs are messages of interpreters, loaders and shells, and nothing that a checker may say of its own.
func TestSigns(t *testing.T) {
	for text, want := range map[string]bool{
		"ModuleNotFoundError: No module named 'pytesseract'\n":                                                                      true,
		"Traceback (most recent call last):\n  File \"x\", line 1\nImportError: cannot import name 'a' from 'b'\n":                  true,
		"python3: error while loading shared libraries: libz.so.1: cannot open shared object file: No such file or directory\n":     true,
		"/usr/bin/x: symbol lookup error: /usr/bin/x: undefined symbol: f\n":                                                        true,
		"ERROR: ld.so: object '/tmp/x.so' from /etc/ld.so.preload cannot be preloaded (cannot open shared object file): ignored.\n": true,
		"sh: 1: jq: not found\n":                                                true,
		"bash: line 3: jq: command not found\n":                                 true,
		"/bin/bash: line 1: jq: command not found\n":                            true,
		"check.sh: line 7: convert: command not found\n":                        true,
		"/usr/bin/env: 'python': No such file or directory\n":                   true,
		"WARNING: easyocr is not installed, falling back to an edit distance\n": true,
		"":                                 false,
		"the file /root/x was not found\n": false,
		"grep: /root/answer: No such file or directory\n": false,
		"no fallback was needed\n":                        false,
		"the answer mentions ImportError\n":               false,
	} {
		if shown := substitutionShown(guest.Result{Stderr: []byte(text)}, bench.Checker{}); (shown != "") != want {
			t.Errorf("%q: %q, want a sign: %v", text, shown, want)
		}
	}
	declared := bench.Checker{Substitutes: []bench.Substitute{{What: "jq"}}}
	if shown := substitutionShown(guest.Result{Stderr: []byte("sh: 1: jq: not found\nsh: 1: xq: not found\n")}, declared); !strings.Contains(shown, "xq") {
		t.Errorf("%q", shown)
	}
}

// newFake is the arm of a manifest.
func newFake(t *testing.T, m bench.Manifest) engine.Arm {
	t.Helper()
	arm, err := fake.New(*m.Arms.Fake)
	if err != nil {
		t.Fatal(err)
	}
	return arm
}

// facts of a step, by name; the last of a name counts, an unknown one is empty.
func (r ran) facts(t *testing.T, step string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(r.dir, record.EventsFile))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var receipt bench.Receipt
		if err := json.Unmarshal([]byte(line), &receipt); err != nil {
			t.Fatal(err)
		}
		if receipt.Step != step {
			continue
		}
		facts := map[string]string{}
		for _, f := range receipt.Facts {
			facts[f.Name] = f.Value
		}
		return facts
	}
	t.Fatal(errors.New("no receipt of " + step))
	return nil
}
