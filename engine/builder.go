package engine

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-multierror"

	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A plan is wired with promises: a step takes promises of typed values and
// gives one of its own, so a step that is wired to the wrong thing does not
// compile. What the compiler of Go cannot see (a slot that two steps use at the
// same time, a window that would wait for itself) Build refuses.

// Modes of an edge.
const (
	ModeRead  = "read"
	ModeUse   = "use"
	ModeMove  = "move"
	ModeAfter = "after"
)

// Promise is a typed output of a step that has not run. The zero value is
// absent: an input made from it is no edge, and In gives the zero T for it.
type Promise[T any] struct {
	_ [0]T // keeps Go from converting a promise into one of another type
	origin
}

// origin is where a promised value comes from.
type origin struct {
	builder *Builder
	step    int
	part    part
}

// part says which of a step's outputs is meant.
type part uint8

const (
	whole part = iota
	partA
	partB
)

func (o origin) promised() origin { return o }

// Absent says that nothing was promised.
func (p Promise[T]) Absent() bool { return p.builder == nil }

// Promised is a promise of whatever type.
type Promised interface {
	Absent() bool
	promised() origin
}

// Pair is the output of a step that gives two values.
type Pair[A, B any] struct {
	A A
	B B
}

func (p Pair[A, B]) part(which part) any {
	if which == partA {
		return p.A
	}
	return p.B
}

func (Pair[A, B]) types() (a, b reflect.Type) { return reflect.TypeFor[A](), reflect.TypeFor[B]() }

// pair is a Pair of whatever types.
type pair interface {
	part(part) any
	types() (a, b reflect.Type)
}

// First is the A of a promised pair.
func First[A, B any](p Promise[Pair[A, B]]) Promise[A] {
	return Promise[A]{origin: p.origin.take(partA)}
}

// Second is the B of a promised pair.
func Second[A, B any](p Promise[Pair[A, B]]) Promise[B] {
	return Promise[B]{origin: p.origin.take(partB)}
}

func (o origin) take(which part) origin {
	if o.builder == nil {
		return origin{}
	}
	if o.part != whole {
		o.builder.fail("step %s: a pair within a pair cannot be taken apart", o.builder.specs[o.step].ID)
	}
	o.part = which
	return o
}

// AsPlace is a promised slot, running or stopped, as the place that it is in.
func AsPlace[T Place](p Promise[T]) Promise[Place] { return Promise[Place]{origin: p.origin} }

// Input is one edge to a step.
type Input struct {
	origin
	mode string
	typ  reflect.Type // nil for order only
}

// Read shares the value with other readers.
func Read[T any](p Promise[T]) Input { return Input{p.origin, ModeRead, reflect.TypeFor[T]()} }

// Use takes the value alone: no other step reads or uses it at the same time.
func Use[T any](p Promise[T]) Input { return Input{p.origin, ModeUse, reflect.TypeFor[T]()} }

// Move takes the value for good: nobody may have it afterwards.
func Move[T any](p Promise[T]) Input { return Input{p.origin, ModeMove, reflect.TypeFor[T]()} }

// After is order only. It carries no value and does not count in the numbering of In.
func After(p Promised) Input { return Input{p.promised(), ModeAfter, nil} }

// StepSpec says what a step is, apart from its edges.
type StepSpec struct {
	// ID is unique in the plan.
	ID string
	// Kind names the binding that runs the step.
	Kind string
	// Params is the schema type named for the kind, such as bench.MountParams; nil for none.
	Params any
	// Window names the measurement window the step belongs to; empty for none.
	Window string
	// Deadline is how long the step may take. Required.
	Deadline time.Duration
	// Rollout the step belongs to; nil for steps before and after the rollouts.
	Rollout *int64
	// Slot that the step works on.
	Slot string
	// Warmup: the rollout is left out of every number.
	Warmup bool
	// Control: who acts in a control rollout, "none" or "oracle"; empty for others.
	Control string
	// Branch that the rollout is; empty for none.
	Branch string
	// Round of a task that branches; nil outside of one.
	Round *int64
	// Release steps run whatever happened.
	Release bool
	// Optional: the verdict may be not_applicable where the arm declares it.
	Optional bool
}

// Builder collects steps. It keeps mistakes until Build, which reports all of them.
type Builder struct {
	specs  []StepSpec
	nodes  []node
	edges  [][]bench.Edge
	params []string
	ids    map[string]int
	texts  map[string]string       // JSON as marshalled to its canonical form: rollouts repeat their parameters
	names  map[reflect.Type]string // typeName's answers
	errs   *multierror.Error
}

// node is a step as the executor needs it.
type node struct {
	out    reflect.Type
	inputs []Input // values only, absent ones included
	needs  []int   // steps, each once, order-only ones included
	window int     // index into Plan.windows, -1 for none

	deadline time.Duration
}

// NewBuilder returns a builder without steps.
func NewBuilder() *Builder {
	return &Builder{ids: map[string]int{}, texts: map[string]string{}, names: map[reflect.Type]string{}}
}

func (b *Builder) fail(format string, args ...any) {
	b.errs = multierror.Append(b.errs, fmt.Errorf(format, args...))
}

// Add appends a step that gives a T. Because a promise is only had from Add, the
// order of the calls is a topological order of the plan.
func Add[T any](b *Builder, s StepSpec, in ...Input) Promise[T] {
	return Promise[T]{origin: origin{builder: b, step: b.add(s, reflect.TypeFor[T](), in)}}
}

func (b *Builder) add(s StepSpec, out reflect.Type, in []Input) int {
	i := len(b.specs)
	switch {
	case s.ID == "":
		b.fail("step %d of kind %q: id is empty", i, s.Kind)
	case s.Kind == "":
		b.fail("step %s: kind is empty", s.ID)
	}
	if j, taken := b.ids[s.ID]; taken && s.ID != "" {
		b.fail("step %s: id is taken: steps %d and %d have it", s.ID, j, i)
	}
	b.ids[s.ID] = i
	if s.Deadline <= 0 {
		b.fail("step %s: deadline is missing", s.ID)
	}
	if s.Release && s.Window != "" {
		b.fail("step %s: a release step cannot belong to window %s", s.ID, s.Window)
	}
	if s.Rollout != nil {
		own := *s.Rollout // the caller may count on with its own
		s.Rollout = &own
	}
	if s.Round != nil {
		own := *s.Round
		s.Round = &own
	}
	b.specs = append(b.specs, s)
	b.params = append(b.params, b.canonical(s))
	n, edges := node{out: out, window: -1, deadline: s.Deadline}, make([]bench.Edge, 0, len(in))
	for _, p := range in {
		if p.mode != ModeAfter {
			edges = b.takeValue(s.ID, &n, edges, p)
		}
	}
	for _, p := range in {
		if p.mode == ModeAfter {
			edges = b.takeOrder(s.ID, &n, edges, p)
		}
	}
	b.nodes, b.edges = append(b.nodes, n), append(b.edges, edges)
	return i
}

// takeValue adds an input that carries a value, or the absence of one.
func (b *Builder) takeValue(id string, n *node, edges []bench.Edge, p Input) []bench.Edge {
	k := len(n.inputs)
	n.inputs = append(n.inputs, p)
	if p.builder == nil {
		return edges
	}
	if !b.owns(id, p) {
		return edges
	}
	from, typ := b.specs[p.step].ID, b.typeName(p.typ)
	if err := b.checkType(p); err != nil {
		b.fail("step %s: input %d from %s: %w", id, k, from, err)
	}
	for _, before := range n.inputs[:k] {
		switch {
		case before.builder == nil && before.typ == p.typ && before.mode == p.mode:
			b.fail("step %s: an absent %s comes before the one from %s: which one is absent would not show in the plan", id, typ, from)
		case before.builder != nil && before.step == p.step && overlap(before.part, p.part) && (before.mode != ModeRead || p.mode != ModeRead):
			b.fail("step %s: takes the same %s from %s twice", id, typ, from)
		}
	}
	if !slices.Contains(n.needs, p.step) {
		n.needs = append(n.needs, p.step)
	}
	return append(edges, bench.Edge{Step: from, Type: typ, Mode: p.mode})
}

// takeOrder adds an input that is order only, unless the step waits anyway.
func (b *Builder) takeOrder(id string, n *node, edges []bench.Edge, p Input) []bench.Edge {
	if p.builder == nil || !b.owns(id, p) || slices.Contains(n.needs, p.step) {
		return edges
	}
	n.needs = append(n.needs, p.step)
	return append(edges, bench.Edge{Step: b.specs[p.step].ID, Mode: ModeAfter})
}

func (b *Builder) owns(id string, p Input) bool {
	if p.builder != b {
		b.fail("step %s: takes %s from %s of another plan", id, cmp.Or(b.typeName(p.typ), "order"), p.builder.specs[p.step].ID)
	}
	return p.builder == b
}

func overlap(a, b part) bool { return a == whole || b == whole || a == b }

var placeType = reflect.TypeFor[Place]()

// checkType compares what an edge takes with what its step gives. The edge
// keeps only the name of the type, so a pair of two alike cannot be taken apart.
func (b *Builder) checkType(p Input) error {
	fits := func(have reflect.Type) bool {
		return have == p.typ || p.typ == placeType && have.Implements(placeType)
	}
	given := b.nodes[p.step].out
	if p.part == whole {
		if !fits(given) {
			return fmt.Errorf("wants %s, gets %s", b.typeName(p.typ), b.typeName(given))
		}
		return nil
	}
	two, ok := reflect.Zero(given).Interface().(pair)
	if !ok {
		return fmt.Errorf("takes a part of %s, which is no pair", b.typeName(given))
	}
	have, other := two.types()
	if p.part == partB {
		have, other = other, have
	}
	if !fits(have) {
		return fmt.Errorf("wants %s, gets %s", b.typeName(p.typ), b.typeName(have))
	}
	if fits(other) || b.typeName(other) == b.typeName(p.typ) {
		return fmt.Errorf("both parts of %s are a %s: which one is meant would not show in the plan", b.typeName(given), b.typeName(p.typ))
	}
	return nil
}

// canonical is the text of a step's parameters.
func (b *Builder) canonical(s StepSpec) string {
	if s.Params == nil {
		return "{}"
	}
	raw, err := json.Marshal(s.Params)
	if err != nil {
		b.fail("step %s: params: %w", s.ID, err)
		return ""
	}
	text, known := b.texts[string(raw)]
	if !known {
		data, err := canonical.JSON(json.RawMessage(raw))
		if err != nil {
			b.fail("step %s: params: %w", s.ID, err)
			return ""
		}
		text = string(data)
		b.texts[string(raw)] = text
	}
	return text
}

func (b *Builder) typeName(t reflect.Type) string {
	name, known := b.names[t]
	if !known {
		name = typeName(t)
		b.names[t] = name
	}
	return name
}

// typeName is a type's name without package paths: names go into the digest of
// the plan, which must not change when a package moves.
func typeName(t reflect.Type) string {
	if t == nil {
		return ""
	}
	var out strings.Builder
	word := ""
	for _, r := range t.String() {
		if strings.ContainsRune("[]*,(){}; ", r) {
			out.WriteString(word)
			out.WriteRune(r)
			word = ""
			continue
		}
		word += string(r)
		if r == '.' || r == '/' {
			word = ""
		}
	}
	return out.String() + word
}

// Build checks the plan and freezes it. The error lists every mistake, each
// with the steps it is about:
//
//	ids are unique, deadlines set, each edge's step exists and gives what is taken
//	no cycle, also when each window's steps are seen as one
//	a value that is used or moved is moved at most once, every other step that
//	takes it is ordered before the move, and whoever uses it is ordered with
//	everybody else who takes it
//	a release step is in no window
func (b *Builder) Build(workload bench.SHA256, reset string) (*Plan, error) {
	if b.errs != nil {
		return nil, fmt.Errorf("build plan: %w", b.errs)
	}
	p := &Plan{nodes: slices.Clone(b.nodes)}
	p.Plan = bench.Plan{ApiVersion: APIVersion, Workload: workload, Reset: reset, Steps: make([]bench.Step, len(b.specs))}
	for i, s := range b.specs {
		p.Steps[i] = bench.Step{
			Id: s.ID, Kind: s.Kind, Params: b.params[i], Needs: b.edges[i], Window: s.Window, Deadline: FormatDuration(s.Deadline),
			Rollout: s.Rollout, Slot: s.Slot, Warmup: s.Warmup, Control: s.Control, Branch: bench.Name(s.Branch), Round: s.Round, Release: s.Release, Optional: s.Optional,
		}
	}
	p.link()
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("build plan: %w", err)
	}
	text, err := canonical.JSON(p.Plan)
	if err != nil {
		return nil, fmt.Errorf("build plan: %w", err)
	}
	p.text, p.digest = text, canonical.Sum(text)
	return p, nil
}
