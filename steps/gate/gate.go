// Package gate holds the gates: pure functions that turn readings into a
// judgement. One file for each gate.
//
// Always holds: a reading that is unknown gives an unknown finding, never a
// pass; a gate that passes has compared at least one value; every finding names
// its subject. Gates know no arm and touch nothing.
package gate

import (
	"encoding/json"
	"fmt"
	"sort"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Names of the gates, as plans and records carry them.
const (
	Image         = "image"
	ToolConfig    = "tool-config"
	Limits        = "limits"
	MountContract = "mount-contract"
	Mounts        = "mounts"
	NetworkUp     = "network-up"
	Network       = "network"
	Enclosure     = "enclosure"
	Checkpoint    = "checkpoint"
	Locks         = "locks"
	Processes     = "processes"
	State         = "state"
	Live          = "live"
	Server        = "server"
	Canary        = "canary"
	Cleanup       = "cleanup"
	Look          = "look"
	// Of branching tasks.
	Carried  = "carried"
	Hygiene  = "hygiene"
	Diverged = "diverged"
	Parent   = "parent"
	Audit    = "audit"
	Screen   = "screen"
)

// known returns the reading's value, or notes in j that it is unknown.
func known[T any](j *engine.Judgement, subject string, r engine.Reading[T]) (T, bool) {
	v, ok := r.Get()
	if !ok {
		f := j.Add(engine.VerdictUnknown, subject, "could not be observed")
		f.Have = r.Reason()
	}
	return v, ok
}

// text is a value as a finding shows it: canonical enough to compare by eye.
func text(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%+v", v)
	}
	return string(b)
}

// equalSets compares two sets of things by key and content: each thing that is
// missing, new or different is a failed finding of its own.
func equalSets[T any](j *engine.Judgement, what string, want, have []T, key func(T) string, hint string) {
	w, h := group(want, key), group(have, key)
	keys := map[string]bool{}
	for k := range w {
		keys[k] = true
	}
	for k := range h {
		keys[k] = true
	}
	sorted := make([]string, 0, len(keys))
	for k := range keys {
		sorted = append(sorted, k)
	}
	sort.Strings(sorted)
	for _, k := range sorted {
		a, b := w[k], h[k]
		for i := 0; i < len(a) || i < len(b); i++ {
			switch {
			case i >= len(b):
				f := j.Add(engine.Fail, k, what+" is gone")
				f.Want, f.Hint = text(a[i]), hint
			case i >= len(a):
				f := j.Add(engine.Fail, k, what+" is new")
				f.Have, f.Hint = text(b[i]), hint
			case text(a[i]) != text(b[i]):
				f := j.Add(engine.Fail, k, what+" differs")
				f.Want, f.Have, f.Hint = text(a[i]), text(b[i]), hint
			}
		}
	}
}

func group[T any](list []T, key func(T) string) map[string][]T {
	m := map[string][]T{}
	for _, v := range list {
		m[key(v)] = append(m[key(v)], v)
	}
	return m
}

// fact notes a known value in the judgement.
func fact(j *engine.Judgement, name string, value any, source string, view bench.View) {
	j.Facts = append(j.Facts, bench.Fact{Name: name, Known: true, Value: text(value), Source: source, View: view})
}
