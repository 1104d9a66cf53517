package drums

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps"
)

// The oracle of these tests is the agent: it acts in the second rollout, root in the slot as any agent.
const agentRollout = 1

// done is a task that is done once /root/done is there.
func done(t *testing.T, agent string) bench.Manifest {
	t.Helper()
	m := manifest(t, "rollouts=1")
	m.Task.Oracle = []bench.Command{{Exec: []string{"/bin/sh", "-c", "set -e; touch /root/done; " + agent}, Timeout: "30s"}}
	m.Checker = bench.Checker{Exec: []string{"test", "-e", "/root/done"}, Timeout: "10s"}
	m.Checker.Failure.Exit = 1
	return m
}

// pinned is the same with a checker that comes from beside the manifest, which lies in folder.
func pinned(t *testing.T, agent, text string) (m bench.Manifest, folder string) {
	t.Helper()
	m, folder = done(t, agent), t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "check.py"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	m.Checker.Exec = []string{"/usr/bin/python3", "-I", guest.ProgramPlace}
	m.Checker.Program = &bench.PinnedFile{File: "check.py", Sha256: canonical.Sum([]byte(text))}
	m.Checker.Failure.Exit = 4
	return m, folder
}

const checkPython = "import os, sys, time\ntime.sleep(0.5)\nsys.exit(0 if os.path.exists('/root/done') else 4)\n"

// runIn runs a manifest that lies in folder, cold, and returns its record.
func runIn(t *testing.T, m bench.Manifest, folder string) bench.Record {
	t.Helper()
	workload, err := compile.Workload(m)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := steps.Block(m, workload, "cold")
	if err != nil {
		t.Fatal(err)
	}
	ws, dir := workspace(t)
	ws.Manifest = folder
	arm := newArm(t, m)
	digest, err := dir.WriteManifest(m)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dir.WriteHost(bench.HostFacts{ApiVersion: engine.APIVersion, Facts: arm.Facts(t.Context())}); err != nil {
		t.Fatal(err)
	}
	if err := dir.WritePlan(plan); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if _, err := (&engine.Executor{Plan: plan, Bindings: steps.Bindings(), Arm: arm, Workspace: ws, Sink: dir.Events}).Run(ctx); err != nil {
		t.Fatal(err)
	}
	r, err := record.Build(dir.Path, record.Header{Run: "test/" + t.Name(), Arm: Kind, Engine: bench.EngineVersion{Version: "test", Sha256: digest, Go: "test", Schema: engine.APIVersion}})
	if err != nil {
		t.Fatal(err)
	}
	if len(dir.Ledger.Open()) > 0 {
		t.Errorf("the ledger still owns %+v", dir.Ledger.Open())
	}
	return r
}

// Whatever a checker stands on in the slot: an agent that changes it gets no score.
func TestAgentChangesTheChecker(t *testing.T) {
	put := func(path, text string) string { // another file in the place of one that may run
		return "printf '" + text + "' > " + path + ".new; chmod 755 " + path + ".new; mv " + path + ".new " + path
	}
	python := func(m *bench.Manifest) {
		m.Checker.Exec, m.Checker.Failure.Exit = []string{"/usr/bin/python3", "-c", "import os, sys; sys.exit(0 if os.path.exists('/root/done') else 4)"}, 4
	}
	script := func(m *bench.Manifest) {
		python(m)
		m.Task.Setup = append(m.Task.Setup, bench.Command{Timeout: "5s", Exec: []string{"/bin/sh", "-c",
			"mkdir /opt/check; echo 'answer = \"/root/done\"' > /opt/check/helper.py; echo 'import helper, os, sys; sys.exit(0 if os.path.exists(helper.answer) else 4)' > /opt/check/check.py"}})
		m.Checker.Exec = []string{"/usr/bin/python3", "-B", "/opt/check/check.py"}
	}
	for _, c := range []struct {
		name   string
		change func(*bench.Manifest)
		agent  string
		file   string
	}{
		{"replaces the program", nil, put("/usr/bin/test", "#!/bin/sh\\nexit 0\\n"), "/usr/bin/test"},
		{"binds another over the program", nil, "mount --bind /bin/true /usr/bin/test 2>/dev/null || cp /bin/true /usr/bin/test", "/usr/bin/test"},
		{"puts a fake before the program", nil, put("/usr/local/bin/test", "#!/bin/sh\\nexit 0\\n"), "/usr/local/bin/test"},
		{"preloads a library", nil, "echo /tmp/x.so > /etc/ld.so.preload", "/etc/ld.so.preload"},
		{"changes the loader's cache", nil, "printf x >> /etc/ld.so.cache", "/etc/ld.so.cache"},
		{"changes the C library", nil, "l=$(readlink -f /lib/*-linux-gnu/libc.so.6); cp $l $l.new; printf x >> $l.new; mv $l.new $l", "libc.so.6"},
		{"replaces the interpreter", python, "p=$(readlink -f /usr/bin/python3); " + put("$p", "#!/bin/sh\\nexit 0\\n"), "/usr/bin/python3"},
		{"changes a library of the interpreter", python, "printf '\\nimport os\\n' >> $(ls -d /usr/lib/python3.*/os.py)", "/os.py"},
		{"puts a module before it", python, "printf 'raise SystemExit(0)' > /root/os.py", "/root/os.py"},
		{"customises the user's interpreter", python, "d=$(ls -d /usr/lib/python3.* | head -n1); d=/root/.local/lib/${d##*/}/site-packages; mkdir -p $d; echo 'import os; os._exit(0)' > $d/usercustomize.py", "usercustomize.py"},
		{"replaces the script", script, "echo 'raise SystemExit(0)' > /opt/check/check.py", "/opt/check/check.py"},
		{"replaces a module of the script", script, "echo 'answer = \"/\"' > /opt/check/helper.py", "/opt/check/helper.py"},
		{"replaces what a shell names", func(m *bench.Manifest) {
			m.Checker.Exec, m.Checker.Failure.Exit = []string{"/bin/sh", "-c", "ls /root | grep -q done && exit 0; exit 4"}, 4
		}, put("/usr/bin/grep", "#!/bin/sh\\nexit 0\\n"), "/usr/bin/grep"},
		{"writes the checker's answers", func(m *bench.Manifest) { m.Checker.Files = []bench.GuestPath{"/root/expected"} }, "echo 42 > /root/expected", "/root/expected"},
		{"replaces the guest server", nil, "cp /usr/local/bin/guestd /tmp/g; printf x >> /tmp/g; mv /tmp/g /usr/local/bin/guestd", "/usr/local/bin/guestd"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := done(t, c.agent)
			if c.change != nil {
				c.change(&m)
			}
			r := runIn(t, m, "")
			contaminated(t, r, c.file)
		})
	}
}

func contaminated(t *testing.T, r bench.Record, file string) {
	t.Helper()
	x := r.Rollouts[agentRollout]
	if x.Class != record.Contamination || x.After != nil || !strings.Contains(x.Reason, "checker") {
		t.Errorf("the agent's rollout is %s (%s)", x.Class, x.Reason)
	}
	if r.Verdict != engine.RunFailed {
		t.Errorf("the run %s: %s", r.Verdict, r.Reason)
	}
	for _, s := range r.Steps {
		named := func(f bench.Finding) bool { return strings.HasSuffix(f.Subject, file) && f.Want != f.Have }
		if s.Step == "r1/evaluate-after" && (s.Verdict != engine.Fail || s.Error != nil || !slices.ContainsFunc(s.Findings, named)) {
			t.Errorf("%s is not named: %+v", file, s)
		}
	}
}

// The pinned copy runs, is not there while the agent acts, and cannot be changed unseen while it runs.
func TestPinnedCheckerInTheSlot(t *testing.T) {
	m, folder := pinned(t, "if ls -a / | grep drums-; then exit 1; fi", checkPython)
	if r := runIn(t, m, folder); r.Verdict != engine.RunPassed || len(r.Rollouts) != 3 {
		t.Errorf("the run %s: %s", r.Verdict, r.Reason)
	}
	m, folder = pinned(t, `rm /root/done; nohup sh -c 'while :; do for f in /.drums-*/check.py; do [ -e $f ] && echo pass > $f && exit; done; done' >/dev/null 2>&1 &`, checkPython)
	// The copy's identity tells it, also where the text was put back: there is no score, and no class but that.
	r := runIn(t, m, folder)
	if x := r.Rollouts[agentRollout]; x.Class != record.VerifierUnavailable || x.After != nil || !strings.Contains(x.Reason, "copy was changed while it ran") || r.Verdict != engine.RunBlocked {
		t.Errorf("the run %s, the agent's rollout is %s (%s)", r.Verdict, x.Class, x.Reason)
	}
	m, folder = pinned(t, "p=$(readlink -f /usr/bin/python3); cp /bin/true $p.new; mv $p.new $p", checkPython)
	contaminated(t, runIn(t, m, folder), "/usr/bin/python3")
}

// An agent that ends the guest server ends the slot; the first process cannot be killed from inside.
func TestAgentEndsTheGuestServer(t *testing.T) {
	if r := runIn(t, done(t, "kill -9 1"), ""); r.Verdict != engine.RunPassed {
		t.Errorf("SIGKILL: the run %s: %s", r.Verdict, r.Reason)
	}
	r := runIn(t, done(t, "kill -TERM 1; sleep 20"), "")
	x := r.Rollouts[agentRollout]
	if x.Class != record.EnvFailure || x.After != nil {
		t.Errorf("SIGTERM: the agent's rollout is %s (%s)", x.Class, x.Reason)
	}
	// Between the act and the evaluation: nobody answers, and that is no 0.
	m := done(t, "nohup sh -c 'sleep 0.5; kill -TERM 1' >/dev/null 2>&1 &")
	m.Checker.Exec = []string{"/bin/sh", "-c", "sleep 2; test -e /root/done"}
	r = runIn(t, m, "")
	if x := r.Rollouts[agentRollout]; x.After != nil || x.Class != record.VerifierUnavailable {
		t.Errorf("SIGTERM later: the agent's rollout is %s (%s), after %v", x.Class, x.Reason, x.After)
	}
}

// A task that the controls do not hold for is quarantined here as on every arm.
func TestControlsQuarantineATask(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*bench.Manifest)
		reason string
	}{
		"always 1":            {func(m *bench.Manifest) { m.Checker.Exec = []string{"true"} }, "nobody acted"},
		"always 0":            {func(m *bench.Manifest) { m.Checker.Exec = []string{"false"} }, "the oracle acted"},
		"done from the start": {func(m *bench.Manifest) { m.Task.Setup = append(m.Task.Setup, m.Task.Oracle...) }, "nobody acted"},
	} {
		m := done(t, "true")
		c.change(&m)
		r := runIn(t, m, "")
		if r.Verdict != engine.RunFailed || !strings.Contains(r.Reason, "task quarantined") || !strings.Contains(r.Reason, c.reason) {
			t.Errorf("%s: the run %s: %s", name, r.Verdict, r.Reason)
		}
		for _, x := range r.Rollouts {
			if x.Control == "" && (x.Before != nil || x.After != nil || x.Clocks != nil) {
				t.Errorf("%s: a rollout after the controls has numbers: %+v", name, x)
			}
		}
	}
}

// A time-out, a missing result file and a missing module are no 0 in a real slot either.
func TestNoAnswerIsNoZero(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*bench.Manifest)
		text   string
	}{
		"time-out":         {func(m *bench.Manifest) { m.Checker.Exec, m.Checker.Timeout = []string{"sleep", "60"}, "300ms" }, "timed out after 300ms"},
		"no result file":   {func(m *bench.Manifest) { m.Checker.Results = []bench.GuestPath{"/root/export.csv"} }, "/root/export.csv"},
		"no such program":  {func(m *bench.Manifest) { m.Checker.Exec = []string{"no-such-program"} }, "not in the guest"},
		"a missing module": {func(m *bench.Manifest) { m.Checker.Exec = []string{"/usr/bin/python3", "-I", "-c", "import easyocr"} }, "No module named 'easyocr'"},
		"a missing command": {func(m *bench.Manifest) {
			m.Checker.Exec = []string{"/bin/sh", "-c", "no-such-program; exit 1"}
		}, "not found"},
		"an exception": {func(m *bench.Manifest) { m.Checker.Exec = []string{"/usr/bin/python3", "-I", "-c", "1 / 0"} }, "ended in an exception"},
	} {
		m := done(t, "true")
		c.change(&m)
		r := runIn(t, m, "")
		x := r.Rollouts[0]
		if x.Class != record.VerifierUnavailable || x.After != nil || !strings.Contains(x.Reason, c.text) || r.Verdict != engine.RunBlocked {
			t.Errorf("%s: the run %s, its rollout is %s (%s), scores %v %v", name, r.Verdict, x.Class, x.Reason, x.Before, x.After)
		}
	}
}
