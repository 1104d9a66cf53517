package record

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

const noDigest = bench.SHA256("0000000000000000000000000000000000000000000000000000000000000000")

func create(t testing.TB) *Dir {
	t.Helper()
	d, err := Create(filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestCreateRefusesAFullDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(dir); !errors.Is(err, engine.ErrRefused) || !strings.Contains(err.Error(), "mine") {
		t.Errorf("got %v", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("the directory was changed: %v", entries)
	}
}

func TestDirectoryIsHeldWhileItIsMade(t *testing.T) {
	d := create(t)
	if _, err := Hold(d.Path); !errors.Is(err, ErrRunning) {
		t.Errorf("held twice: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	release, err := Hold(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
}

func TestEvidence(t *testing.T) {
	d := create(t)
	a, err := d.Evidence.Put("criu/dump.log", []byte("text"))
	if err != nil {
		t.Fatal(err)
	}
	path := d.Evidence.Path(a)
	if base := filepath.Base(path); base != string(a.Sha256[:16])+"-criu_dump.log" || filepath.Dir(path) != filepath.Join(d.Path, EvidenceFolder) {
		t.Errorf("path %s", path)
	}
	// Damaged bytes are replaced, and many may put the same at once.
	if err := os.WriteFile(path, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			if _, err := d.Evidence.Put("criu/dump.log", []byte("text")); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if data, err := os.ReadFile(path); err != nil || string(data) != "text" {
		t.Errorf("%q %v", data, err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("files are left: %v", entries)
	}
	if p := d.Evidence.Path(bench.Evidence{Name: "../../x", Sha256: "../../../../../../../../etc"}); filepath.Dir(p) != filepath.Join(d.Path, EvidenceFolder) {
		t.Errorf("a damaged digest leads out of the folder: %s", p)
	}
}

func TestLedger(t *testing.T) {
	d := create(t)
	path := filepath.Join(d.Path, LedgerFile)
	id, err := d.Ledger.Intend("cgroup", bench.Claim{Path: "/cg"})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Ledger.Bind(id, bench.Identity{Dev: "1", Ino: "2"}); err != nil {
		t.Fatal(err)
	}
	half, err := d.Ledger.Intend("mount", bench.Claim{Path: "/mnt"})
	if err != nil {
		t.Fatal(err)
	}
	gone, err := d.Ledger.Intend("file", bench.Claim{Path: "/f"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d.Ledger.Gone(gone); err != nil {
			t.Error(err)
		}
	}
	if d.Ledger.Gone(77) == nil || d.Ledger.Bind(gone, bench.Identity{}) == nil {
		t.Error("what is not owned was bound or gone")
	}
	boot, err := BootID()
	if err != nil {
		t.Fatal(err)
	}
	want := []Owned{
		{ID: id, Kind: "cgroup", Claim: bench.Claim{Path: "/cg"}, Identity: &bench.Identity{Dev: "1", Ino: "2"}, Boot: boot},
		{ID: half, Kind: "mount", Claim: bench.Claim{Path: "/mnt"}, Boot: boot},
	}
	open, torn, err := ReadLedger(path)
	if err != nil || torn != 0 || !reflect.DeepEqual(open, want) || !reflect.DeepEqual(d.Ledger.Open(), want) {
		t.Errorf("open %+v torn %d %v, want %+v", open, torn, err, want)
	}
	for line := range bytes.Lines(file(t, path)) {
		if err := compile.Validate("LedgerLine", line); err != nil {
			t.Error(err)
		}
	}

	// A crash in the middle of a line.
	add(t, path, `{"seq":6,"time":"2024`)
	if open, torn, err := ReadLedger(path); err != nil || torn != 6 || len(open) != 2 {
		t.Errorf("open %v torn %d %v", open, torn, err)
	}
	again, err := OpenLedger(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(again.Gone(half), again.Gone(gone), again.Close(), again.Close()); err != nil {
		t.Error(err)
	}
	if open, torn, err := ReadLedger(path); err != nil || torn != 0 || len(open) != 1 || open[0].ID != id {
		t.Errorf("open %v torn %d %v", open, torn, err)
	}

	// Damage that no crash leaves.
	add(t, path, "nonsense\n")
	if _, _, err := ReadLedger(path); err == nil || !strings.Contains(err.Error(), ":7:") {
		t.Errorf("damage is not named by line: %v", err)
	}
}

func file(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func add(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, append(file(t, path), text...), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A write that fails half way leaves a file of whole lines.
func TestLineThatCannotBeWrittenIsCutOff(t *testing.T) {
	e := create(t).Events
	if err := e.Append(bench.Receipt{Event: "run_start"}); err != nil {
		t.Fatal(err)
	}
	good := e.file.f
	broken, err := os.Open("/dev/null") // not for writing
	if err != nil {
		t.Fatal(err)
	}
	e.file.f = broken
	if err := e.Append(bench.Receipt{Event: "step"}); err == nil {
		t.Error("written to a file that cannot be written")
	}
	_ = broken.Close()
	e.file.f = good
	if err := e.Append(bench.Receipt{Event: "run_end"}); err != nil {
		t.Fatal(err)
	}
	receipts, torn, err := ReadEvents(filepath.Dir(good.Name()))
	if err != nil || torn != 0 || len(receipts) != 2 || receipts[1].Seq != 1 {
		t.Errorf("%v %d %v", receipts, torn, err)
	}
}

// chain writes a run of five lines with one evidence and returns its directory.
func chain(t testing.TB) string {
	d := create(t)
	host, err := d.WriteHost(bench.HostFacts{ApiVersion: engine.APIVersion, Facts: []bench.Fact{}})
	if err != nil {
		t.Fatal(err)
	}
	proof, err := d.Evidence.Put("log", []byte("text"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []bench.Receipt{
		{Event: "run_start", Digests: map[string]bench.SHA256{"host": host}},
		{Event: "step", Step: "one", Kind: "k", Verdict: engine.Pass, Start: "1", End: "2"},
		{Event: "step", Step: "two", Kind: "k", Verdict: engine.Pass, Evidence: []bench.Evidence{proof}},
		{Event: "step", Step: "three", Kind: "k", Verdict: engine.Fail},
		{Event: "run_end", Outcome: engine.RunFailed},
	} {
		r.Time = engine.Timestamp(time.Now())
		if err := d.Events.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	for line := range bytes.Lines(file(t, filepath.Join(d.Path, EventsFile))) {
		if err := compile.Validate("Receipt", line); err != nil {
			t.Error(err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return d.Path
}

func TestVerifyChain(t *testing.T) {
	lines := func(change func(l []string) []string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, EventsFile)
			l := strings.SplitAfter(string(file(t, path)), "\n")
			if err := os.WriteFile(path, []byte(strings.Join(change(l[:5]), "")), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	evidence := func(t *testing.T, dir string) string {
		all, err := filepath.Glob(filepath.Join(dir, EvidenceFolder, "*"))
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		return all[0]
	}
	for _, c := range []struct {
		name   string
		change func(t *testing.T, dir string)
		want   []string // "file:line kind"
	}{
		{"nothing", func(*testing.T, string) {}, nil},
		{"edited", lines(func(l []string) []string { l[3] = strings.Replace(l[3], "fail", "pass", 1); return l }), []string{"events.jsonl:4 edited"}},
		{"edited first", lines(func(l []string) []string { l[0] = strings.Replace(l[0], "run_start", "run_start ", 1); return l }), []string{"events.jsonl:1 edited", "events.jsonl:1 cut"}},
		{"edited space", lines(func(l []string) []string { l[1] = strings.Replace(l[1], ",", ", ", 1); return l }), []string{"events.jsonl:2 edited"}},
		{"edited into no receipt", lines(func(l []string) []string { l[1] = "nonsense\n"; return l }), []string{"events.jsonl:2 edited"}},
		{"field added", lines(func(l []string) []string { l[1] = strings.Replace(l[1], "{", `{"more":1,`, 1); return l }), []string{"events.jsonl:2 edited"}},
		{"missing", lines(func(l []string) []string { return append(l[:2], l[3:]...) }), []string{"events.jsonl:3 missing"}},
		{"two missing", lines(func(l []string) []string { return append(l[:1], l[3:]...) }), []string{"events.jsonl:2 missing"}},
		{"first missing", lines(func(l []string) []string { return l[1:] }), []string{"events.jsonl:1 missing", "events.jsonl:1 cut"}},
		{"last missing", lines(func(l []string) []string { return l[:4] }), []string{"events.jsonl:4 cut"}},
		{"all missing", lines(func(l []string) []string { return nil }), []string{"events.jsonl:0 cut"}},
		{"reordered", lines(func(l []string) []string { l[1], l[2] = l[2], l[1]; return l }), []string{"events.jsonl:2 reordered", "events.jsonl:3 reordered"}},
		{"twice", lines(func(l []string) []string { return append(l[:2], l[1:]...) }), []string{"events.jsonl:3 reordered"}},
		{"missing and renumbered", lines(func(l []string) []string {
			l = append(l[:2], l[3:]...)
			l[2], l[3] = strings.Replace(l[2], `"seq":3`, `"seq":2`, 1), strings.Replace(l[3], `"seq":4`, `"seq":3`, 1)
			return l
		}), []string{"events.jsonl:2 edited", "events.jsonl:3 edited"}},
		{"torn", lines(func(l []string) []string { l[4] = l[4][:20]; return l }), []string{"events.jsonl:4 cut", "events.jsonl:5 torn"}},
		{"torn at the line feed", lines(func(l []string) []string { l[4] = strings.TrimSpace(l[4]); return l }), []string{"events.jsonl:4 cut", "events.jsonl:5 torn"}},
		{"evidence missing", func(t *testing.T, dir string) {
			if err := os.Remove(evidence(t, dir)); err != nil {
				t.Fatal(err)
			}
		}, []string{"evidence/982d9e3eb996f559-log:0 missing"}},
		{"evidence changed", func(t *testing.T, dir string) { add(t, evidence(t, dir), "!") }, []string{"evidence/982d9e3eb996f559-log:0 edited"}},
		{"host changed", func(t *testing.T, dir string) { add(t, filepath.Join(dir, HostFile), " ") }, []string{"host.json:0 edited"}},
		{"host missing", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, HostFile)); err != nil {
				t.Fatal(err)
			}
		}, []string{"host.json:0 missing"}},
		{"written anew from a line on", func(t *testing.T, dir string) {
			path := filepath.Join(dir, EventsFile)
			all := bytes.SplitAfter(file(t, path), []byte("\n"))
			r, err := json.Marshal(bench.Record{Digests: map[string]bench.SHA256{"events": canonical.Sum(bytes.TrimSpace(all[4]))}})
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, RecordFile), r, 0o600); err != nil {
				t.Fatal(err)
			}
			if p, err := VerifyChain(dir); err != nil || p != nil {
				t.Errorf("before the change: %v %v", p, err)
			}
			all[4] = bytes.Replace(all[4], []byte("failed"), []byte("passed"), 1)
			if err := os.WriteFile(path, bytes.Join(all, nil), 0o600); err != nil {
				t.Fatal(err)
			}
		}, []string{"events.jsonl:5 edited"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := chain(t)
			c.change(t, dir)
			problems, err := VerifyChain(dir)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range problems {
				got = append(got, fmt.Sprintf("%s:%d %s", p.File, p.Line, p.Kind))
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %q, want %q\n%v", got, c.want, problems)
			}
		})
	}
}

// runPlan builds and runs a plan in a directory of its own.
func runPlan(t testing.TB, b *engine.Builder, bindings engine.Bindings) *Dir {
	t.Helper()
	d := create(t)
	p, err := b.Build(noDigest, "restore")
	if err != nil {
		t.Fatal(err)
	}
	host, err := d.WriteHost(bench.HostFacts{ApiVersion: engine.APIVersion, Facts: []bench.Fact{{Name: "kernel", Known: true, Value: "6", Source: "uname"}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.WritePlan(p); err != nil {
		t.Fatal(err)
	}
	if err := d.put(ManifestFile, []byte(`{"name":"test"}`)); err != nil {
		t.Fatal(err)
	}
	e := engine.Executor{
		Plan: p, Bindings: bindings, Sink: d.Events,
		Workspace: &engine.Workspace{Evidence: d.Evidence, Ledger: d.Ledger},
		Digests:   map[string]bench.SHA256{"host": host, "manifest": canonical.Sum([]byte(`{"name":"test"}`)), "settings": noDigest},
	}
	if _, err := e.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	return d
}

var header = Header{Run: "run", Arm: "fake", Engine: bench.EngineVersion{Version: "v", Sha256: noDigest, Go: "go", Schema: engine.APIVersion}}

// build makes the record and writes it, which checks it with the schema.
func build(t testing.TB, d *Dir) bench.Record {
	t.Helper()
	r, err := Build(d.Path, header)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.WriteRecord(r); err != nil {
		t.Fatal(err)
	}
	if problems, err := VerifyChain(d.Path); err != nil || problems != nil {
		t.Errorf("%v %v", problems, err)
	}
	return r
}

// Every way in which a step can end, and the class of its rollout.
func TestRolloutClasses(t *testing.T) {
	fail := func(text string) error { return &engine.Error{Op: "do it", Err: errors.New(text)} }
	judged := errors.New("judged fail")
	for _, c := range []struct {
		name          string
		at            string
		err           error
		before, after string
		class         bench.RolloutClass
		reason        string
	}{
		{"success", "", nil, "0.0", "1.0", Success, ""},
		{"task not done", "", nil, "0.0", "0.0", FailedValid, ""},
		{"half a score", "", nil, "0.0", "0.5", VerifierUnavailable, "0.5"},
		{"not at start", "", nil, "1.0", "1.0", Invalid, "not at start"},
		{"score is no number", "", nil, "0.0", "yes", VerifierUnavailable, "evaluate-after"},
		{"restore", "restore", fail("crash"), "0", "1", EnvFailure, "restore: fail: do it: crash"},
		{"resume", "resume", fail("crash"), "0", "1", EnvFailure, "resume"},
		{"readiness", "readiness", fmt.Errorf("never: %w", engine.ErrUnknown), "0", "1", EnvFailure, "readiness: unknown"},
		{"reseed", "reseed", fail("crash"), "0", "1", EnvFailure, "reseed"},
		{"another rollout's canary", "reseed", judged, "0", "1", Contamination, "reseed"},
		{"gate", "gate", judged, "0", "1", Invalid, "gate: fail"},
		{"gate unknown", "gate", engine.ErrUnknown, "0", "1", Invalid, "gate: unknown"},
		{"canary", "canary", judged, "0", "1", Contamination, "canary"},
		{"canary unknown", "canary", engine.ErrUnknown, "0", "1", Invalid, "canary"},
		{"act", "act", fail("no such program"), "0", "1", Invalid, "act"},
		{"slot died in act", "act", fmt.Errorf("call: %w", engine.ErrDead), "0", "1", EnvFailure, "act"},
		{"checker", "evaluate-after", fmt.Errorf("run: %w", engine.ErrUnknown), "0", "1", VerifierUnavailable, "evaluate-after"},
		{"checker before", "evaluate-before", fail("gone"), "0", "1", VerifierUnavailable, "evaluate-before"},
		{"the control gave another score, so the canary was not looked at", "evaluate-after", judged, "0", "0", Invalid, "canary: not_run: evaluate-after"},
		{"what the checker stands on changed", "evaluate-after", judged, "0", "", Contamination, "evaluate-after: fail"},
		{"mount", "mount", fail("no image"), "0", "1", Invalid, "mount: the step depends on it, and it ended fail"},
	} {
		t.Run(c.name, func(t *testing.T) {
			end := func(ctx context.Context, x *engine.Exec) error {
				if name, _, _ := strings.Cut(x.Step().Id, " "); name != c.at {
					return nil
				}
				if errors.Is(c.err, judged) {
					var j engine.Judgement
					j.Add(engine.Fail, "it", "is wrong")
					x.Judge(j)
					return nil
				}
				return c.err
			}
			b, bindings := rolloutPlan(end, c.before, c.after)
			r := build(t, runPlan(t, b, bindings))
			if len(r.Rollouts) != 1 {
				t.Fatalf("rollouts %+v", r.Rollouts)
			}
			got := r.Rollouts[0]
			if got.Class != c.class || !strings.Contains(got.Reason, c.reason) || c.reason == "" && got.Reason != "" {
				t.Errorf("%s (%s), want %s (…%s…)", got.Class, got.Reason, c.class, c.reason)
			}
			if valid := got.Class == Success || got.Class == FailedValid; valid && (got.Before == nil || got.After == nil) {
				t.Error("valid without scores")
			}
			if c.at != "" && r.Verdict == engine.RunPassed {
				t.Error("the run passed")
			}
		})
	}
}

func rolloutPlan(end func(ctx context.Context, x *engine.Exec) error, before, after string) (*engine.Builder, engine.Bindings) {
	b, zero := engine.NewBuilder(), int64(0)
	var last engine.Promise[int]
	step := func(kind, id string, params any, in bool) {
		s := engine.StepSpec{ID: id, Kind: kind, Params: params, Deadline: time.Minute}
		if in {
			s.Rollout, s.Slot = &zero, "slot-0"
		}
		last = engine.Add[int](b, s, engine.After(last))
	}
	step("mount", "mount", nil, false)
	step("restore", "restore", nil, true)
	step("gate", "gate", bench.GateParams{Gate: "locks"}, true)
	step("resume", "resume", nil, true)
	step("readiness", "readiness", nil, true)
	step("reseed", "reseed", nil, true)
	step("evaluate", "evaluate-before", bench.EvaluateParams{When: "before"}, true)
	step("act", "act", nil, true)
	step("evaluate", "evaluate-after", bench.EvaluateParams{When: "after"}, true)
	step("gate", "canary", bench.GateParams{Gate: "canary"}, true)
	bindings := engine.Bindings{}
	for _, kind := range []string{"mount", "restore", "gate", "resume", "readiness", "reseed", "evaluate", "act"} {
		bindings.Add(engine.Bind(kind, func(ctx context.Context, x *engine.Exec, p map[string]any) (int, error) {
			if err := end(ctx, x); err != nil {
				return 0, err
			}
			switch kind {
			case "mount":
				x.Fact(bench.Fact{Name: "image", Known: true, Value: "here"})
			case "restore", "resume":
				stop := engine.StartSpan(ctx, "criu")
				time.Sleep(time.Millisecond)
				stop()
			case "readiness":
				x.Fact(bench.Fact{Name: "first_answer_ns", Known: true, Value: fmt.Sprint(x.SinceStart(time.Now()).Nanoseconds())})
				time.Sleep(time.Millisecond)
			case "evaluate":
				x.Fact(bench.Fact{Name: "score", Known: true, Value: map[any]string{"before": before, "after": after}[p["when"]]})
			}
			return 0, nil
		}))
	}
	return b, bindings
}

func TestRecord(t *testing.T) {
	b, bindings := rolloutPlan(func(context.Context, *engine.Exec) error { return nil }, "0.0", "1.0")
	d := runPlan(t, b, bindings)
	r := build(t, d)
	if r.Verdict != engine.RunPassed || r.Reason != "" || r.Manifest != "test" || r.Reset != "restore" {
		t.Errorf("%+v", r)
	}
	for _, name := range []string{"manifest", "workload", "plan", "settings", "host", "events", "ledger"} {
		if len(r.Digests[name]) != 64 {
			t.Errorf("digest %s: %q", name, r.Digests[name])
		}
	}
	if len(r.Facts) != 2 || r.Facts[0].Name != "kernel" || r.Facts[1].Name != "mount/image" {
		t.Errorf("facts %v", r.Facts)
	}
	got := r.Rollouts[0]
	at := func(v bench.Int64) time.Duration { n, _ := number(v); return time.Duration(n) }
	mechanism, answer, ready, usable := at(got.Clocks.Mechanism), at(got.Clocks.Answer), at(got.Clocks.Ready), at(got.Clocks.Usable)
	if mechanism < time.Millisecond || answer < mechanism+time.Millisecond || ready < answer+time.Millisecond || usable <= ready {
		t.Errorf("clocks %v %v %v %v", mechanism, answer, ready, usable)
	}
	if at(got.Spans["criu"]) < 2*time.Millisecond {
		t.Errorf("spans of one name do not add up: %v", got.Spans)
	}
	if got.Slot != "slot-0" || got.Warmup || *got.Before != 0 || *got.After != 1 {
		t.Errorf("%+v", got)
	}
}

// A clock that a failed step would have stopped is absent.
func TestClocksOfAFailedReset(t *testing.T) {
	b, bindings := rolloutPlan(func(_ context.Context, x *engine.Exec) error {
		if x.Step().Id == "readiness" {
			return errors.New("never")
		}
		return nil
	}, "0", "1")
	c := build(t, runPlan(t, b, bindings)).Rollouts[0].Clocks
	if c.Mechanism == "" || c.Answer != "" || c.Ready != "" || c.Usable != "" {
		t.Errorf("%+v", c)
	}
}

// A crash leaves a record that says so; a change leaves none.
func TestBuildAfterACrashOrAChange(t *testing.T) {
	b, bindings := rolloutPlan(func(context.Context, *engine.Exec) error { return nil }, "0.0", "1.0")
	d := runPlan(t, b, bindings)
	path := filepath.Join(d.Path, EventsFile)
	whole := strings.SplitAfter(string(file(t, path)), "\n")

	if err := os.WriteFile(path, []byte(strings.Join(whole[:9], "")+whole[9][:30]), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Build(d.Path, header)
	if err != nil {
		t.Fatal(err)
	}
	if r.Verdict != engine.RunBlocked || !strings.Contains(r.Reason, "did not end") || r.Rollouts[0].Class != Invalid || r.Steps[9].Verdict != engine.NotRun {
		t.Errorf("%s %s %+v", r.Verdict, r.Reason, r.Rollouts[0])
	}

	whole[3] = strings.Replace(whole[3], `"verdict":"pass"`, `"verdict":"fail"`, 1)
	if err := os.WriteFile(path, []byte(strings.Join(whole, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Build(d.Path, header); err == nil || !strings.Contains(err.Error(), "events.jsonl:4") {
		t.Errorf("a changed chain has a record: %v", err)
	}
}

// What the run said of itself makes the verdict worse, never better.
func TestVerdictIsDecidedAnew(t *testing.T) {
	steps := func(v bench.Verdict) []step {
		return []step{{receipt: bench.Receipt{Event: "step", Verdict: v}}}
	}
	for _, c := range []struct {
		step bench.Verdict
		said bench.RunVerdict
		want bench.RunVerdict
	}{
		{engine.Pass, engine.RunPassed, engine.RunPassed},
		{engine.Pass, engine.RunFailed, engine.RunFailed},
		{engine.Fail, engine.RunPassed, engine.RunFailed},
		{engine.NotRun, engine.RunReview, engine.RunBlocked},
		{engine.Pass, "excellent", engine.RunFailed},
	} {
		in := inputs{receipts: []bench.Receipt{{Event: "run_end", Outcome: c.said}}}
		if got, _ := verdict(in, steps(c.step), nil); got != c.want {
			t.Errorf("step %s, said %s: got %s, want %s", c.step, c.said, got, c.want)
		}
	}
}
