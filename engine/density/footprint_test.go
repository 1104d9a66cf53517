package density

import (
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// What is stored is of rollouts that count, of runs that passed.
func TestStorage(t *testing.T) {
	r := bench.Record{Verdict: engine.RunPassed, Facts: []bench.Fact{
		{Name: "mount/storage.image", Known: true, Value: "1048576"}, {Name: "base/dump/storage.checkpoint", Known: true, Value: "2097152"}, {Name: "other/storage.image", Reason: "gone"},
	}}
	r.Rollouts = append(r.Rollouts, []bench.Rollout{
		{Control: "none", Class: record.Success, Stored: "99999999"}, {Warmup: true, Class: record.Success, Stored: "99999999"}, {Class: record.Invalid, Stored: "99999999"},
		{Class: record.Success, Stored: "1024"}, {Class: record.FailedValid, Stored: "3072"}, {Class: record.Success, Stored: "2048"}, {Class: record.Success},
	}...)
	failed := r
	failed.Verdict = engine.RunFailed
	if StorageOf(failed) != nil {
		t.Error("a run that failed gives numbers")
	}
	s := StorageOf(failed, r)
	if s == nil || s.Image != "1048576" || s.Checkpoint != "2097152" || s.N != 3 || *s.Slot != 2048 || s.Largest != "3072" {
		t.Fatalf("%+v", s)
	}
	rows := storageRows(s)
	if rows[0].Value != "1.00" || rows[1].Value != "2.00" || rows[2].N != "3" || rows[2].Value == "" {
		t.Errorf("%+v", rows)
	}
	for _, r := range storageRows(nil) {
		if r.Value != "" || r.Note == "" {
			t.Errorf("a number of nothing: %+v", r)
		}
	}
}

// What is not known of a run's needs is said to be, and no privilege that is lacking is called held.
func TestNeedsRows(t *testing.T) {
	text := func(f *bench.Footprint) (all string) {
		for _, r := range NeedsRows(f, nil) {
			all += r.What + " " + r.Text + "\n"
		}
		return all
	}
	if s := text(nil); !strings.Contains(s, "programs unknown") || !strings.Contains(s, "disk unknown") {
		t.Error(s)
	}
	s := text(&bench.Footprint{Programs: []bench.FootprintProgram{{Path: "/a", Bytes: "1048576", Package: "p"}, {Path: "/b", Bytes: "1048576", Copied: []string{"x=1", "y=2"}}},
		Packages: []string{"p=1"}, Installed: "2097152", Privileges: []bench.Privilege{{Name: "CAP_KILL", Why: "nothing ends"}}, Unknown: map[string]string{"z": "no file"}})
	for _, want := range []string{"/a: 1.00 MiB, p", "/b: 1.00 MiB, private copy of 2 packages", "programs 2, 2.00 MiB", "1 with all that they depend on, 2.00 MiB installed", "CAP_KILL, NOT held", "unknown z: no file"} {
		if !strings.Contains(s, want) {
			t.Errorf("no %q in\n%s", want, s)
		}
	}
}
