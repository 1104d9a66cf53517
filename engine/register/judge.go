package register

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compare"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// States of an experiment.
const (
	Verified    = "verified"
	Preliminary = "preliminary"
	Failed      = "failed"
	Planned     = "planned"
)

// Run is a run with the registration that its chain names.
type Run struct {
	compare.Run
	Registered Registered
	// Unsound says that the check of its directory found something.
	Unsound bool
}

// Of reads the registration that a run's directory has, if the run belongs to one.
func Of(dir string, r bench.Record) (reg Registered, belongs bool, err error) {
	if r.Registration == "" {
		return reg, false, nil
	}
	file := filepath.Join(dir, record.RegistrationFile)
	data, err := record.ReadRegular(file)
	if err != nil {
		return reg, true, &engine.Error{Op: "read registration of run", Err: err}
	}
	if canonical.Sum(data) != r.Registration {
		return reg, true, &engine.Error{Op: "read registration of run", Err: fmt.Errorf("%w: %s is not the one that the record names", engine.ErrRefused, file)}
	}
	if reg, err = Parse(data); err != nil {
		return reg, true, &engine.Error{Op: "read registration of run", Err: fmt.Errorf("%s: %w", file, err)}
	}
	return reg, true, nil
}

// experiment is a first registration with everything that belongs to it.
type experiment struct {
	first   bench.SHA256
	members []Registered // in the order of their time
	runs    []Run
	lost    []Lost
}

// Judge gives each experiment of the runs, and each that only a registration in
// known names and that planned has, with every verdict there is: of the first
// registration and of each amendment, those that a run names and those in known.
// An experiment without a run is planned. Lost are runs that have no record:
// whatever became of them, they were begun.
//
// The state is the worst that any of them says: a bar that was missed once stays
// missed, and an amendment that would be met does not make up for a first
// registration that was not.
//
//	failed        a run's directory is not sound, a run failed or was blocked, or a bar of any registration failed
//	verified      every registered run is there once, was in its turn, and passed, after it was registered;
//	              no other is known to have been started; every bar of every registration passed
//	preliminary   everything else
func Judge(runs []Run, lost []Lost, known Known, planned []Registered, o compare.Options) bench.Judgements {
	out := bench.Judgements{ApiVersion: engine.APIVersion, Method: Rule + "; " + compare.Method, Experiments: []bench.JudgedExperiment{}}
	var list []*experiment
	find := func(r Registered, add bool) *experiment {
		first := r.First()
		for _, e := range list {
			if e.first == first {
				return e
			}
		}
		if !add {
			return nil
		}
		list = append(list, &experiment{first: first})
		return list[len(list)-1]
	}
	for _, r := range runs {
		e := find(r.Registered, true)
		e.take(r.Registered)
		if !slices.ContainsFunc(e.runs, func(other Run) bool { return other.Record.Digests["events"] == r.Record.Digests["events"] }) {
			e.runs = append(e.runs, r) // a copy of a run counts once
		}
	}
	for _, l := range lost {
		if l.Registered != nil {
			find(*l.Registered, true).take(*l.Registered)
		}
	}
	for _, r := range planned {
		find(r, true).take(r)
	}
	for _, r := range known.Registrations {
		if e := find(r, false); e != nil {
			e.take(r)
		}
	}
	for _, l := range lost {
		for _, e := range list {
			if e.has(l.Registration) {
				e.lost = append(e.lost, l)
			}
		}
	}
	for _, e := range list {
		out.Experiments = append(out.Experiments, e.judge(known, o))
	}
	return out
}

// take adds a registration with those that it amends.
func (e *experiment) take(r Registered) {
	for _, one := range r.History() {
		if !slices.ContainsFunc(e.members, func(m Registered) bool { return m.Digest == one.Digest }) {
			e.members = append(e.members, one)
		}
	}
	slices.SortStableFunc(e.members, func(a, b Registered) int {
		if earlier(a.Time, b.Time) {
			return -1
		}
		if earlier(b.Time, a.Time) {
			return 1
		}
		return cmp.Compare(a.Digest, b.Digest)
	})
}

func (e *experiment) has(registration bench.SHA256) bool {
	return slices.ContainsFunc(e.members, func(m Registered) bool { return m.Digest == registration })
}

// missing names the starts of which there is no run, and whether this host knows
// the start of each run that there is.
func (e *experiment) missing(known Known) (texts []string, all bool) {
	type key struct {
		registration bench.SHA256
		time         bench.Time
	}
	there := map[key]bool{}
	for _, r := range e.runs {
		there[key{r.Registered.Digest, r.Record.Started}] = true
	}
	for _, l := range e.lost {
		there[key{l.Registration, l.Started}] = true
	}
	count := len(there)
	for _, m := range e.members {
		for _, s := range known.Starts[m.Digest] {
			k := key{s.Registration, s.Time}
			switch {
			case s.torn != "":
				texts = append(texts, s.torn)
			case !there[k]:
				texts = append(texts, fmt.Sprintf("run %s was started under this registration at %s and is not among these", s.Run, s.Time))
			default:
				delete(there, k) // written down twice is started twice
				count--
			}
		}
	}
	return texts, count == 0
}

// judge is one registration's view of the runs.
type judge struct {
	reg  Registered
	runs []Run
	// compared has each comparison of these runs, by what was compared.
	compared map[string]comparison
	options  compare.Options
}

type comparison struct {
	all bench.Comparisons
	err error
}

// compare the runs, once: what a comparison counts takes a while, and each bar of
// each registration asks for the same.
func (j *judge) compare(runs []compare.Run) (bench.Comparisons, error) {
	key := ""
	for _, r := range runs {
		key += string(r.Record.Digests["events"]) + " "
	}
	c, done := j.compared[key]
	if !done {
		c.all, c.err = compare.Compare(runs, j.options)
		j.compared[key] = c
	}
	return c.all, c.err
}

func (e *experiment) judge(known Known, o compare.Options) bench.JudgedExperiment {
	first := e.members[0]
	out := bench.JudgedExperiment{Manifest: first.Manifest.Name, Registration: e.first, Reasons: []string{}, Runs: []bench.JudgedRun{}, Judgements: []bench.Judgement{}}
	failed := false
	because := func(fail bool, format string, args ...any) {
		failed = failed || fail
		if text := fmt.Sprintf(format, args...); !slices.Contains(out.Reasons, text) {
			out.Reasons = append(out.Reasons, text)
		}
	}
	slices.SortStableFunc(e.runs, func(a, b Run) int {
		return cmp.Or(cmp.Compare(a.Record.Started, b.Record.Started), cmp.Compare(a.Record.Run, b.Record.Run))
	})
	for _, r := range e.runs {
		out.Runs = append(out.Runs, bench.JudgedRun{Run: r.Record.Run, Arm: r.Record.Arm, Reset: bench.Reset(r.Record.Reset), Verdict: r.Record.Verdict,
			Started: r.Record.Started, Registration: r.Registered.Digest, Events: r.Record.Digests["events"]})
		switch v := r.Record.Verdict; {
		case r.Unsound:
			because(true, "run %s: its directory is not sound", r.Record.Run)
		case v == engine.RunReview:
			because(false, "run %s waits for a review", r.Record.Run)
		case v == engine.RunBlocked:
			because(true, "run %s was blocked: %s", r.Record.Run, cmp.Or(r.Record.Reason, "something could not be learnt"))
		case v != engine.RunPassed:
			because(true, "run %s failed: %s", r.Record.Run, cmp.Or(r.Record.Reason, "its record does not say why"))
		}
		if text := stray(r); text != "" {
			because(false, "run %s: %s", r.Record.Run, text)
		}
	}
	// doubt is why no bar can pass: the runs are not all that there were, or not as they had to be.
	doubt := ""
	doubted := func(format string, args ...any) {
		doubt = cmp.Or(doubt, fmt.Sprintf(format, args...))
		because(false, format, args...)
	}
	for _, r := range e.runs {
		if text := misplaced(r); text != "" {
			doubted("run %s: %s", r.Record.Run, text)
		}
	}
	for _, l := range e.lost {
		doubted("run %s has no record that can be judged: %s", l.Dir, l.Why)
	}
	texts, all := e.missing(known)
	for _, text := range texts {
		doubted("%s", text)
	}
	if !all {
		out.Notes = append(out.Notes, "this host does not know every start of these runs: whether others were started elsewhere is not known here")
	}
	begun := len(e.runs)+len(e.lost)+len(texts) > 0
	compared := map[string]comparison{}
	for i, m := range e.members {
		j := judge{reg: m, runs: e.runs, compared: compared, options: o}
		judgement := bench.Judgement{Registration: m.Digest, Registered: m.Time, Amends: m.Amends, Verdict: Pass, Bars: []bench.BarResult{}}
		for _, b := range m.Manifest.Experiment.Bars {
			one := j.bar(b)
			if one.Verdict == Pass && doubt != "" {
				one.Verdict, one.Reason = Unknown, doubt
			}
			if rank(one.Verdict) > rank(judgement.Verdict) {
				judgement.Verdict = one.Verdict
			}
			judgement.Bars = append(judgement.Bars, one)
			if one.Verdict != Pass && begun {
				whose := ""
				if i > 0 {
					whose = fmt.Sprintf(" of amendment %d", i)
				}
				because(one.Verdict == Fail, "bar %s%s: %s: %s", b.Name, whose, one.Verdict, one.Reason)
			}
		}
		if len(judgement.Bars) == 0 {
			judgement.Verdict = Unknown
			because(false, "registration %.12s has no bars", m.Digest)
		}
		out.Judgements = append(out.Judgements, judgement)
	}
	if begun {
		for _, s := range sides(first.Manifest) {
			if text, _, _ := first.counted(e.runs, s); text != "" {
				because(false, "%s", text)
			}
		}
		if text := first.lacking(e.runs); text != "" {
			because(false, "%s", text)
		}
	}
	switch {
	case !begun:
		out.State = Planned
	case failed:
		out.State = Failed
	case len(out.Reasons) == 0:
		out.State = Verified
	default:
		out.State = Preliminary
	}
	return out
}

// stray says how a run is not what its registration lays down; empty where it is.
// drumsbench run admits no such run: it was made by another program, or by hand.
func stray(r Run) string {
	switch {
	case r.Record.Digests["manifest"] != r.Registered.Digests["manifest"]:
		return "its manifest is not the registered one"
	case r.Record.Engine != r.Registered.Engine:
		return fmt.Sprintf("its program is %s (sha256 %.12s), registered is %s (sha256 %.12s)", r.Record.Engine.Version, r.Record.Engine.Sha256, r.Registered.Engine.Version, r.Registered.Engine.Sha256)
	case !earlier(r.Registered.Time, r.Record.Started):
		return fmt.Sprintf("it was started at %s, registered was it at %s", r.Record.Started, r.Registered.Time)
	}
	return ""
}

// sides of an experiment: each arm with each reset.
func sides(m bench.Manifest) (list []bench.BarSide) {
	for _, arm := range armsOf(m) {
		for _, reset := range m.Experiment.Reset {
			list = append(list, bench.BarSide{Arm: bench.Name(arm), Reset: bench.Reset(reset)})
		}
	}
	return list
}

func (r Registered) of(runs []Run, s bench.BarSide) (list []Run) {
	for _, one := range runs {
		// What is a part of its own, or does not say, is no ordinary run.
		if part, err := record.PartOf(one.Record); err != nil || part != nil {
			continue
		}
		if one.Record.Arm == string(s.Arm) && one.Record.Reset == string(s.Reset) {
			list = append(list, one)
		}
	}
	return list
}

// counted says why a side does not have as many runs as are registered. Fewer may
// come yet; more would let somebody go on until the numbers please.
func (r Registered) counted(runs []Run, s bench.BarSide) (text string, few *bench.TooFew, more bool) {
	have, want := len(r.of(runs, s)), int(r.Method.Blocks)
	switch {
	case have < want:
		return fmt.Sprintf("%s %s: %d of %d registered runs", s.Arm, s.Reset, have, want), &bench.TooFew{Have: int64(have), Need: int64(want)}, false
	case have > want:
		return fmt.Sprintf("%s %s: %d runs, registered are %d; register it anew to run it again", s.Arm, s.Reset, have, want), nil, true
	}
	return "", nil, false
}

// lacking counts the levels and windows that are registered and have no run.
func (r Registered) lacking(runs []Run) string {
	there := map[string]bool{}
	for _, one := range runs {
		for _, f := range one.Record.Facts {
			if f.Name == "experiment.position" && f.Known {
				there[f.Value] = true
			}
		}
	}
	have, want := 0, 0
	for _, t := range Schedule(ArmsInTurn(r.Manifest), r.Manifest.Experiment.Reset, r.Manifest.Experiment) {
		if t.Part == nil {
			continue
		}
		want++
		if there[strconv.Itoa(t.Position)] {
			have++
		}
	}
	if have == want {
		return ""
	}
	return fmt.Sprintf("%d of %d registered levels and windows", have, want)
}

// side collects the runs of a bar's side.
func (j *judge) side(s bench.BarSide) sideRuns {
	if j.reg.Method.Statistics != compare.Method || j.reg.Method.Judging != Rule {
		return sideRuns{verdict: Unknown, reason: "this program counts or judges otherwise than registered"}
	}
	runs := j.reg.of(j.runs, s)
	var out sideRuns
	for _, r := range runs {
		why := ""
		switch {
		case r.Unsound:
			why = "its directory is not sound"
		case r.Record.Verdict != engine.RunPassed:
			why = "it did not pass: " + string(r.Record.Verdict)
		default:
			why = stray(r)
		}
		if why != "" {
			return sideRuns{verdict: Unknown, reason: fmt.Sprintf("run %s yields no number: %s", r.Record.Run, why)}
		}
		out.runs = append(out.runs, r.Run)
	}
	if text, few, more := j.reg.counted(j.runs, s); text != "" {
		if more {
			return sideRuns{verdict: Unknown, reason: text}
		}
		return sideRuns{verdict: NotEnough, reason: text, few: few}
	}
	if len(out.runs) < 2 {
		return out
	}
	all, err := j.compare(out.runs)
	switch {
	case err != nil:
		return sideRuns{verdict: Unknown, reason: err.Error()}
	case len(all.Comparisons) != 1 || all.Comparisons[0].Kind != compare.Repeat:
		return sideRuns{verdict: Unknown, reason: fmt.Sprintf("the runs of %s %s are not of one kind", s.Arm, s.Reset)}
	case all.Comparisons[0].Verdict != compare.Allowed:
		return sideRuns{verdict: Unknown, reason: fmt.Sprintf("the runs of %s %s may not be taken together: %s", s.Arm, s.Reset, refusal(all.Comparisons[0]))}
	}
	return out
}

func refusal(c bench.Comparison) string {
	if len(c.Refusals) == 0 {
		return "the comparison was refused"
	}
	text := c.Refusals[0].Text
	if more := len(c.Refusals) - 1; more > 0 {
		text += fmt.Sprintf(", and %d more reasons", more)
	}
	return text
}

// ratio of the medians, b's over a's, of an allowed comparison.
func (j *judge) ratio(a, b []compare.Run, metric string) (e bench.Estimate, refused string, err error) {
	all, err := j.compare(slices.Concat(a, b))
	if err != nil {
		return e, "", err
	}
	if len(all.Comparisons) != 1 || all.Comparisons[0].Verdict != compare.Allowed {
		if len(all.Comparisons) == 1 {
			return e, refusal(all.Comparisons[0]), nil
		}
		return e, "the runs of a side are not of one kind", nil
	}
	for _, m := range all.Comparisons[0].Metrics {
		if m.Name == metric {
			return m.Ratio, "", nil
		}
	}
	return e, "neither side has " + metric, nil
}
