package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compare"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/register"
	site "github.com/drumsbench/drumsbench/engine/report"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// judgedRuns are the states of an experiment's runs, as long as everything that
// they were judged from has the identity that Key is the digest of.
type judgedRuns struct {
	Key    bench.SHA256
	States map[string]string
}

// judging computes the states of runs that belong to registered experiments.
type judging struct {
	index   *runIndex
	known   register.Known
	program bench.SHA256
	// first registration by that of a run or an amendment.
	first map[bench.SHA256]bench.SHA256
	// runs are the directories of each experiment: those listed, and those that this host knows to have been started.
	runs map[bench.SHA256][]string
}

// newJudging knows the registrations of the state directory, and what all of the listed runs name.
func newJudging(g *globals, index *runIndex, all []listedRun) (*judging, error) {
	j := &judging{index: index, first: map[bench.SHA256]bench.SHA256{}, runs: map[bench.SHA256][]string{}}
	var err error
	if j.known, err = knownRegistrations(g); err != nil {
		return nil, err
	}
	version, err := engineVersion()
	if err != nil {
		return nil, err
	}
	j.program = version.Sha256
	for _, r := range j.known.Registrations {
		for _, h := range r.History() {
			j.first[h.Digest] = r.First()
		}
	}
	for _, r := range all {
		if r.Registration != "" {
			j.add(r.Registration, r.Path)
		}
	}
	for registration, starts := range j.known.Starts {
		for _, s := range starts {
			if filepath.IsAbs(s.Run) && record.IsRun(s.Run) {
				j.add(registration, s.Run)
			}
		}
	}
	return j, nil
}

// add a directory to the experiment whose registration it names.
func (j *judging) add(registration bench.SHA256, dir string) {
	first := j.firstOf(registration, dir)
	if !slices.Contains(j.runs[first], dir) {
		j.runs[first] = append(j.runs[first], dir)
	}
}

// firstOf a registration that this host may not know but from a run's own copy.
func (j *judging) firstOf(registration bench.SHA256, dir string) bench.SHA256 {
	if first, known := j.first[registration]; known {
		return first
	}
	first := registration
	if r, err := register.Read(filepath.Join(dir, record.RegistrationFile)); err == nil && r.Digest == registration {
		first = r.First()
	}
	j.first[registration] = first
	return first
}

// planned are the experiments that are registered and of which no run was ever started.
func (j *judging) planned() (list []listedRun) {
	var open []register.Registered
	for _, r := range j.known.Registrations {
		if len(j.runs[r.First()]) == 0 {
			open = append(open, r)
		}
	}
	for _, e := range register.Judge(nil, nil, j.known, open, compare.Options{Program: j.program, Compile: compiledPlan}).Experiments {
		i := slices.IndexFunc(open, func(r register.Registered) bool { return r.First() == e.Registration })
		if e.State != register.Planned || i < 0 {
			continue // it was started, and what was is not here
		}
		m := open[i].Manifest
		line := listedRun{Run: string(m.Name), Manifest: string(m.Name), Arm: strings.Join(open[i].Method.Arms, ","), Reset: strings.Join(m.Experiment.Reset, ","),
			State: string(site.Planned), Started: e.Judgements[0].Registered, Registration: e.Registration, Reason: "it is registered and was not run"}
		line.Path = "registration " + string(e.Registration)
		list = append(list, line)
	}
	return list
}

// states puts those of registered runs into the list.
func (j *judging) states(ctx context.Context, list []listedRun) error {
	for i := range list {
		r := &list[i]
		if r.Registration == "" || r.State == string(site.Planned) || r.State == stateRunning {
			continue
		}
		states, err := j.experiment(ctx, j.firstOf(r.Registration, r.Path))
		if err != nil {
			return err
		}
		if state, known := states[r.Path]; known {
			r.State = state
		}
	}
	return nil
}

// experiment judges all runs of an experiment, or remembers how they were judged.
func (j *judging) experiment(ctx context.Context, first bench.SHA256) (map[string]string, error) {
	key := j.key(first)
	if was, had := j.index.judged[first]; had && was.Key == key {
		return was.States, nil
	}
	var in site.Input
	for _, dir := range j.runs[first] {
		if err := ctx.Err(); err != nil {
			return nil, &engine.Error{Op: "judge runs", Err: err}
		}
		r, none, err := site.Load(dir, j.program)
		switch {
		case err != nil:
			return nil, err
		case none != nil:
			in.None = append(in.None, *none)
		default:
			in.Runs = append(in.Runs, r)
		}
	}
	in.Judge(j.known, nil, compare.Options{Program: j.program, Compile: compiledPlan})
	now := judgedRuns{Key: key, States: map[string]string{}}
	for _, r := range in.Runs {
		now.States[r.Dir] = string(r.State())
	}
	j.index.judged[first], j.index.changed = now, true
	return now.States, nil
}

// key is the digest of everything that decides the states: the program, the
// registrations and starts, and the identity of each file of each run that a
// judgement reads. A file that is written gets another identity.
func (j *judging) key(first bench.SHA256) bench.SHA256 {
	h := sha256.New()
	fmt.Fprintln(h, j.program)
	var digests []bench.SHA256
	for digest, of := range j.first {
		if of == first {
			digests = append(digests, digest)
		}
	}
	slices.Sort(digests)
	for _, d := range digests {
		fmt.Fprintf(h, "%s %+v\n", d, j.known.Starts[d])
	}
	for _, dir := range slices.Sorted(slices.Values(j.runs[first])) {
		fmt.Fprintf(h, "%q\n", dir)
		for _, name := range judgedFiles {
			info, err := os.Lstat(filepath.Join(dir, name))
			if err != nil {
				fmt.Fprintln(h, name, "none")
				continue
			}
			fmt.Fprintf(h, "%s %+v\n", name, identityOf(info))
		}
	}
	return bench.SHA256(fmt.Sprintf("%x", h.Sum(nil)))
}

// judgedFiles of a run decide its state, and the folder of its evidence: a file
// that comes or goes there changes it.
var judgedFiles = []string{record.RecordFile, record.EventsFile, record.LedgerFile, record.ManifestFile, record.PlanFile, record.HostFile, record.RegistrationFile, record.ReviewsFile, record.EvidenceFolder}

// forget what was judged of experiments that are not there any more.
func (j *judging) forget() {
	maps.DeleteFunc(j.index.judged, func(first bench.SHA256, _ judgedRuns) bool { return len(j.runs[first]) == 0 })
}
