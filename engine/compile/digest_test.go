package compile

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// TestMain keeps the property test, each check of which loads a manifest, within a second or two.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", "30"); err != nil { // -rapid.checks on the command line still wins
		panic(err)
	}
	os.Exit(m.Run())
}

// full is a manifest in which every field that a digest could miss is set.
func full() bench.Manifest {
	command := bench.Command{Exec: []string{"/bin/a", "b"}, Timeout: "1s", Exit: 3}
	return bench.Manifest{
		ApiVersion: "bench/v1alpha1", Name: "full", Network: "none",
		Image: bench.Image{File: "a.qcow2", Sha256: zeros, Partition: 1, Driver: &bench.StagedDriver{Package: bench.PinnedFile{File: "d", Sha256: zeros}, Path: "/p", Server: "/s"}},
		Guest: bench.Guest{
			User: "u", Home: "/home/u", Display: &bench.Display{Width: 1, Height: 1, Depth: 24},
			Services: []bench.Service{{Name: "s", Exec: []string{"/bin/s"}, Env: map[string]string{"K": "v"}, Ready: "/run/s"}},
			Server:   bench.Server{Port: 1, Sha256: zeros, Exec: []string{"/bin/guestd"}},
		},
		Resources: bench.Resources{Vcpus: 1, Memory: "1GiB", Swap: "0", Pids: 1},
		Task: bench.Task{Id: "t", Instruction: "do", Setup: []bench.Command{command}, Oracle: []bench.Command{command},
			Branching: &bench.Branching{Prefix: []bench.Command{command}, Witness: []bench.Command{command},
				Branches: []bench.Branch{{Name: "b", Act: []bench.Command{command}, Score: 1}}, Isolation: bench.Isolation{Watch: "1s", Period: "1s"}}},
		Policy: &bench.Policy{Oracle: &bench.OraclePolicy{}, Substitutes: []bench.Substitute{{What: "w", With: "x", Why: "y"}}},
		Checker: bench.Checker{Exec: []string{"/bin/c"}, Timeout: "1s", Program: &bench.PinnedFile{File: "c", Sha256: zeros},
			Files: []bench.GuestPath{"/f"}, Results: []bench.GuestPath{"/r"}, MayChange: []bench.GuestPath{"/m"},
			Substitutes: []bench.Substitute{{What: "w", With: "x", Why: "y"}}},
		Canary:     bench.Canary{File: "/c"},
		State:      &bench.State{Exclude: []bench.GuestPath{"/tmp"}},
		Readiness:  bench.Readiness{Server: true, Windows: []bench.Window{{Class: "c"}}, Input: &bench.RoundTrip{Act: []bench.Command{command}, Undo: []bench.Command{command}}, Probes: []bench.Command{command}, Period: "1ms", Deadline: "1s"},
		Checkpoint: &bench.CheckpointPolicy{EstablishedTCP: "refuse", GhostLimit: "64MiB"},
		Screen:     &bench.ScreenPolicy{Differ: 0.1, Moving: []bench.Region{{X: 1, Y: 1, Width: 1, Height: 1, Why: "clock"}}},
		Hygiene: &bench.Hygiene{Own: []bench.Own{{Name: "o", Reseed: command, Read: command}},
			Residuals: []bench.Residual{{Name: "r", Read: command, Why: "w"}}},
		Review:     &bench.ReviewPolicy{Question: "q", Screens: "each"},
		Arms:       bench.Arms{Drums: &bench.DrumsSettings{Locks: "repair", Attach: "raw"}, Fake: &bench.FakeSettings{Faults: []string{"f"}}},
		Experiment: bench.Experiment{Reset: []string{"restore"}, Rollouts: 1, Blocks: 1, Order: "abba", Reuse: "post_setup", Bars: []bench.Bar{{Name: "b"}}},
	}
}

// TestWorkloadCoversEachField changes each leaf of a manifest on its own: those
// of the workload change its digest, those that say how it is measured do not.
func TestWorkloadCoversEachField(t *testing.T) {
	outside := []string{"apiVersion", "name", "arms", "experiment", "review"}
	before, err := Workload(full())
	if err != nil {
		t.Fatal(err)
	}
	leaves := 0
	changeEach(t, reflect.TypeFor[bench.Manifest](), func(v reflect.Value) reflect.Value { return v }, "", func(path string, change func(*bench.Manifest)) {
		leaves++
		m := full()
		change(&m)
		after, err := Workload(m)
		if err != nil {
			t.Fatal(err)
		}
		top, _, _ := strings.Cut(path, ".")
		if want := !slices.Contains(outside, top); (after != before) != want {
			t.Errorf("%s: the digest changed: %v, want %v", path, after != before, want)
		}
	})
	if leaves < 40 {
		t.Errorf("only %d leaves were changed", leaves)
	}
}

// changeEach calls do for each leaf below a type, with a function that changes that leaf in a manifest.
func changeEach(t *testing.T, typ reflect.Type, get func(reflect.Value) reflect.Value, path string, do func(string, func(*bench.Manifest))) {
	change := func(set func(reflect.Value)) {
		do(path, func(m *bench.Manifest) { set(get(reflect.ValueOf(m).Elem())) })
	}
	switch typ.Kind() {
	case reflect.Struct:
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			below := func(v reflect.Value) reflect.Value { return get(v).Field(i) }
			changeEach(t, typ.Field(i).Type, below, strings.TrimPrefix(path+"."+name, "."), do)
		}
	case reflect.Pointer:
		if typ.Elem().NumField() == 0 { // a struct whose presence is the value
			change(func(v reflect.Value) {
				if v.IsNil() {
					v.Set(reflect.New(typ.Elem()))
				} else {
					v.SetZero()
				}
			})
			return
		}
		changeEach(t, typ.Elem(), func(v reflect.Value) reflect.Value {
			p := get(v)
			if p.IsNil() {
				p.Set(reflect.New(typ.Elem()))
			}
			return p.Elem()
		}, path, do)
	case reflect.Slice:
		change(func(v reflect.Value) { v.Set(reflect.Append(v, reflect.New(typ.Elem()).Elem())) })
		if typ.Elem().Kind() == reflect.Struct {
			changeEach(t, typ.Elem(), func(v reflect.Value) reflect.Value { return get(v).Index(0) }, path+"[0]", do)
		}
	case reflect.Map:
		change(func(v reflect.Value) {
			v.Set(reflect.ValueOf(map[string]string{"K": "other"}))
		})
	case reflect.String:
		change(func(v reflect.Value) { v.SetString(v.String() + "x") })
	case reflect.Int64:
		change(func(v reflect.Value) { v.SetInt(v.Int() + 1) })
	case reflect.Float64:
		change(func(v reflect.Value) { v.SetFloat(v.Float() + 0.5) })
	case reflect.Bool:
		change(func(v reflect.Value) { v.SetBool(!v.Bool()) })
	default:
		t.Fatalf("%s: a kind of field that this test does not know: %s", path, typ)
	}
}

// What is absent and what is the default are the same work.
func TestWorkloadOfDefaults(t *testing.T) {
	m := full()
	m.State, m.Policy = nil, &bench.Policy{Oracle: &bench.OraclePolicy{}}
	want, err := Workload(m)
	if err != nil {
		t.Fatal(err)
	}
	m.Policy, m.Checkpoint, m.State = nil, nil, &bench.State{}
	if have, err := Workload(m); err != nil || have != want {
		t.Errorf("have %s want %s, %v", have, want, err)
	}
}

// TestDigestOfAnyForm writes one manifest in many ways: the order of fields, the
// spacing, quotes around names and comments are not part of it.
func TestDigestOfAnyForm(t *testing.T) {
	dir := repository(t, plainModule)
	loaded, err := Load(Options{Path: filepath.Join(dir, "locks")})
	if err != nil {
		t.Fatal(err)
	}
	workload, err := Workload(loaded.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	var value map[string]any
	if err := json.Unmarshal(loaded.JSON, &value); err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(r *rapid.T) {
		text := "package form\n\nimport \"" + schemasImport + "\"\n\nbench.#Manifest & " + anyForm(r, value) + "\n"
		write(t, dir, "form/form.cue", text)
		have, err := Load(Options{Path: filepath.Join(dir, "form")})
		if err != nil {
			r.Fatalf("%v\n%s", err, text)
		}
		if have.Digest != loaded.Digest {
			r.Fatalf("the digest changed with the form:\n%s", text)
		}
		if w, err := Workload(have.Manifest); err != nil || w != workload {
			r.Fatalf("the workload digest changed with the form: %v\n%s", err, text)
		}
	})
}

const schemasImport = "github.com/drumsbench/drumsbench/schemas/bench"

// anyForm writes a JSON value as CUE in one of its many forms.
func anyForm(r *rapid.T, v any) string {
	space := func() string {
		return rapid.SampledFrom([]string{"", " ", "\t", "\n", "\n// a word\n"}).Draw(r, "space")
	}
	switch v := v.(type) {
	case map[string]any:
		if len(v) == 0 {
			return "{" + strings.TrimSpace(space()) + "\n}"
		}
		names := rapid.Permutation(slices.Sorted(maps.Keys(v))).Draw(r, "order")
		var b strings.Builder
		for _, name := range names {
			label := name
			if rapid.Bool().Draw(r, "quoted") {
				label = fmt.Sprintf("%q", name)
			}
			fmt.Fprintf(&b, "%s%s: %s,%s", space(), label, anyForm(r, v[name]), space())
		}
		return "{\n" + b.String() + "\n}"
	case []any:
		var elements []string
		for _, e := range v {
			elements = append(elements, anyForm(r, e))
		}
		return "[" + strings.Join(elements, ",") + "]"
	default:
		data, err := json.Marshal(v)
		if err != nil {
			r.Fatal(err)
		}
		return string(data)
	}
}
