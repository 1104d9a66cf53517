package engine

import (
	"fmt"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// The views a reading can have.
const (
	ViewStopped bench.View = "host-stopped"
	ViewHost    bench.View = "host"
	ViewGuest   bench.View = "guest"
)

// Reading is a typed observation: known with a source, or unknown with a
// reason. The zero value is unknown with the reason "not observed", so that a
// forgotten reading can never look like a value.
type Reading[T any] struct {
	value  T
	known  bool
	source string
	reason string
	view   bench.View
}

// Known returns a reading of v from source (a kernel file, a call, a program).
func Known[T any](v T, source string, view bench.View) Reading[T] {
	return Reading[T]{value: v, known: true, source: source, view: view}
}

// Unknown returns a reading that blocks whatever depends on it.
func Unknown[T any](reason string, view bench.View) Reading[T] {
	return Reading[T]{reason: reason, view: view}
}

// Get returns the value and whether it is known.
func (r Reading[T]) Get() (T, bool) { return r.value, r.known }

// Source names what was read.
func (r Reading[T]) Source() string { return r.source }

// View says whose view the reading is.
func (r Reading[T]) View() bench.View { return r.view }

// Reason says why the reading is unknown; empty when it is known.
func (r Reading[T]) Reason() string {
	if !r.known && r.reason == "" {
		return "not observed"
	}
	return r.reason
}

// Fact turns the reading into a line of the record, the value formatted with %v.
func (r Reading[T]) Fact(name string) bench.Fact {
	f := bench.Fact{Name: name, Known: r.known, View: r.view}
	if r.known {
		f.Value, f.Source = fmt.Sprint(r.value), r.source
	} else {
		f.Reason = r.Reason()
	}
	return f
}
