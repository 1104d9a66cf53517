package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

const noWorkload = bench.SHA256("0000000000000000000000000000000000000000000000000000000000000000")

func spec(id string) StepSpec { return StepSpec{ID: id, Kind: "k", Deadline: time.Second} }

func inWindow(id, name string) StepSpec {
	s := spec(id)
	s.Window = name
	return s
}

// Each mistake is refused with the names of the steps that it is about.
func TestBuildRefuses(t *testing.T) {
	slot := func(b *Builder) Promise[Slot] { return Add[Slot](b, spec("provision")) }
	cases := []struct {
		name string
		wire func(b *Builder)
		want []string
	}{
		{"id taken", func(b *Builder) { Add[int](b, spec("a")); Add[int](b, spec("a")) }, []string{"step a", "taken"}},
		{"id empty", func(b *Builder) { Add[int](b, spec("")) }, []string{"step 0", "id is empty"}},
		{"kind empty", func(b *Builder) { Add[int](b, StepSpec{ID: "a", Deadline: 1}) }, []string{"step a", "kind"}},
		{"no deadline", func(b *Builder) { Add[int](b, StepSpec{ID: "a", Kind: "k"}) }, []string{"step a", "deadline"}},
		{"step of another plan", func(b *Builder) {
			Add[int](b, spec("here"), Read(Add[int](NewBuilder(), spec("there"))))
		}, []string{"step here", "there", "another plan"}},
		{"release in a window", func(b *Builder) {
			s := inWindow("a", "w")
			s.Release = true
			Add[int](b, s)
		}, []string{"step a", "window w"}},
		{"moved twice", func(b *Builder) {
			p := slot(b)
			first := Add[int](b, spec("one"), Move(p))
			Add[int](b, spec("two"), Move(p), After(first))
		}, []string{"Slot of provision", "moved twice", "one", "two"}},
		{"moved twice, once as a place", func(b *Builder) {
			p := slot(b)
			first := Add[int](b, spec("one"), Move(AsPlace(p)))
			Add[int](b, spec("two"), Move(p), After(first))
		}, []string{"moved twice", "one", "two"}},
		{"read after the move", func(b *Builder) {
			p := slot(b)
			gone := Add[int](b, spec("mover"), Move(p))
			Add[int](b, spec("reader"), Read(p), After(gone))
		}, []string{"Slot of provision", "reader", "not ordered before", "mover"}},
		{"read beside the move", func(b *Builder) {
			p := slot(b)
			Add[int](b, spec("reader"), Read(p))
			Add[int](b, spec("mover"), Move(p))
		}, []string{"reader", "not ordered before", "mover"}},
		{"used by two at once", func(b *Builder) {
			p := slot(b)
			Add[int](b, spec("one"), Use(p))
			Add[int](b, spec("two"), Use(p))
		}, []string{"one (uses it)", "two (uses it)", "not ordered"}},
		{"read while used", func(b *Builder) {
			p := slot(b)
			Add[int](b, spec("user"), Use(p))
			Add[int](b, spec("reader"), Read(p))
		}, []string{"user (uses it)", "reader (reads it)", "not ordered"}},
		{"used while read", func(b *Builder) {
			p := slot(b)
			r := Add[int](b, spec("reader"), Read(p))
			u := Add[int](b, spec("user"), Use(p), After(r))
			Add[int](b, spec("late"), Read(p), After(r))
			Add[int](b, spec("mover"), Move(p), After(u))
		}, []string{"user (uses it)", "late (reads it)", "late reads it and is not ordered before step mover"}},
		{"a part is moved while the pair is read", func(b *Builder) {
			p := Add[Pair[Checkpoint, Place]](b, spec("dump"))
			Add[int](b, spec("reader"), Read(p))
			Add[int](b, spec("mover"), Move(Second(p)))
		}, []string{"Place of dump", "reader", "mover"}},
		{"taken twice by one step", func(b *Builder) {
			p := slot(b)
			Add[int](b, spec("greedy"), Read(p), Move(AsPlace(p)))
		}, []string{"step greedy", "twice"}},
		{"both parts alike", func(b *Builder) {
			Add[int](b, spec("taker"), Read(First(Add[Pair[int, int]](b, spec("giver")))))
		}, []string{"step taker", "giver", "both parts of Pair[int,int] are a int"}},
		{"both parts a place", func(b *Builder) {
			Add[int](b, spec("taker"), Move(AsPlace(First(Add[Pair[Slot, Place]](b, spec("giver"))))))
		}, []string{"step taker", "giver", "both parts"}},
		{"pair in a pair", func(b *Builder) {
			Add[int](b, spec("taker"), Read(First(First(Add[Pair[Pair[int, string], bool]](b, spec("giver"))))))
		}, []string{"giver", "pair within a pair"}},
		{"absent before present", func(b *Builder) {
			Add[int](b, spec("taker"), Read(Promise[Slot]{}), Read(slot(b)))
		}, []string{"step taker", "absent Slot", "provision"}},
		{"window waits for itself", func(b *Builder) {
			a := Add[int](b, inWindow("a", "w"))
			mid := Add[int](b, spec("mid"), After(a))
			Add[int](b, inWindow("z", "w"), After(mid))
		}, []string{"cycle", "window w waits", "z needs mid", "mid needs a"}},
		{"windows wait for each other", func(b *Builder) {
			a1, b1 := Add[int](b, inWindow("a1", "a")), Add[int](b, inWindow("b1", "b"))
			Add[int](b, inWindow("a2", "a"), After(b1))
			Add[int](b, inWindow("b2", "b"), After(a1))
		}, []string{"cycle", "a2 needs b1", "b2 needs a1"}},
		{"params", func(b *Builder) {
			s := spec("a")
			s.Params = func() {}
			Add[int](b, s)
		}, []string{"step a", "params"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := NewBuilder()
			c.wire(b)
			_, err := b.Build(noWorkload, "restore")
			if err == nil {
				t.Fatal("built")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error does not say %q:\n%v", want, err)
				}
			}
		})
	}
}

// The wiring of a real rollout is accepted, and its data says everything.
func TestBuildAccepts(t *testing.T) {
	p := rolloutPlan(t, 2)
	var got []string
	for _, s := range p.Steps {
		line := s.Id
		for _, e := range s.Needs {
			line += " " + e.Mode + "(" + e.Step
			if e.Type != "" {
				line += ":" + e.Type
			}
			line += ")"
		}
		got = append(got, line)
	}
	want := []string{
		"mount", "provision read(mount:Root)", "readiness use(provision:Slot)",
		"dump move(provision:Slot) after(readiness)",
		"restore-0 read(mount:Root) read(dump:Checkpoint) move(dump:Place)",
		"gate-0 read(restore-0:Stopped)",
		"resume-0 move(restore-0:Stopped) after(gate-0)",
		"act-0 use(resume-0:Slot)",
		"restore-1 read(mount:Root) read(dump:Checkpoint) move(resume-0:Place) after(act-0)",
		"gate-1 read(restore-1:Stopped)",
		"resume-1 move(restore-1:Stopped) after(gate-1)",
		"act-1 use(resume-1:Slot)",
		"release-slot move(resume-1:Place) after(act-1)",
		"release-root move(mount:Root) after(release-slot)",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if p.Steps[0].Deadline != "90s" || p.Steps[0].Params != `{"a":1,"b":2}` {
		t.Errorf("mount: deadline %s params %s", p.Steps[0].Deadline, p.Steps[0].Params)
	}
	var back bench.Plan
	if err := json.Unmarshal(p.JSON(), &back); err != nil || !reflect.DeepEqual(back, p.Plan) {
		t.Errorf("JSON does not give the plan back: %v", err)
	}
	if again := rolloutPlan(t, 2); again.Digest() != p.Digest() {
		t.Error("the same wiring gives another digest")
	}
	if other := rolloutPlan(t, 3); other.Digest() == p.Digest() {
		t.Error("another wiring gives the same digest")
	}
}

func rolloutPlan(t testing.TB, rollouts int) *Plan {
	t.Helper()
	b := NewBuilder()
	root := Add[Root](b, StepSpec{ID: "mount", Kind: "mount", Deadline: 90 * time.Second, Params: map[string]int{"b": 2, "a": 1}})
	slot := Add[Slot](b, spec("provision"), Read(root))
	ok := Add[Ready](b, spec("readiness"), Use(slot))
	dump := Add[Pair[Checkpoint, Place]](b, spec("dump"), Move(slot), After(ok))
	place, last := Second(dump), Promise[Acted]{}
	for i := range rollouts {
		stopped := Add[Stopped](b, spec(fmt.Sprint("restore-", i)), Read(root), Read(First(dump)), Move(place), After(last))
		gate := Add[Judged](b, spec(fmt.Sprint("gate-", i)), Read(stopped))
		slot = Add[Slot](b, spec(fmt.Sprint("resume-", i)), Move(stopped), After(gate))
		last = Add[Acted](b, spec(fmt.Sprint("act-", i)), Use(slot))
		place = AsPlace(slot)
	}
	release := func(id string) StepSpec {
		s := spec(id)
		s.Release = true
		return s
	}
	freed := Add[Released](b, release("release-slot"), Move(place), After(last))
	Add[Released](b, release("release-root"), Move(root), After(freed))
	p, err := b.Build(noWorkload, "restore")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestTypeName(t *testing.T) {
	for want, typ := range map[string]reflect.Type{
		"Slot":                   reflect.TypeFor[Slot](),
		"int":                    reflect.TypeFor[int](),
		"Pair[Checkpoint,Place]": reflect.TypeFor[Pair[Checkpoint, Place]](),
		"*Plan":                  reflect.TypeFor[*bench.Plan](),
		"map[string][]Fact":      reflect.TypeFor[map[string][]bench.Fact](),
	} {
		if typeName(typ) != want {
			t.Errorf("got %s, want %s", typeName(typ), want)
		}
	}
}

func TestFormatDuration(t *testing.T) {
	for d, want := range map[time.Duration]bench.Duration{
		time.Second: "1s", 90 * time.Second: "90s", time.Hour: "1h", 1500 * time.Millisecond: "1500ms",
		250 * time.Microsecond: "0.25ms", 2 * time.Minute: "2m", time.Second + time.Nanosecond: "1000.000001ms", 0: "0ms",
	} {
		if got := FormatDuration(d); got != want {
			t.Errorf("%v: got %s, want %s", d, got, want)
		}
		if back, err := time.ParseDuration(string(FormatDuration(d))); err != nil || back != d {
			t.Errorf("%v: reads back as %v, %v", d, back, err)
		}
	}
}

// Bindings that do not fit the plan are found before anything runs.
func TestBindingsCheck(t *testing.T) {
	b := NewBuilder()
	n := Add[int](b, StepSpec{ID: "one", Kind: "number", Deadline: time.Second, Params: struct{ X int }{1}})
	Add[string](b, StepSpec{ID: "two", Kind: "text", Deadline: time.Second}, Read(n))
	p, err := b.Build(noWorkload, "restore")
	if err != nil {
		t.Fatal(err)
	}
	type none struct{}
	number := Bind("number", func(context.Context, *Exec, struct{ X int }) (int, error) { return 1, nil })
	text := Bind("text", func(context.Context, *Exec, none) (string, error) { return "", nil }, Takes[int]())
	if err := (Bindings{}).Add(number, text).Check(p); err != nil {
		t.Errorf("good bindings: %v", err)
	}
	for name, c := range map[string]struct {
		bindings Bindings
		want     string
	}{
		"missing":    {Bindings{}.Add(number), "step two: no binding for kind text"},
		"output":     {Bindings{}.Add(number, Bind("text", func(context.Context, *Exec, none) (int, error) { return 0, nil })), "gives int, the plan promises string"},
		"input":      {Bindings{}.Add(number, Bind("text", func(context.Context, *Exec, none) (string, error) { return "", nil }, Takes[Slot]())), "takes Slot as input 0, the plan gives int"},
		"inputs":     {Bindings{}.Add(number, Bind("text", func(context.Context, *Exec, none) (string, error) { return "", nil }, Takes[int](), Takes[int]())), "takes 2 inputs, the plan gives 1"},
		"parameters": {Bindings{}.Add(text, Bind("number", func(context.Context, *Exec, none) (int, error) { return 1, nil })), "step one: decode params"},
	} {
		if err := c.bindings.Check(p); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}
