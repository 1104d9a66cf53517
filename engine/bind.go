package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/hashicorp/go-multierror"
)

// Binding is the function that runs all steps of one kind.
type Binding struct {
	kind   string
	out    reflect.Type
	takes  []reflect.Type // nil where it is not declared
	decode func(params string) (stepFunc, error)
}

// stepFunc is a bound function with its parameters.
type stepFunc func(ctx context.Context, x *Exec) (any, error)

// Bindings by kind of step.
type Bindings map[string]Binding

// Add adds bindings, each under its own kind, and returns b.
func (b Bindings) Add(more ...Binding) Bindings {
	for _, m := range more {
		b[m.kind] = m
	}
	return b
}

// Takes declares one input of a bound function. With it, a plan that gives
// something else is refused before it runs.
func Takes[T any]() reflect.Type { return reflect.TypeFor[T]() }

// Bind binds fn to a kind of step. The parameters are decoded into a P of the
// step's own before anything runs, strictly: a field that P does not know is an
// error. takes declares the inputs in their order; without it they are checked
// when In asks for them.
//
// fn returns when ctx is done and has by then ended every process that it
// started. What it returns beside an error is given to release steps only.
func Bind[P, Out any](kind string, fn func(ctx context.Context, x *Exec, p P) (Out, error), takes ...reflect.Type) Binding {
	return Binding{kind: kind, out: reflect.TypeFor[Out](), takes: takes, decode: func(params string) (stepFunc, error) {
		var p P
		d := json.NewDecoder(strings.NewReader(params))
		d.DisallowUnknownFields()
		if err := d.Decode(&p); err != nil {
			return nil, fmt.Errorf("decode params into %T: %w", p, err)
		}
		return func(ctx context.Context, x *Exec) (any, error) { return fn(ctx, x, p) }, nil
	}}
}

// Kind that the binding is for.
func (b Binding) Kind() string { return b.kind }

// Check says whether the bindings can run the plan: each kind is there, gives
// the type that the plan promises, takes what it is given and can decode its
// parameters.
func (b Bindings) Check(p *Plan) error {
	_, err := b.prepare(p)
	return err
}

// prepare binds each step to its function.
func (b Bindings) prepare(p *Plan) ([]stepFunc, error) {
	var errs *multierror.Error
	said := map[string]bool{} // a plan repeats its kinds thousands of times, and so its mistakes
	bound := make([]stepFunc, len(p.Steps))
	for i, s := range p.Steps {
		f, err := b[s.Kind].bind(s.Kind, s.Params, &p.nodes[i])
		if err != nil && !said[s.Kind+err.Error()] {
			said[s.Kind+err.Error()] = true
			errs = multierror.Append(errs, fmt.Errorf("step %s: %w", s.Id, err))
		}
		bound[i] = f
	}
	if err := errs.ErrorOrNil(); err != nil {
		return nil, fmt.Errorf("bind plan: %w", err)
	}
	return bound, nil
}

func (b Binding) bind(kind, params string, n *node) (stepFunc, error) {
	if b.decode == nil {
		return nil, fmt.Errorf("no binding for kind %s", kind)
	}
	if b.out != n.out {
		return nil, fmt.Errorf("binding for kind %s gives %s, the plan promises %s", kind, typeName(b.out), typeName(n.out))
	}
	if b.takes != nil {
		if len(b.takes) != len(n.inputs) {
			return nil, fmt.Errorf("binding for kind %s takes %d inputs, the plan gives %d", kind, len(b.takes), len(n.inputs))
		}
		for k, in := range n.inputs {
			if !gives(in.typ, b.takes[k]) {
				return nil, fmt.Errorf("binding for kind %s takes %s as input %d, the plan gives %s", kind, typeName(b.takes[k]), k, typeName(in.typ))
			}
		}
	}
	return b.decode(params)
}

// gives says that a value of one type can be had as another.
func gives(have, want reflect.Type) bool {
	return have == want || want.Kind() == reflect.Interface && have.Implements(want)
}

// wiring is what In panics with; the executor makes it the step's failure.
type wiring struct{ error }

// In is input i of the step, counted from 0 in the order in which Add was given
// them; inputs that are order only do not count. It is the zero T for an absent
// promise and, in a release step, for a value that was never made. Asking for
// another input than the plan gives ends the step as failed.
func In[T any](x *Exec, i int) T {
	var zero T
	n := &x.run.plan.nodes[x.index]
	want := reflect.TypeFor[T]()
	if i < 0 || i >= len(n.inputs) {
		panic(wiring{fmt.Errorf("the step has %d inputs, its function asks for input %d (%s)", len(n.inputs), i, typeName(want))})
	}
	in := n.inputs[i]
	if !gives(in.typ, want) {
		panic(wiring{fmt.Errorf("input %d of the step is %s, its function asks for %s", i, typeName(in.typ), typeName(want))})
	}
	if in.builder == nil {
		return zero
	}
	v := x.run.values[in.step]
	if two, ok := v.(pair); ok && in.part != whole {
		v = two.part(in.part)
	}
	if isNil(v) {
		return zero
	}
	return v.(T)
}

// isNil is true for nil and for a typed nil pointer, which a function may return beside an error.
func isNil(v any) bool {
	if v == nil {
		return true
	}
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}

// lacks names a part of a step's output that should be there and is not.
func lacks(out reflect.Type, v any) string {
	if out.Kind() == reflect.Interface && isNil(v) {
		return typeName(out)
	}
	if two, ok := v.(pair); ok {
		a, b := two.types()
		if missing := lacks(a, two.part(partA)); missing != "" {
			return missing
		}
		return lacks(b, two.part(partB))
	}
	return ""
}
