package record

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// wholeRun is the closed directory of a run that passed, with everything that a run has.
func wholeRun(t testing.TB) string { return wholeRunOf(t, nil) }

// wholeRunOf is a run whose start names more digests.
func wholeRunOf(t testing.TB, digests map[string]bench.SHA256) string {
	t.Helper()
	m := bench.Manifest{
		ApiVersion: engine.APIVersion, Name: "whole", Network: "none",
		Image:     bench.Image{File: "a.qcow2", Sha256: noDigest},
		Guest:     bench.Guest{User: "root", Home: "/root", Services: []bench.Service{}, Server: bench.Server{Port: 5000, Sha256: noDigest, Exec: []string{"/usr/local/bin/guestd"}}},
		Resources: bench.Resources{Vcpus: 1, Memory: "1GiB", Swap: "0", Pids: 10},
		Task:      bench.Task{Id: "task", Setup: []bench.Command{}, Oracle: []bench.Command{}},
		Checker:   bench.Checker{Exec: []string{"/bin/true"}, Timeout: "1s"}, Canary: bench.Canary{File: "/c"},
		Readiness: bench.Readiness{Server: true, Windows: []bench.Window{}, Probes: []bench.Command{}, Period: "1ms", Deadline: "1s"},
		Arms:      bench.Arms{Fake: &bench.FakeSettings{Faults: []string{}}}, Experiment: bench.Experiment{Reset: []string{"restore"}, Rollouts: 1, Blocks: 1, Order: "abba", Reuse: "post_setup", Slots: 1},
	}
	m.Checker.Failure.Exit = 1
	workload, err := compile.Workload(m)
	if err != nil {
		t.Fatal(err)
	}
	d := create(t)
	b, bindings := rolloutPlan(func(_ context.Context, x *engine.Exec) error {
		if x.Step().Id == "act" {
			if err := x.Evidence("log", []byte("what was done\n")); err != nil {
				return err
			}
		}
		return nil
	}, "0.0", "1.0")
	p, err := b.Build(workload, "restore")
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := d.WriteManifest(m)
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
	first, err := d.Ledger.Intend("cgroup", bench.Claim{Path: "/cg"})
	second, err2 := d.Ledger.Intend("directory", bench.Claim{Path: "/dir"})
	if err := errors.Join(err, err2,
		d.Ledger.Bind(first, bench.Identity{Dev: "1", Ino: "2"}), d.Ledger.Bind(second, bench.Identity{Dev: "1", Ino: "3"}),
		d.Ledger.Gone(first), d.Ledger.Gone(second)); err != nil {
		t.Fatal(err)
	}
	e := engine.Executor{
		Plan: p, Bindings: bindings, Sink: d.Events, Workspace: &engine.Workspace{Evidence: d.Evidence, Ledger: d.Ledger},
		Digests: map[string]bench.SHA256{"host": host, "manifest": manifest},
	}
	maps.Copy(e.Digests, digests)
	if _, err := e.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	build(t, d)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return d.Path
}

func verify(t testing.TB, dir string) Report {
	t.Helper()
	r, err := Verify(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestVerifyOfASoundRun(t *testing.T) {
	r := verify(t, wholeRun(t))
	if r.Damage != nil || r.Crash != nil || r.Events != 12 || r.LedgerLines != 6 || r.Evidence != 1 || r.Owned != nil || r.Record == nil {
		t.Errorf("%+v", r)
	}
}

// Whatever byte of whatever file is another one is found. The record's own bytes
// are in the test below, since it says some things that nothing else does.
func TestVerifyFindsEachChangedByte(t *testing.T) {
	dir := wholeRun(t)
	proof, err := filepath.Glob(filepath.Join(dir, EvidenceFolder, "*"))
	if err != nil || len(proof) != 1 {
		t.Fatal(proof, err)
	}
	tried := 0
	for _, name := range []string{EventsFile, LedgerFile, PlanFile, HostFile, ManifestFile, filepath.Join(EvidenceFolder, filepath.Base(proof[0]))} {
		path := filepath.Join(dir, name)
		whole := file(t, path)
		for at := 0; at < len(whole); at += max(1, len(whole)/40) {
			changed := bytes.Clone(whole)
			changed[at] ^= 1
			if err := os.WriteFile(path, changed, 0o600); err != nil {
				t.Fatal(err)
			}
			if r := verify(t, dir); len(r.Damage) == 0 {
				t.Errorf("%s: byte %d %q changed to %q: nothing was found", name, at, whole[at], changed[at])
			}
			tried++
		}
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if r := verify(t, dir); r.Damage != nil || tried < 200 {
		t.Errorf("%d tried, %v", tried, r.Damage)
	}
}

// Whatever number, verdict, class or fact the record says is found when it is changed.
func TestVerifyFindsEachChangeOfTheRecord(t *testing.T) {
	dir := wholeRun(t)
	path := filepath.Join(dir, RecordFile)
	whole := string(file(t, path))
	for _, c := range []struct{ old, new, want string }{
		{`"verdict":"passed"`, `"verdict":"failed"`, "verdict is"},
		{`"class":"success"`, `"class":"failed_valid"`, "rollouts[0].class is"},
		{`"after":1`, `"after":0`, "rollouts[0].after is 0, the run gives 1"},
		{`"ready":"`, `"ready":"1`, "rollouts[0].clocks.ready is"},
		{`"criu":"`, `"criu":"1`, "rollouts[0].spans.criu is"},
		{`"nanoseconds":"`, `"nanoseconds":"1`, "steps[0].nanoseconds is"},
		{`"name":"kernel","source":"uname","value":"6"`, `"name":"kernel","source":"uname","value":"7"`, "facts[0].value is"},
		{`"manifest":"whole"`, `"manifest":"other"`, "manifest is"},
		{`"reset":"restore"`, `"reset":"cold"`, "reset is"},
		{`"plan":"`, `"plan":"0000000000000000000000000000000000000000000000000000000000000000","x":"`, "digests.plan is"},
		{`"started":"2`, `"started":"3`, "started is"},
		{`"rollouts":[`, `"rollouts":[{"class":"success","index":9,"slot":"slot-0","warmup":false},`, "rollouts is a list of 2, the run gives a list of 1"},
		{`{`, ` {`, "its bytes are not as the engine writes them"},
	} {
		changed := strings.Replace(whole, c.old, c.new, 1)
		if changed == whole {
			t.Fatalf("the record has no %s:\n%s", c.old, whole)
		}
		if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		r := verify(t, dir)
		if len(r.Damage) == 0 || !strings.Contains(fmt.Sprint(r.Damage), c.want) {
			t.Errorf("%s: %v, want %s", c.new, r.Damage, c.want)
		}
	}
}

// Where run_start names a digest of it, nobody can say afterwards that another
// arm or another program made the numbers.
func TestVerifyOfTheHeader(t *testing.T) {
	r := verify(t, wholeRun(t)).Record
	digest, err := headerOf(*r).Digest()
	if err != nil {
		t.Fatal(err)
	}
	dir := wholeRunOf(t, map[string]bench.SHA256{"header": digest})
	if r := verify(t, dir); r.Damage != nil {
		t.Fatalf("as it was written: %v", r.Damage)
	}
	path := filepath.Join(dir, RecordFile)
	whole := string(file(t, path))
	for _, c := range []struct{ old, new string }{
		{`"arm":"`, `"arm":"x`}, {`"go":"`, `"go":"x`}, {`"differences":[`, `"differences":[{"name":"x","text":"y"},`}, {`"run":"`, `"run":"x`},
	} {
		changed := strings.Replace(strings.Replace(whole, c.old, c.new, 1), "},]", "}]", 1)
		if changed == whole {
			t.Fatalf("the record has no %s:\n%s", c.old, whole)
		}
		if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		// Also for a program that did not make the run.
		if r, err := VerifyAs(dir, "another"); err != nil || !strings.Contains(fmt.Sprint(r.Damage), "their digest is not the one that run_start names") {
			t.Errorf("%s: %v %v", c.new, r.Damage, err)
		}
	}
}

// A link leads out of the directory, and a FIFO holds up whoever reads it.
func TestVerifyOfWhatIsNoFile(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{RegistrationFile, RecordFile, EventsFile, ManifestFile, LedgerFile, filepath.Join(EvidenceFolder, "x"), EvidenceFolder} {
		for kind, plant := range map[string]func(string) error{
			"link": func(path string) error { return os.Symlink(outside, path) },
			"fifo": func(path string) error { return syscall.Mkfifo(path, 0o600) },
		} {
			dir := wholeRun(t)
			path := filepath.Join(dir, name)
			if err := errors.Join(os.RemoveAll(path), plant(path)); err != nil {
				t.Fatal(err)
			}
			if r := verify(t, dir); len(r.Damage) != 1 || r.Damage[0].File != name {
				t.Errorf("%s as a %s: %v", name, kind, r.Damage)
			}
			if _, err := ReadRegular(path); !errors.Is(err, ErrIrregular) {
				t.Errorf("%s as a %s is read: %v", name, kind, err)
			}
		}
	}
}

// What only this program's own ways speak against is unknown in another
// program's run: it may be older, or newer. What a digest speaks against is not.
func TestVerifyOfAnotherProgramsRun(t *testing.T) {
	dir := wholeRun(t)
	other := bench.SHA256(strings.Repeat("1", 64))
	for _, program := range []bench.SHA256{other, header.Engine.Sha256, ""} {
		if r, err := VerifyAs(dir, program); err != nil || r.Damage != nil || r.Unknown != nil {
			t.Errorf("%q: %v %+v", program, err, r)
		}
	}
	path := filepath.Join(dir, RecordFile)
	whole := string(file(t, path))
	for _, c := range []struct{ old, new string }{
		{`"class":"success"`, `"class":"failed_valid"`},
		{`"class":"success"`, `"class":"perfect"`},
		{`"facts":`, `"virtues":[],"facts":`},
	} {
		if err := os.WriteFile(path, []byte(strings.Replace(whole, c.old, c.new, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := VerifyAs(dir, other); err != nil || r.Damage != nil || len(r.Unknown) != 1 {
			t.Errorf("%s: %v %+v", c.new, err, r)
		}
		if r := verify(t, dir); len(r.Damage) != 1 || r.Unknown != nil {
			t.Errorf("%s: %+v", c.new, r)
		}
	}
	if err := os.WriteFile(path, []byte(whole), 0o600); err != nil {
		t.Fatal(err)
	}
	add(t, filepath.Join(dir, ManifestFile), " ")
	if r, err := VerifyAs(dir, other); err != nil || len(r.Damage) != 1 || r.Unknown != nil {
		t.Errorf("%v %+v", err, r)
	}
	// Without a record nobody knows which program it was.
	if err := errors.Join(os.Remove(path), os.WriteFile(filepath.Join(dir, ManifestFile), bytes.TrimSpace(file(t, filepath.Join(dir, ManifestFile))), 0o600)); err != nil {
		t.Fatal(err)
	}
	add(t, filepath.Join(dir, LedgerFile), `{"seq":6,"time":"2026-01-02T03:04:05Z","boot":"b","op":"lent","id":0,"kind":"file","claim":{}}`+"\n")
	if r, err := VerifyAs(dir, other); err != nil || len(r.Damage) == 0 {
		t.Errorf("%v %+v", err, r)
	}
}

// An end at any byte is what a crash leaves: never damage, never sound.
func TestVerifyOfACrashAtAnyByte(t *testing.T) {
	dir := wholeRun(t)
	if err := os.Remove(filepath.Join(dir, RecordFile)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{LedgerFile, EventsFile} {
		path := filepath.Join(dir, name)
		whole := file(t, path)
		for at := len(whole) - 1; at >= 0; at -= max(1, len(whole)/60) {
			if err := os.Truncate(path, int64(at)); err != nil {
				t.Fatal(err)
			}
			r := verify(t, dir)
			if r.Damage != nil || len(r.Crash) == 0 {
				t.Fatalf("%s cut at %d: damage %v, crash %v", name, at, r.Damage, r.Crash)
			}
			torn := at > 0 && whole[at-1] != '\n'
			found := false
			for _, p := range r.Crash {
				if p.Kind == Torn && p.File == name {
					found = p.Line == bytes.Count(whole[:at], []byte("\n"))+1
				}
				if p.Remedy() == "" {
					t.Errorf("%v has no remedy", p)
				}
			}
			if found != torn {
				t.Fatalf("%s cut at %d: torn line named %v, want %v: %v", name, at, found, torn, r.Crash)
			}
		}
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A sweep goes on with the ledger after the record was written.
func TestVerifyAfterASweep(t *testing.T) {
	d := create(t)
	id, err := d.Ledger.Intend("directory", bench.Claim{Path: "/left"})
	if err != nil {
		t.Fatal(err)
	}
	sum, err := sumFile(filepath.Join(d.Path, LedgerFile))
	if err != nil {
		t.Fatal(err)
	}
	v := verifier{dir: d.Path, report: Report{Record: &bench.Record{Digests: map[string]bench.SHA256{"ledger": sum}}}}
	if err := errors.Join(v.ledger(), d.Ledger.Gone(id)); err != nil || v.report.Later != 0 || len(v.report.Owned) != 1 || v.report.Damage != nil {
		t.Fatalf("%v %+v", err, v.report)
	}
	v.report = Report{Record: v.report.Record}
	if err := v.ledger(); err != nil || v.report.Later != 1 || v.report.Owned != nil || v.report.Damage != nil {
		t.Errorf("%v %+v", err, v.report)
	}
}

// Each way in which a ledger's line does not follow from those before it.
func TestVerifyOfLedgerLines(t *testing.T) {
	const head = `{"seq":%d,"time":"2026-01-02T03:04:05Z","boot":"%s","op":"%s","id":%d,"kind":"%s","claim":{"path":"/p"}`
	line := func(seq int, boot, op string, id int, kind, identity string) string {
		l := fmt.Sprintf(head, seq, boot, op, id, kind)
		if identity != "" {
			l += `,"identity":{"ino":"` + identity + `"}`
		}
		return l + "}\n"
	}
	intent := line(0, "a", "intent", 0, "file", "")
	for _, c := range []struct {
		name  string
		lines string
		want  string // "line kind: text" of each
	}{
		{"nothing", "", ""},
		{"sound", intent + line(1, "a", "bind", 0, "file", "7") + line(2, "a", "gone", 0, "file", "7"), ""},
		{"gone without a bind", intent + line(1, "a", "gone", 0, "file", ""), ""},
		{"bound again", intent + line(1, "a", "bind", 0, "file", "7") + line(2, "a", "bind", 0, "file", "8") + line(3, "a", "gone", 0, "file", "8"), ""},
		{"swept after a reboot", intent + line(1, "b", "gone", 0, "file", ""), ""},
		{"bind without intent", line(0, "a", "bind", 3, "file", "7"), "1 wrong: bind of 3, of which there is no intent"},
		{"gone without intent", line(0, "a", "gone", 0, "file", ""), "1 wrong: gone of 0, of which there is no intent"},
		{"gone twice", intent + line(1, "a", "gone", 0, "file", "") + line(2, "a", "gone", 0, "file", ""), "3 wrong: gone of 0, which is gone since line 2"},
		{"bind after gone", intent + line(1, "a", "gone", 0, "file", "") + line(2, "a", "bind", 0, "file", "7"), "3 wrong: bind of 0 after it was gone in line 2"},
		{"gone of another", intent + line(1, "a", "bind", 0, "file", "7") + line(2, "a", "gone", 0, "file", "8"), "3 wrong: its identity is not the one that 0 was bound to"},
		{"another kind", intent + line(1, "a", "bind", 0, "mount", "7"), "2 wrong: kind and claim are not those of the intent in line 1"},
		{"number of an intent", line(0, "a", "intent", 5, "file", ""), "1 wrong: an intent is numbered as its line, 0, and not 5"},
		{"intent with identity", line(0, "a", "intent", 0, "file", "7"), "1 wrong: an intent has no identity yet"},
		{"bind without identity", intent + line(1, "a", "bind", 0, "file", ""), "2 wrong: a bind has an identity"},
		{"another boot in between", intent + line(1, "b", "bind", 0, "file", "7") + line(2, "a", "gone", 0, "file", "7"), "2 wrong: it is of another boot than the lines around it"},
		{"the intent is missing", line(1, "a", "bind", 0, "file", "7"), "1 missing: it has number 1; number 0 belongs before it"},
		{"the bind is missing", intent + line(2, "a", "gone", 0, "file", "7"), "2 missing: it has number 2; number 1 belongs before it"},
		{"illegible intent", "{}}\n" + line(1, "a", "bind", 0, "file", "7"), "1 edited: it is no line of a ledger: invalid JSON: invalid character '}' after top-level value"},
		{"a kind that does not exist", line(0, "a", "intent", 0, "house", ""), `1 illegal: kind: have "house", want`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, LedgerFile), []byte(c.lines), 0o600); err != nil {
				t.Fatal(err)
			}
			v := verifier{dir: dir}
			if err := v.ledger(); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range append(v.report.Damage, v.judged...) {
				got = append(got, fmt.Sprintf("%d %s: %s", p.Line, p.Kind, p.Text))
			}
			if have := strings.Join(got, "\n"); !strings.HasPrefix(have, c.want) || c.want == "" && have != "" || len(got) > 1 {
				t.Errorf("have %s, want %s", have, c.want)
			}
		})
	}
}

func TestHoldToRead(t *testing.T) {
	d := create(t)
	if _, err := HoldToRead(d.Path); !errors.Is(err, ErrRunning) {
		t.Errorf("read while an engine works: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	one, err := HoldToRead(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	two, err := HoldToRead(d.Path)
	if err != nil {
		t.Fatal("two cannot read at once:", err)
	}
	if _, err := Hold(d.Path); !errors.Is(err, ErrRunning) {
		t.Errorf("an engine took what is being read: %v", err)
	}
	if err := errors.Join(one(), two()); err != nil {
		t.Error(err)
	}
	empty := t.TempDir()
	release, err := HoldToRead(empty)
	if err != nil || release() != nil {
		t.Error(err)
	}
	if entries, _ := os.ReadDir(empty); len(entries) != 0 {
		t.Error("something was written")
	}
}

// Thousands of lines take seconds, not minutes: nearly all of it is the schema's.
func BenchmarkVerify(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprintf("lines=%d", n), func(b *testing.B) {
			d := create(b)
			for i := range n / 2 {
				r := bench.Receipt{Time: engine.Timestamp(time.Now()), Event: "step", Step: fmt.Sprint("s", i), Kind: "k", Verdict: engine.Pass, Start: "1", End: "2",
					Facts: []bench.Fact{{Name: "a", Known: true, Value: "v", Source: "s", View: engine.ViewHost}, {Name: "b", Reason: "r"}}}
				if i == 0 {
					r = bench.Receipt{Time: r.Time, Event: "run_start"}
				}
				if err := d.Events.Append(r); err != nil {
					b.Fatal(err)
				}
			}
			for range n / 6 {
				id, err := d.Ledger.Intend("cgroup", bench.Claim{Path: "/cg"})
				if err := errors.Join(err, d.Ledger.Bind(id, bench.Identity{Dev: "1", Ino: "2"}), d.Ledger.Gone(id)); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				if r := verify(b, d.Path); r.Events != n/2 || len(r.Damage) != 3 { // three files are missing
					b.Fatalf("%d events, damage %v", r.Events, r.Damage)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(n), "µs/line")
		})
	}
}

// A manifest or a plan of another workload than the chain's.
func TestVerifyOfWorkloads(t *testing.T) {
	dir := wholeRun(t)
	manifest, plan := file(t, filepath.Join(dir, ManifestFile)), file(t, filepath.Join(dir, PlanFile))
	v := verifier{dir: dir, links: []link{{digests: map[string]bench.SHA256{"workload": noDigest}}}}
	if err := v.workload(manifest, plan); err != nil {
		t.Fatal(err)
	}
	if len(v.workloads) != 1 || v.workloads[0].File != ManifestFile || len(v.report.Damage) != 1 || v.report.Damage[0].File != PlanFile {
		t.Errorf("%v %v", v.workloads, v.report.Damage)
	}
	for program, want := range map[bench.SHA256]int{"": 1, "other": 0} {
		c := verifier{workloads: v.workloads}
		c.classify(program)
		if len(c.report.Damage) != want {
			t.Errorf("asked by %q: %v", program, c.report.Damage)
		}
	}
}
