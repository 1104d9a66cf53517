// Package register lays an experiment down before it runs, and judges its bars
// afterwards. It exists so that what counts as success is not chosen after the
// numbers are known.
//
// Always holds: a registration is a file whose SHA-256 is its digest, and each of
// its parts has a digest in it that is counted again whenever it is read; a run
// belongs to the registration whose digest its first receipt names, and to no
// other; an amendment holds what it amends, whole, so that no verdict is ever
// shown without those before it; nothing passes whose interval does not.
package register

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compare"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Registered is a registration that was read, or made.
type Registered struct {
	bench.Registration
	// JSON is the file, byte for byte; Digest is its SHA-256.
	JSON   []byte
	Digest bench.SHA256
}

// First is the registration that this one amends in the end, itself if it amends none.
func (r Registered) First() bench.SHA256 {
	digest := r.Digest
	for one := &r.Registration; one.Amended != nil; one = one.Amended {
		digest = one.Amends
	}
	return digest
}

// History is the registration after those that it amends, the first one first.
func (r Registered) History() (list []Registered) {
	for one, digest := &r.Registration, r.Digest; one != nil; digest, one = one.Amends, one.Amended {
		list = append(list, Registered{Registration: *one, Digest: digest})
	}
	slices.Reverse(list)
	return list
}

// New registers a manifest, to be run by program. ErrUsage for one without bars,
// or with a bar of a metric that there is not or that counts something else: such
// an experiment would be met by anything, or never.
func New(m bench.Manifest, program bench.EngineVersion, now time.Time) (Registered, error) {
	if err := checkBars(m.Experiment.Bars); err != nil {
		return Registered{}, err
	}
	return finish(bench.Registration{Manifest: m, Engine: program, Method: methodOf(m)}, now)
}

// Amend registers other bars for an experiment that is registered already, run or
// not. ErrRefused where anything but the bars differs, or nothing does. The
// program that has to run it stays the first one's.
func Amend(r Registered, m bench.Manifest, now time.Time) (Registered, error) {
	refuse := func(text, hint string) (Registered, error) {
		return Registered{}, &engine.Error{Op: "amend registration", Err: fmt.Errorf("%w: %s", engine.ErrRefused, text), Hint: hint}
	}
	if err := checkBars(m.Experiment.Bars); err != nil {
		return Registered{}, err
	}
	if other, err := differences(withoutBars(r.Manifest), withoutBars(m)); err != nil || len(other) > 0 {
		if err != nil {
			return Registered{}, err
		}
		return refuse(strings.Join(other, "; "), "an amendment changes bars only: register the manifest as an experiment of its own")
	}
	if same, err := differences(r.Manifest, m); err != nil || len(same) == 0 {
		if err != nil {
			return Registered{}, err
		}
		return refuse("no bar differs", "change a bar of the manifest first")
	}
	if at, err := time.Parse(time.RFC3339Nano, string(r.Time)); err != nil || !now.After(at) {
		return refuse("what it amends is of "+string(r.Time)+", which is not before now", "set the host's clock")
	}
	amended := r.Registration
	return finish(bench.Registration{Manifest: m, Engine: r.Engine, Method: methodOf(m), Amends: r.Digest, Amended: &amended}, now)
}

func finish(r bench.Registration, now time.Time) (Registered, error) {
	r.ApiVersion, r.Time = engine.APIVersion, bench.Time(now.UTC().Format(time.RFC3339Nano))
	var err error
	if r.Digests, err = digests(r); err != nil {
		return Registered{}, &engine.Error{Op: "register manifest", Err: err}
	}
	data, err := canonical.JSON(r)
	if err != nil {
		return Registered{}, &engine.Error{Op: "register manifest", Err: err}
	}
	return Parse(data) // what was written is what will be read
}

// digests of a registration's parts.
func digests(r bench.Registration) (map[string]bench.SHA256, error) {
	out := map[string]bench.SHA256{}
	var errs []error
	for name, v := range map[string]any{"manifest": r.Manifest, "frozen": withoutBars(r.Manifest), "bars": r.Manifest.Experiment.Bars, "method": r.Method} {
		digest, err := canonical.Digest(v)
		out[name] = digest
		errs = append(errs, err)
	}
	workload, err := compile.Workload(r.Manifest)
	out["workload"] = workload
	return out, errors.Join(append(errs, err)...)
}

func withoutBars(m bench.Manifest) bench.Manifest {
	m.Experiment.Bars = nil
	return m
}

func methodOf(m bench.Manifest) bench.RegisteredMethod {
	e := m.Experiment
	return bench.RegisteredMethod{Arms: armsOf(m), Reset: e.Reset, Order: e.Order, Blocks: e.Blocks, Rollouts: e.Rollouts, Warmup: e.Warmup,
		Seed: e.Seed, Slots: e.Slots, Pool: e.Pool, Statistics: compare.Method, Judging: Rule}
}

// armsOf are the arms that a manifest has, sorted.
func armsOf(m bench.Manifest) []string {
	arms := []string{}
	var set map[string]json.RawMessage
	data, err := json.Marshal(m.Arms)
	if err == nil {
		err = json.Unmarshal(data, &set)
	}
	if err != nil {
		panic(err) // a struct of plain fields
	}
	for name := range set {
		arms = append(arms, name)
	}
	slices.Sort(arms)
	return arms
}

// checkBars says what the manifest's own rules cannot: what metrics there are.
func checkBars(bars []bench.Bar) error {
	wrong := func(format string, args ...any) error {
		return &engine.Error{Op: "register manifest", Err: fmt.Errorf("%w: "+format, append([]any{engine.ErrUsage}, args...)...), Hint: "set experiment.bars; docs/experiments.md has an example"}
	}
	if len(bars) == 0 {
		return wrong("it has no bars, which any run would meet")
	}
	for i, b := range bars {
		unit, known := unitOf(b.Metric)
		if !known {
			return wrong("experiment.bars[%d].metric: no metric %q; there are %s", i, b.Metric, strings.Join(append(compare.MetricNames(), manyNames()...), ", "))
		}
		if many(b.Metric) && (b.Over != nil || b.P95 != nil) {
			return wrong("experiment.bars[%d]: %s is one number of an arm and reset: it has neither over nor p95", i, b.Metric)
		}
		want := map[string]string{"ns": "ns", "bytes": "bytes"}[unit] // a share is a plain number, and so is a ratio
		if b.Over != nil {
			want = ""
		}
		for _, bound := range []*bench.Bound{b.P50, b.P95} {
			if bound == nil {
				continue
			}
			for _, a := range []bench.Amount{bound.Min, bound.Max} {
				if a == "" {
					continue
				}
				_, have, err := compile.Amount(a)
				if err != nil {
					return wrong("experiment.bars[%d]: %v", i, err)
				}
				if have != want {
					return wrong("experiment.bars[%d]: %s is no %s", i, a, map[string]string{"ns": `time, as "250ms" is one`, "bytes": `size, as "64MiB" is one`, "": `plain number, as "0.5" is one`}[want])
				}
			}
		}
	}
	return nil
}

// Read reads a registration from a file, and counts its digests again.
func Read(file string) (Registered, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return Registered{}, &engine.Error{Op: "read registration", Err: fmt.Errorf("%w: %s: no such file", engine.ErrUsage, file)}
	}
	if err != nil {
		return Registered{}, &engine.Error{Op: "read registration", Err: err}
	}
	r, err := Parse(data)
	if err != nil {
		return r, &engine.Error{Op: "read registration", Err: fmt.Errorf("%s: %w", file, err), Hint: "put it back from a copy: a run that belongs to it has one, registration.json"}
	}
	return r, nil
}

// Parse reads a registration. ErrRefused where it is not as it was made.
func Parse(data []byte) (Registered, error) {
	r := Registered{JSON: slices.Clone(data), Digest: canonical.Sum(data)}
	if err := compile.Validate("Registration", data); err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r.Registration); err != nil {
		return r, err
	}
	if again, err := canonical.JSON(r.Registration); err != nil || string(again) != string(data) {
		return r, fmt.Errorf("%w: its bytes are not as drumsbench writes them", engine.ErrRefused)
	}
	for one := &r.Registration; one != nil; one = one.Amended {
		if err := intact(*one); err != nil {
			return r, err
		}
	}
	return r, nil
}

// intact: the parts have the digests that it names.
func intact(r bench.Registration) error {
	again, err := digests(r)
	if err != nil {
		return err
	}
	for _, name := range []string{"manifest", "frozen", "bars", "method", "workload"} {
		if r.Digests[name] != again[name] {
			return fmt.Errorf("%w: its %s has the digest %.12s, it names %.12s", engine.ErrRefused, name, again[name], r.Digests[name])
		}
	}
	if (r.Amended == nil) != (r.Amends == "") {
		return fmt.Errorf("%w: it does not hold what it amends", engine.ErrRefused)
	}
	if r.Amended == nil {
		return nil
	}
	have, err := canonical.Digest(*r.Amended)
	switch {
	case err != nil:
		return err
	case have != r.Amends:
		return fmt.Errorf("%w: what it amends has the digest %.12s, it names %.12s", engine.ErrRefused, have, r.Amends)
	case r.Amended.Digests["frozen"] != r.Digests["frozen"] || r.Amended.Engine != r.Engine:
		return fmt.Errorf("%w: it changes more than bars", engine.ErrRefused)
	case !earlier(r.Amended.Time, r.Time):
		return fmt.Errorf("%w: it is not of later than what it amends", engine.ErrRefused)
	}
	return nil
}

// Before says that a is known to be before b.
func Before(a, b bench.Time) bool { return earlier(a, b) }

func earlier(a, b bench.Time) bool {
	x, err := time.Parse(time.RFC3339Nano, string(a))
	y, err2 := time.Parse(time.RFC3339Nano, string(b))
	return err == nil && err2 == nil && x.Before(y)
}

// Admit refuses a run that is not of the experiment as it is registered: another
// manifest, by each path that differs, or another program.
func (r Registered) Admit(m bench.Manifest, program bench.EngineVersion) error {
	refuse := func(text, hint string) error {
		return &engine.Error{Op: "run registered experiment", Err: fmt.Errorf("%w: registration %.12s: %s", engine.ErrRefused, r.Digest, text), Hint: hint}
	}
	other, err := differences(r.Manifest, m)
	if err != nil {
		return err
	}
	if len(other) > 0 {
		return refuse(strings.Join(other, "; "), "run the manifest as it was registered, with the same tags; drumsbench register --amend changes bars")
	}
	if r.Engine != program {
		return refuse(fmt.Sprintf("this program is %s (sha256 %.12s), registered is %s (sha256 %.12s)", program.Version, program.Sha256, r.Engine.Version, r.Engine.Sha256),
			"run it with that program, or register it for this one")
	}
	if r.Method.Statistics != compare.Method || r.Method.Judging != Rule {
		return refuse("this program counts or judges otherwise than registered", "register it for this program")
	}
	return nil
}

// mostDifferences that are told.
const mostDifferences = 8

// differences between a registered manifest and another, by path.
func differences(registered, m bench.Manifest) (list []string, err error) {
	var a, b any
	for _, v := range []struct {
		m    bench.Manifest
		into *any
	}{{registered, &a}, {m, &b}} {
		data, err := canonical.JSON(v.m)
		if err == nil {
			err = json.Unmarshal(data, v.into)
		}
		if err != nil {
			return nil, &engine.Error{Op: "compare manifests", Err: err}
		}
	}
	more := 0
	canonical.EachDifference("", a, b, func(path, want, have string) {
		if len(list) == mostDifferences {
			more++
			return
		}
		list = append(list, fmt.Sprintf("%s is %s, registered is %s", path, have, want))
	})
	if more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return list, nil
}
