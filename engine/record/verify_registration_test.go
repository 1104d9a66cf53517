package record_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/record/recordtest"
	"github.com/drumsbench/drumsbench/engine/register"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// The registration that a run belongs to can be neither changed, nor taken away,
// nor put there afterwards.
func TestRegistrationOfARun(t *testing.T) {
	o := recordtest.Run{Bars: []bench.Bar{{Name: "b", Metric: "usable", Of: bench.BarSide{Arm: "fake", Reset: "restore"}, P50: &bench.Bound{Max: "1h"}, N: 1}}}
	r, err := register.New(o.Plans(), recordtest.Engine, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name       string
		registered bool
		change     func(file string) error
		kind       record.ProblemKind
	}{
		{"as it was", true, func(string) error { return nil }, ""},
		{"none", false, func(string) error { return nil }, ""},
		{"a bar is another", true, func(file string) error {
			return os.WriteFile(file, []byte(strings.Replace(string(r.JSON), `"1h"`, `"2h"`, 1)), 0o600)
		}, record.Edited},
		{"taken away", true, os.Remove, record.Missing},
		{"put there later", false, func(file string) error { return os.WriteFile(file, r.JSON, 0o600) }, record.Added},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			one := o
			if c.registered {
				one.Registration = r.JSON
			}
			made := one.Make(t, dir)
			if c.registered != (made.Registration == r.Digest) || c.registered != (made.Digests["registration"] == r.Digest) {
				t.Errorf("the record names %q", made.Registration)
			}
			if err := c.change(filepath.Join(dir, record.RegistrationFile)); err != nil {
				t.Fatal(err)
			}
			report, err := record.Verify(dir)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case c.kind == "" && len(report.Damage) == 0:
			case c.kind == "" || len(report.Damage) != 1 || report.Damage[0].Kind != c.kind || report.Damage[0].File != record.RegistrationFile:
				t.Errorf("%v", report.Damage)
			}
		})
	}
}
