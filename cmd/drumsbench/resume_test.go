//go:build linux && !elsewhere

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/crashtest"
	"github.com/drumsbench/drumsbench/arms/fake"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// resumer kills a run at a moment, resumes it and looks whether it came to what an
// uninterrupted one comes to.
type resumer struct {
	*testing.T
	state, arm string
	run        []string
	whole      bench.Record
	// receipts of an uninterrupted run, and how long it takes.
	receipts int
	took     time.Duration
	n        int
	// between the kill and the resumption; nil for nothing.
	between func(dir string)
}

func (r *resumer) program(env []string, args ...string) (said string, killed bool, err error) {
	r.Helper()
	path, err := exec.LookPath("drumsbench-crash")
	if err != nil {
		r.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(append(os.Environ(), "DRUMSBENCH_STATE="+r.state), env...)
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	cmd.WaitDelay = 100 * time.Millisecond // processes of a killed run hold the output open
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		killed = exit.Sys().(syscall.WaitStatus).Signal() == unix.SIGKILL && exit.Sys().(syscall.WaitStatus).Signaled()
	}
	return text.String(), killed, err
}

func (r *resumer) dir(out string) string { return filepath.Join(out, r.arm+"-restore") }

func (r *resumer) out() string {
	r.n++
	return filepath.Join(r.state, "runs", fmt.Sprint("resumed-", r.n))
}

func (r *resumer) read(dir string) (out bench.Record) {
	r.Helper()
	text, err := os.ReadFile(filepath.Join(dir, record.RecordFile))
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		r.Fatal(err)
	}
	return out
}

// begin runs without an interruption.
func (r *resumer) begin() {
	r.Helper()
	out, start := r.out(), time.Now()
	if said, _, err := r.program(nil, append(append([]string{"run"}, r.run...), "--out", out)...); err != nil {
		r.Fatalf("an uninterrupted run: %v\n%s", err, said)
	}
	r.took = time.Since(start)
	r.whole = r.read(r.dir(out))
	receipts, _, err := record.ReadEvents(r.dir(out))
	if err != nil || len(r.whole.Interrupted) > 0 {
		r.Fatalf("%v, interrupted %v", err, r.whole.Interrupted)
	}
	r.receipts = len(receipts)
}

// counts is what has to be equal: verdict, rollouts with their classes and scores, gates that passed.
func counts(r bench.Record) string {
	var b strings.Builder
	fmt.Fprintln(&b, r.Verdict, len(r.Rollouts))
	for _, o := range r.Rollouts {
		before, after := "-", "-"
		if o.Before != nil {
			before = fmt.Sprint(*o.Before)
		}
		if o.After != nil {
			after = fmt.Sprint(*o.After)
		}
		fmt.Fprintln(&b, o.Index, o.Slot, o.Class, before, after, o.Clocks != nil && o.Clocks.Usable != "")
	}
	for _, s := range r.Steps {
		fmt.Fprintln(&b, s.Step, s.Verdict)
	}
	return b.String()
}

// try kills in the windows, one in each attempt, then lets the run end. It returns its directory; empty
// if the engine was killed before the run had begun.
func (r *resumer) try(windows ...crashtest.Window) string {
	r.Helper()
	out := r.out()
	dir := r.dir(out)
	var before []byte
	attempts := 0
	for i, w := range windows {
		args := append(append([]string{"run"}, r.run...), "--out", out)
		if i > 0 {
			args = []string{"run", "--resume", dir}
		}
		said, killed, err := r.program([]string{w.Environment()}, args...)
		if err == nil && i > 0 { // the rest was shorter than the window is late
			break
		}
		if !killed {
			r.Fatalf("%v: not killed: %v\n%s", windows, err, said)
		}
		if text, err := os.ReadFile(filepath.Join(dir, record.EventsFile)); err != nil || len(text) == 0 {
			said, _, err := r.program(nil, "run", "--resume", dir)
			if err == nil || !strings.Contains(said, "it ended before its first receipt") && !strings.Contains(said, "is no run") {
				r.Errorf("%v: a run that did not begin: %v: %s", windows, err, said)
			}
			if said, _, err := r.program(nil, "sweep", out); err != nil && record.IsRun(dir) {
				r.Errorf("%v: sweep: %v: %s", windows, err, said)
			}
			return ""
		} else if !bytes.HasPrefix(text, before) {
			r.Errorf("%v: receipts were changed", windows)
		} else {
			before = text
		}
		attempts++
		if r.between != nil {
			r.between(dir)
		}
	}
	if !exists(filepath.Join(dir, record.RecordFile)) {
		if said, _, err := r.program(nil, "run", "--resume", dir); err != nil {
			r.Fatalf("%v: resume: %v\n%s", windows, err, said)
		}
	}
	got := r.read(dir)
	if a, b := counts(r.whole), counts(got); len(r.whole.Rollouts) > 0 && a != b {
		r.Errorf("%v: an uninterrupted run comes to\n%s\nthis to\n%s", windows, a, b)
	}
	text, err := os.ReadFile(filepath.Join(dir, record.EventsFile))
	if err != nil || !bytes.HasPrefix(text, before) {
		r.Errorf("%v: receipts were changed: %v", windows, err)
	}
	report, err := record.Verify(dir)
	for _, p := range append(report.Damage, report.Crash...) {
		r.Errorf("%v: verify: %v", windows, p)
	}
	if err != nil || len(report.Owned) > 0 {
		r.Errorf("%v: verify: %v, owned %v", windows, err, report.Owned)
	}
	resumed := 0
	for _, line := range bytes.Split(text, []byte("\n")) {
		var e bench.Receipt
		if json.Unmarshal(line, &e) == nil && e.Event == "resume" {
			resumed++
		}
	}
	said := ""
	for _, f := range got.Facts {
		if f.Name == "resumed" {
			said = f.Value
		}
	}
	lines := map[int64]bool{}
	for _, l := range got.Interrupted {
		lines[l.Attempt] = true
		if l.Class != string(record.Invalid) || l.Reason == "" {
			r.Errorf("%v: %+v", windows, l)
		}
	}
	if len(lines) != resumed || resumed > attempts || (said != "") != (resumed > 0) {
		r.Errorf("%v: killed %d times, resumed %d times, %d attempts named, fact %q", windows, attempts, resumed, len(lines), said)
	}
	if left, _ := filepath.Glob(filepath.Join(r.state, "work", "*")); len(left) > 0 {
		r.Errorf("%v: left behind: %q", windows, left)
	}
	return dir
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func fakeResumer(t *testing.T) *resumer {
	t.Helper()
	folder := t.TempDir()
	state, manifest := newState(t, folder, "fake"), filepath.Join(folder, "manifest")
	if err := writeFakeManifest(state, manifest); err != nil {
		t.Fatal(err)
	}
	r := &resumer{T: t, state: state, arm: "fake", run: []string{"-t", "server=" + string(fake.ServerSHA256()), "-t", "rollouts=3", filepath.Join(manifest, "desk")}}
	r.begin()
	return r
}

// The everyday suite tries a sample of the moments; scripts/test crash all of them.
func TestResume(t *testing.T) {
	r := fakeResumer(t)
	var windows []crashtest.Window
	for line := range r.receipts {
		windows = append(windows, crashtest.Window{Kind: crashtest.Receipt, Line: line}, crashtest.Window{Kind: crashtest.Receipt, Line: line, After: true})
	}
	random := rand.New(rand.NewPCG(seed(), 3))
	if !*crashAll {
		// The first, the last, and some between.
		sample := []crashtest.Window{windows[0], windows[1], windows[len(windows)-2], windows[len(windows)-1]}
		for range 3 {
			sample = append(sample, windows[random.IntN(len(windows))])
		}
		windows = sample
	}
	for _, w := range windows {
		r.try(w)
	}
	// Killed twice, and killed in the resumption.
	late := func(share float64) crashtest.Window {
		return crashtest.Window{Kind: crashtest.Receipt, Line: int(share * float64(r.receipts))}
	}
	r.try(late(0.5), crashtest.Window{Kind: crashtest.Receipt, Line: 1 + random.IntN(9)}, crashtest.Window{Kind: crashtest.Receipt, Line: 2, After: true})

	dir := r.try(late(0.7))
	said, _, err := r.program(nil, "run", "--resume", dir)
	if err == nil || !strings.Contains(said, "it is complete") || !strings.Contains(said, "drumsbench show") {
		t.Errorf("a complete run is resumed: %v: %s", err, said)
	}
	if said, _, err := r.program(nil, "report", "--out", filepath.Join(dir, "..", "site"), dir); err != nil {
		t.Errorf("report: %v: %s", err, said)
	}
	shown := false
	err = filepath.WalkDir(filepath.Join(dir, "..", "site"), func(path string, _ os.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".html" {
			text, rerr := os.ReadFile(path)
			shown, err = shown || bytes.Contains(text, []byte("Interrupted and resumed")), rerr
		}
		return err
	})
	if err != nil || !shown {
		t.Errorf("no page says that the run was resumed: %v", err)
	}
}

// What is not as it was is not gone on with.
func TestResumeRefused(t *testing.T) {
	r := fakeResumer(t)
	out := r.out()
	dir := r.dir(out)
	w := crashtest.Window{Kind: crashtest.Receipt, Line: r.receipts / 2}
	if said, killed, err := r.program([]string{w.Environment()}, append(append([]string{"run"}, r.run...), "--out", out)...); !killed {
		t.Fatalf("%v: %s", err, said)
	}
	refused := func(what, want string, args ...string) {
		t.Helper()
		said, _, err := r.program(nil, append([]string{"run", "--resume", dir}, args...)...)
		var exit *exec.ExitError
		if !errors.As(err, &exit) || !strings.Contains(said, want) || !strings.Contains(said, "hint") {
			t.Errorf("%s: %v: %s", what, err, said)
		}
	}
	change := func(file, from, to string) (back func()) {
		t.Helper()
		path := filepath.Join(dir, file)
		text, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(text, []byte(from)) {
			t.Fatalf("%s has no %q: %v", file, from, err)
		}
		if err := os.WriteFile(path, bytes.Replace(text, []byte(from), []byte(to), 1), 0o644); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := os.WriteFile(path, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range [][3]string{{record.ManifestFile, "rename", "Rename"}, {record.PlanFile, "provision", "provisioN"}, {record.HostFile, "kernel-release", "kernel-Release"}, {record.EventsFile, `"verdict":"pass"`, `"verdict":"fail"`}} {
		back := change(c[0], c[1], c[2])
		refused(c[0]+" was changed", "it is not as it was written")
		back()
	}
	evidence, err := filepath.Glob(filepath.Join(dir, record.EvidenceFolder, "*"))
	if err != nil || len(evidence) == 0 {
		t.Fatal(err, evidence)
	}
	back := change(filepath.Join(record.EvidenceFolder, filepath.Base(evidence[0])), "", "more")
	refused("evidence was changed", "it is not as it was written")
	back()
	release, err := record.Hold(dir)
	if err != nil {
		t.Fatal(err)
	}
	refused("an engine drives it", "another engine, or a sweep, works in it")
	if err := release(); err != nil {
		t.Fatal(err)
	}
	refused("another manifest", "the manifest has digest", "-t", "server="+string(fake.ServerSHA256()), "-t", "rollouts=4", r.run[len(r.run)-1])
	moved := filepath.Join(out, "other")
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	dir = moved
	refused("another name", "give the directory the name that it had")
	if err := os.Rename(moved, r.dir(out)); err != nil {
		t.Fatal(err)
	}
	dir = r.dir(out)
	if said, _, err := r.program(nil, "run", "--resume", dir); err != nil {
		t.Errorf("as it was: %v: %s", err, said)
	}
	if got := r.read(dir); got.Verdict != engine.RunPassed || counts(got) != counts(r.whole) {
		t.Errorf("it came to %s", counts(got))
	}
}

// resumeFacts are those of a run's last resumption.
func (r *resumer) resumeFacts(dir string) map[string]string {
	r.Helper()
	receipts, _, err := record.ReadEvents(dir)
	if err != nil {
		r.Fatal(err)
	}
	facts := map[string]string{}
	for _, e := range receipts {
		if e.Event != "resume" {
			continue
		}
		clear(facts)
		for _, f := range e.Facts {
			facts[f.Name] = f.Value
		}
	}
	return facts
}

// firstProcess is that of the tenancy that lives, by the run's ledger, and its scratch directory.
func (r *resumer) firstProcess(dir string) (id bench.Identity, tenancy string) {
	r.Helper()
	open, _, err := record.ReadLedger(filepath.Join(dir, record.LedgerFile))
	if err != nil {
		r.Fatal(err)
	}
	for _, o := range open {
		switch {
		case o.Kind == "process" && o.Identity != nil && o.Identity.Ino == "":
			id = *o.Identity
		case o.Kind == "directory" && strings.HasPrefix(filepath.Base(o.Claim.Path), "slot-0."):
			tenancy = o.Claim.Path
		}
	}
	if id.Pid == 0 || tenancy == "" {
		r.Fatalf("no slot lives: %+v", open)
	}
	return id, tenancy
}

// A slot that is still good is gone on in: nobody mounts the image again, and its place's next
// tenancy has the next number. One that is not is swept. The everyday suite tries drums, scripts/test crash both.
func TestResumeAdopts(t *testing.T) {
	arms := []string{"drums"}
	if *crashAll {
		arms = append(arms, "oci")
	}
	for _, arm := range arms {
		t.Run(arm, func(t *testing.T) {
			r := realResumer(t, arm, 1)
			end := func(dir string) {
				id, _ := r.firstProcess(dir)
				if err := procfs.Kill(t.Context(), id); err != nil {
					t.Error(err)
				}
			}
			note := func(change func(text []byte) []byte) func(string) {
				return func(dir string) {
					_, tenancy := r.firstProcess(dir)
					path := filepath.Join(filepath.Dir(tenancy), "places", "slot-0.json")
					text, err := os.ReadFile(path)
					if err == nil {
						err = os.WriteFile(path, change(text), 0o600)
					}
					if err != nil {
						t.Error(err)
					}
				}
			}
			type damage struct {
				name             string
				between          func(string)
				adopted, refused string
			}
			cases := []damage{
				{"good", nil, "slot-0", ""},
				{"its first process ended", end, "none", "slot-0: "},
			}
			if *crashAll {
				cases = append(cases,
					damage{"its note is of another folder", note(func(text []byte) []byte { return bytes.Replace(text, []byte("slot-0."), []byte("slot-9."), 1) }), "none", "the ledger has no identity"},
					damage{"its note is no note", note(func([]byte) []byte { return []byte("{") }), "none", "unexpected end"})
			}
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) {
					r.T = t
					r.between = c.between
					dir := r.try(crashtest.Window{Kind: crashtest.Step, Stage: "r2/act", After: true})
					got, facts := r.read(dir), r.resumeFacts(dir)
					r.judge(got, record.FailedValid, record.Success, record.Success)
					if facts["resumed.adopted"] != c.adopted || !strings.Contains(facts["resumed.refused"], c.refused) || c.refused == "" && facts["resumed.refused"] != "" {
						t.Errorf("facts of the resumption: %v", facts)
					}
					text, err := os.ReadFile(filepath.Join(dir, record.LedgerFile))
					if err != nil {
						t.Fatal(err)
					}
					loops := 0
					for line := range bytes.Lines(text) {
						var l bench.LedgerLine
						if json.Unmarshal(line, &l) == nil && l.Op == "intent" && l.Kind == "loop" {
							loops++
						}
					}
					if want := map[bool]int{true: 1, false: 2}[c.adopted != "none"]; loops != want {
						t.Errorf("the image was shown by %d devices in all, want %d", loops, want)
					}
				})
			}
		})
	}
}

// realResumer runs the soak's manifest on an arm.
func realResumer(t *testing.T, arm string, rollouts int) *resumer {
	t.Helper()
	folder, err := os.MkdirTemp(realState(), "drums-resume-")
	if err != nil {
		t.Fatalf("%v: scripts/prepare makes it", err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	manifest := soakManifest(t, folder, arm)
	return &resumer{T: t, state: filepath.Join(folder, arm), arm: arm, run: []string{"-t", fmt.Sprint("rollouts=", rollouts), "--arm", arm, manifest}}
}

// judge requires a run that was interrupted once and passed, with rollouts of these classes.
func (r *resumer) judge(got bench.Record, classes ...bench.RolloutClass) {
	r.Helper()
	if got.Verdict != engine.RunPassed || len(got.Rollouts) != len(classes) || len(got.Interrupted) != 1 {
		r.Fatalf("%s: %s, %d rollouts, interrupted %+v", got.Verdict, got.Reason, len(got.Rollouts), got.Interrupted)
	}
	for i, class := range classes {
		if got.Rollouts[i].Class != class || got.Rollouts[i].Clocks == nil || got.Rollouts[i].Clocks.Usable == "" {
			r.Errorf("rollout %d: %+v", i, got.Rollouts[i])
		}
	}
}

// With real slots: in the set-up, around the dump, within a rollout, between two, at the end. The
// everyday suite tries one moment (TestResumeAdopts); scripts/test crash all.
func TestResumeReal(t *testing.T) {
	if !*crashAll {
		return
	}
	for _, arm := range []string{"drums", "oci"} {
		t.Run(arm, func(t *testing.T) {
			r := realResumer(t, arm, 2)
			at := func(step string, after bool) crashtest.Window {
				return crashtest.Window{Kind: crashtest.Step, Stage: step, After: after}
			}
			windows := []crashtest.Window{at("mount", false), at("base/readiness", true), at("base/dump", false), at("base/dump", true), at("r1/resume", true), at("r2/act", true),
				at("r2/gate-canary", true), at("r3/restore", true), at("r3/gate-canary", true), at("gate-image", false), at("release/slot-0", false)}
			for _, w := range windows {
				t.Run(w.String(), func(t *testing.T) {
					r.T = t
					got := r.read(r.try(w))
					r.judge(got, record.FailedValid, record.Success, record.Success, record.Success)
				})
			}
		})
	}
}
