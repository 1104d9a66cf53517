package compile

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Rules between fields, and limits that a regular expression cannot hold. They
// are in Go because a comprehension or a disjunction of structs in the schema
// would cost the generated types their types. A problem has a path; place finds
// where it was written.

// manifestRules checks a manifest that has passed the schema.
//
//	policy                exactly one field
//	arms                  at least one
//	task.oracle           has a command: it is the positive control of every run
//	readiness.screen      only with guest.display; so do readiness.windows and review
//	readiness.input       only with readiness.screen
//	readiness.windows     a service that is named is there
//	services              names differ, and no two wait for the same path
//	checker               success and failure have different exit codes
//	experiment.reset      no mode twice
//	experiment.bars       see bars
//	experiment.pageCache  see pageCache
//	experiment.memoryAfter  see memoryAfter
//	task.branching        see branching
//	hygiene               see hygiene
//	experiment.sweep, .sustain, .prices   see density
//	durations             parse and are above 0; readiness.period at most its deadline
//	sizes                 fit into 63 bits; memory is above 0
func manifestRules(m bench.Manifest) Problems {
	var r rules
	if m.Policy != nil {
		r.exactlyOne("policy", map[string]bool{"oracle": m.Policy.Oracle != nil, "none": m.Policy.None != nil, "host": m.Policy.Host != nil}, "oracle", "none", "host")
	}
	if len(m.Task.Oracle) == 0 {
		r.add("task", "no oracle commands", "oracle: [{exec: [...]}] solves the task; it is the positive control of every run, whoever acts in the measured rollouts")
	}
	if m.Arms == (bench.Arms{}) {
		r.add("arms", "no arm", "name at least one: arms: drums: {}")
	}

	if (m.Readiness.Screen || len(m.Readiness.Windows) > 0) && m.Guest.Display == nil {
		r.add("readiness", "asks for a screen or a window, and the guest has no display", "set guest: display: {width: 1280, height: 800}")
	}

	if m.Readiness.Input != nil && !m.Readiness.Screen {
		r.add("readiness.input", "has a screen answer an input, and nobody looks whether it is painted", "set readiness: screen: true")
	}
	for i, w := range m.Readiness.Windows {
		if w.Service != "" && !slices.ContainsFunc(m.Guest.Services, func(s bench.Service) bool { return s.Name == w.Service }) {
			r.add(fmt.Sprintf("readiness.windows[%d].service", i), fmt.Sprintf("the guest has no service %q", w.Service), "")
		}
	}

	if m.Review != nil && m.Guest.Display == nil {
		r.add("review", "has a person look at the screen, and the guest has no display", "set guest: display: {width: 1280, height: 800}")
	}

	names, ready := map[bench.Name]int{}, map[bench.GuestPath]int{}
	for i, s := range m.Guest.Services {
		path := fmt.Sprintf("guest.services[%d]", i)
		if first, twice := names[s.Name]; twice {
			r.add(path+".name", fmt.Sprintf("two services are named %q: services[%d] and services[%d]", s.Name, first, i), "")
		}
		names[s.Name] = i
		if s.Ready == "" {
			continue
		}
		if first, twice := ready[s.Ready]; twice {
			r.add(path+".ready", fmt.Sprintf("two services are ready at %q: services[%d] and services[%d]", s.Ready, first, i),
				"the second would count as up while only the first is")
		}
		ready[s.Ready] = i
	}
	if m.Checker.Success.Exit == m.Checker.Failure.Exit {
		r.add("checker", fmt.Sprintf("success and failure have the same exit code %d", m.Checker.Success.Exit),
			"the score would say nothing")
	}
	seen := map[bench.Reset]bool{}
	for i, reset := range m.Experiment.Reset {
		if seen[bench.Reset(reset)] {
			r.add(fmt.Sprintf("experiment.reset[%d]", i), fmt.Sprintf("%q stands there twice", reset), "")
		}
		seen[bench.Reset(reset)] = true
	}

	r.memoryAfter(m)
	r.settle(m)
	r.pageCache(m)
	r.density(m.Experiment)
	r.budget(m.Experiment.Budget)
	r.bars(m)
	r.branching(m)
	r.hygiene(m)
	r.commands("task.setup", m.Task.Setup)
	r.commands("task.oracle", m.Task.Oracle)
	r.commands("readiness.probes", m.Readiness.Probes)
	if in := m.Readiness.Input; in != nil {
		r.commands("readiness.input.act", in.Act)
		r.commands("readiness.input.undo", in.Undo)
	}
	r.duration("checker.timeout", m.Checker.Timeout)
	if m.Policy != nil && m.Policy.Host != nil {
		r.duration("policy.host.timeout", m.Policy.Host.Timeout)
	}
	period := r.duration("readiness.period", m.Readiness.Period)
	deadline := r.duration("readiness.deadline", m.Readiness.Deadline)
	if period > 0 && deadline > 0 && period > deadline {
		r.add("readiness.period", fmt.Sprintf("%s is longer than the deadline %s", m.Readiness.Period, m.Readiness.Deadline), "")
	}
	if r.size("resources.memory", string(m.Resources.Memory)) == 0 {
		r.add("resources.memory", "a slot without memory cannot run", "")
	}
	r.size("resources.swap", string(m.Resources.Swap))
	if m.Arms.Qemu != nil {
		r.size("arms.qemu.headroom", string(m.Arms.Qemu.Headroom))
	}
	if m.Checkpoint != nil {
		r.size("checkpoint.ghostLimit", m.Checkpoint.GhostLimit)
	}
	return r.problems
}

// recipeRules checks a recipe that has passed the schema: each file has exactly
// one of content and source, no path twice; the file system has a size.
func recipeRules(recipe bench.Recipe) Problems {
	var r rules
	paths := map[bench.GuestPath]int{}
	for i, f := range recipe.Files {
		path := fmt.Sprintf("files[%d]", i)
		if (f.Content != "") && (f.Source != "") {
			r.add(path, "content and source are both set", "keep one of them")
		}
		if first, twice := paths[f.Path]; twice {
			r.add(path+".path", fmt.Sprintf("%q is laid twice: files[%d] and files[%d]", f.Path, first, i), "")
		}
		paths[f.Path] = i
	}
	if r.size("size", string(recipe.Size)) == 0 {
		r.add("size", "a file system has a size", "")
	}
	return r.problems
}

type rules struct{ problems Problems }

func (r *rules) add(path, text, hint string) {
	r.problems = append(r.problems, Problem{Path: path, Text: text, Hint: hint})
}

func (r *rules) exactlyOne(path string, set map[string]bool, order ...string) {
	var have []string
	for _, name := range order {
		if set[name] {
			have = append(have, name)
		}
	}
	switch len(have) {
	case 0:
		r.add(path, "names nobody", "exactly one of "+or(order)+", such as "+path+": "+order[0]+": {}")
	case 1:
	default:
		r.add(path, strings.Join(have, " and ")+" are both set", "keep one of them")
	}
}

func (r *rules) commands(path string, commands []bench.Command) {
	for i, c := range commands {
		r.duration(fmt.Sprintf("%s[%d].timeout", path, i), c.Timeout)
	}
}

// duration is d parsed; 0, with a problem, if it is none or not above 0.
func (r *rules) duration(path string, d string) time.Duration {
	parsed, err := time.ParseDuration(d)
	switch {
	case err != nil:
		r.add(path, fmt.Sprintf("%q is too long a time", d), "")
	case parsed <= 0:
		r.add(path, fmt.Sprintf("%q is no time at all", d), `give it time, as in "30s"`)
	default:
		return parsed
	}
	return 0
}

// size is b in bytes; -1, with a problem, if it does not fit.
func (r *rules) size(path string, b string) int64 {

	digits := strings.TrimRight(b, "KMGTiB")
	shift, ok := map[string]int{"": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}[b[len(digits):]]
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || !ok || n > math.MaxInt64>>shift {
		r.add(path, fmt.Sprintf("%q is more than 63 bits can count", b), "")
		return -1
	}
	return n << shift
}
