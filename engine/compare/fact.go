package compare

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Sameness is the table of facts that comparisons ask for. It is read once: nobody may change it.
var Sameness = sync.OnceValues(func() (bench.Sameness, error) {
	var s bench.Sameness
	err := compile.Table("sameness", &s)
	return s, err
})

// notUsed is the value of a fact for an arm that has no such thing.
const notUsed = "not used"

// read is a fact of one run.
func read(r Run, f bench.SamenessFact) bench.ComparedValue {
	if len(f.Arms) > 0 && !slices.Contains(f.Arms, r.Record.Arm) {
		return known(notUsed, "the arm "+r.Record.Arm)
	}
	switch from := f.From; {
	case from.Digest != "":
		d, ok := r.Record.Digests[from.Digest]
		if !ok || d == "" {
			return unknown("the record has no digest %s", from.Digest)
		}
		return known(string(d), "record, digest "+from.Digest)
	case from.Record != "":
		return field(r.Record, from.Record, "record, ")
	case from.Manifest != "":
		m, err := compile.Effective(r.Manifest)
		if err != nil {
			return unknown("%v", err)
		}
		return field(m, from.Manifest, "manifest, ")
	case from.Host != "":
		return hostFact(r.Record.Facts, from.Host)
	case from.Step != nil:
		return stepFact(r, *from.Step)
	case from.Rollouts == "order":
		return order(r)
	case from.Rollouts == "controls":
		return controls(r)
	}
	return unknown("the table of facts does not say where to look")
}

func known(value, source string) bench.ComparedValue {
	return bench.ComparedValue{Known: true, Value: value, Source: source}
}

func unknown(format string, args ...any) bench.ComparedValue {
	return bench.ComparedValue{Reason: fmt.Sprintf(format, args...)}
}

// field of a value's JSON by its path. An empty one is absent: no field that a
// comparison asks for may be.
func field(v any, path, source string) bench.ComparedValue {
	data, err := json.Marshal(v)
	if err != nil {
		return unknown("%v", err)
	}
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.UseNumber()
	var at any
	if err := d.Decode(&at); err != nil {
		return unknown("%v", err)
	}
	for _, name := range strings.Split(path, ".") {
		object, ok := at.(map[string]any)
		if at = object[name]; !ok || at == nil {
			return unknown("%sthere is no %s", source, path)
		}
	}
	text := ""
	switch x := at.(type) {
	case string:
		text = x
	case json.Number:
		text = x.String()
	case bool:
		text = strconv.FormatBool(x)
	default:
		digest, err := canonical.Digest(x)
		if err != nil {
			return unknown("%v", err)
		}
		text = string(digest)
	}
	if text == "" {
		return unknown("%s%s is empty", source, path)
	}
	return known(text, source+path)
}

func hostFact(facts []bench.Fact, name string) bench.ComparedValue {
	var found []bench.ComparedValue
	for _, f := range facts {
		if f.Name == name {
			found = append(found, value(f))
		}
	}
	if len(found) == 0 {
		return unknown("the record has no fact %s", name)
	}
	return agreed(found, func(i int) string { return fmt.Sprintf("fact %d", i) }, "differs between facts of the record")
}

// value of a fact. A known one without a value or a source is none.
func value(f bench.Fact) bench.ComparedValue {
	switch {
	case !f.Known && f.Reason == "":
		return unknown("not observed")
	case !f.Known:
		return unknown("%s", f.Reason)
	case f.Value == "" || f.Source == "":
		return unknown("the fact has no value, or no source")
	}
	return known(f.Value, f.Source)
}

// stepFact is the fact of every step of a kind.
func stepFact(r Run, from bench.StepSource) bench.ComparedValue {
	what := from.Kind
	if from.Gate != "" {
		what = from.Gate + " " + what
	}
	var found []bench.ComparedValue
	var steps []string
	for _, s := range r.Plan.Steps {
		if !concerns(s, from) {
			continue
		}
		receipt, ran := r.Steps[s.Id]
		v := unknown("the step was not run")
		if ran {
			v = receiptFact(receipt, from)
		}
		if !v.Known {
			return unknown("%s: %s", s.Id, v.Reason)
		}
		found, steps = append(found, v), append(steps, s.Id)
	}
	if len(found) == 0 {
		return unknown("the plan has no %s step", what)
	}
	v := agreed(found, func(i int) string { return steps[i] }, "differs between rollouts")
	if v.Known {
		v.Source = "each " + what + " step: " + found[len(found)-1].Source
	}
	return v
}

func concerns(s bench.Step, from bench.StepSource) bool {
	if s.Kind != from.Kind || from.Gate == "" {
		return s.Kind == from.Kind
	}
	var p bench.GateParams
	return json.Unmarshal([]byte(s.Params), &p) == nil && p.Gate == from.Gate
}

func receiptFact(r bench.Receipt, from bench.StepSource) bench.ComparedValue {
	i := slices.IndexFunc(r.Facts, func(f bench.Fact) bool { return f.Name == from.Fact })
	if i < 0 {
		return unknown("it has no fact %s", from.Fact)
	}
	v := value(r.Facts[i])
	if !v.Known || from.Member == "" {
		return v
	}
	members := map[string]any{}
	d := json.NewDecoder(strings.NewReader(v.Value))
	d.UseNumber()
	if err := d.Decode(&members); err != nil {
		return unknown("fact %s: %v", from.Fact, err)
	}
	m := field(members, from.Member, "fact "+from.Fact+", ")
	if m.Known {
		m.Source = v.Source
	}
	return m
}

// agreed is the value that all have; unknown where two differ or one is unknown.
func agreed(list []bench.ComparedValue, name func(int) string, differs string) bench.ComparedValue {
	for i, v := range list {
		switch {
		case !v.Known:
			return unknown("%s: %s", name(i), v.Reason)
		case v.Value != list[0].Value:
			return unknown("%s: %s in %s, %s in %s", differs, list[0].Value, name(0), v.Value, name(i))
		}
	}
	return list[0]
}

// order is how many rollouts there were of each kind, as they followed each other.
func order(r Run) bench.ComparedValue {
	var parts []string
	last, n := "", 0
	end := func() {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, last))
		}
	}
	for _, o := range r.Record.Rollouts {
		kind := "measured"
		switch {
		case o.Control != "":
			kind = "control " + o.Control
		case o.Warmup:
			kind = "warm-up"
		}
		if kind != last {
			end()
			last, n = kind, 0
		}
		n++
	}
	end()
	if len(parts) == 0 {
		return unknown("the record has no rollout")
	}
	return known(strings.Join(parts, ", "), "record, rollouts")
}

// controls are the scores of the rollouts in which nobody and the oracle acted.
// Both have to be there, and as they must be: else the task is not one that can
// tell success from failure.
func controls(r Run) bench.ComparedValue {
	want := map[string]float64{"none": 0, "oracle": 1}
	seen := map[string]bool{}
	for _, o := range r.Record.Rollouts {
		if o.Control == "" {
			continue
		}
		must, named := want[o.Control]
		switch {
		case !named || o.After == nil:
			return unknown("control %s has no score", o.Control)
		case *o.After != must:
			return unknown("control %s scored %v and must score %v", o.Control, *o.After, must)
		}
		seen[o.Control] = true
	}
	for _, name := range []string{"none", "oracle"} {
		if !seen[name] {
			return unknown("the record has no control %s", name)
		}
	}
	return known("none 0, oracle 1", "record, rollouts")
}

// merged is a fact of all runs of a side. Where the rule for repeated runs lets it
// differ between them, all values stand side by side.
func merged(runs []Run, f bench.SamenessFact) bench.ComparedValue {
	values := make([]bench.ComparedValue, len(runs))
	for i, r := range runs {
		values[i] = read(r, f)
	}
	name := func(i int) string { return runs[i].Record.Run }
	v := agreed(values, name, "differs between runs")
	if v.Known || f.Rules.Repeat != "declared" {
		return v
	}
	var all []string
	for i, v := range values {
		if !v.Known {
			return unknown("%s: %s", name(i), v.Reason)
		}
		if !slices.Contains(all, v.Value) {
			all = append(all, v.Value)
		}
	}
	slices.Sort(all)
	return known(strings.Join(all, ", "), values[0].Source)
}

// ruleOf a fact in a kind of comparison.
func ruleOf(f bench.SamenessFact, kind bench.ComparisonKind) bench.SamenessRule {
	switch kind {
	case Repeat:
		return f.Rules.Repeat
	case Arm:
		return f.Rules.Arm
	case Reset:
		return f.Rules.Reset
	case Setting:
		return f.Rules.Setting
	case Slots:
		return f.Rules.Slots
	case Branch:
		return f.Rules.Branch
	}
	return ""
}

// judge compares a fact of two sides.
func (c *comparer) judge(f bench.SamenessFact, kind bench.ComparisonKind, a, b []Run) (bench.ComparedFact, *bench.Refusal) {
	out := bench.ComparedFact{Name: f.Name, Title: f.Title, Rule: ruleOf(f, kind), A: merged(a, f), B: merged(b, f)}
	rule := out.Rule
	if rule == "compiled" {
		out.A, out.B = c.compiled(a, out.A), c.compiled(b, out.B)
	}
	out.Status = status(out.A, out.B)
	if rule == "compiled" && out.Status == "different" {
		out.Status = "same" // each is what the engine compiles for its side
	}
	refuse := func(cause, text string) (bench.ComparedFact, *bench.Refusal) {
		out.Refuses = true
		return out, &bench.Refusal{Cause: cause, Subject: string(f.Name), Text: text, Learn: out.Learn}
	}
	switch {
	case out.Status == "unknown":
		out.Learn = f.Learn
		return refuse("unknown", f.Title+" is unknown: "+whose(out))
	case out.Status == "same", kind == "":
		return out, nil
	case used(out):
		for _, v := range []string{out.A.Value, out.B.Value} {
			if word, apart := f.Apart[v]; apart {
				return refuse(word, fmt.Sprintf("%s: %s is %s and compared with nothing that is not", f.Title, v, word))
			}
		}
		if rule != "declared" {
			return refuse("different", fmt.Sprintf("%s differs: %s and %s", f.Title, out.A.Value, out.B.Value))
		}
	}
	return out, nil
}

// used: both sides have such a thing.
func used(f bench.ComparedFact) bool { return f.A.Value != notUsed && f.B.Value != notUsed }

// status of two values: unknown equals nothing.
func status(a, b bench.ComparedValue) string {
	switch {
	case !a.Known || !b.Known:
		return "unknown"
	case a.Value == b.Value:
		return "same"
	}
	return "different"
}

func whose(f bench.ComparedFact) string {
	var parts []string
	if f.A == f.B {
		return f.A.Reason
	}
	if !f.A.Known {
		parts = append(parts, "A: "+f.A.Reason)
	}
	if !f.B.Known {
		parts = append(parts, "B: "+f.B.Reason)
	}
	return strings.Join(parts, "; ")
}

// compiled is v if it is what the engine compiles from each run's manifest. A
// program that is not the run's own may compile another plan: it cannot tell.
func (c *comparer) compiled(runs []Run, v bench.ComparedValue) bench.ComparedValue {
	if !v.Known {
		return v
	}
	for _, r := range runs {
		digest, err := c.compile(r.Manifest, r.Record.Reset)
		switch {
		case err != nil:
			return unknown("%s: compile the plan anew: %v", r.Record.Run, err)
		case digest != r.Record.Digests["plan"] && r.Record.Engine.Sha256 != c.program:
			return unknown("%s: this program compiles %s from its manifest, and it is not the program that ran it (sha256 %s)", r.Record.Run, digest, r.Record.Engine.Sha256)
		case digest != r.Record.Digests["plan"]:
			return unknown("%s: its plan is not the one that its manifest compiles to, %s", r.Record.Run, digest)
		}
	}
	v.Source += ", compiled anew from the manifest"
	return v
}

// settingsText is an arm's settings in a fixed order.
func settingsText(r bench.Record) string {
	digest, err := canonical.JSON(r.Settings)
	if err != nil || r.Settings == nil {
		return "{}"
	}
	return string(digest)
}
