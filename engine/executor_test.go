package engine

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory keeps receipts and evidence.
type memory struct {
	mu       sync.Mutex
	receipts []bench.Receipt
	fail     string // event or step whose receipt cannot be written
	evidence map[string]string
	noStore  bool
}

func (m *memory) Append(r bench.Receipt) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != "" && (r.Event == m.fail || r.Step == m.fail) {
		return errors.New("no space left")
	}
	m.receipts = append(m.receipts, r)
	return nil
}

func (m *memory) Put(name string, data []byte) (bench.Evidence, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.noStore {
		return bench.Evidence{}, errors.New("no space left")
	}
	if m.evidence == nil {
		m.evidence = map[string]string{}
	}
	m.evidence[name] = string(data)
	return bench.Evidence{Name: name, Sha256: canonical.Sum(data), Size: int64(len(data))}, nil
}

func (m *memory) Path(e bench.Evidence) string { return e.Name }

func (m *memory) step(id string) bench.Receipt {
	for _, r := range m.receipts {
		if r.Step == id {
			return r
		}
	}
	return bench.Receipt{}
}

// events keeps what was told.
type events struct{ all []Event }

func (e *events) Event(ev Event) { e.all = append(e.all, ev) }

// script is a plan under construction whose steps are functions.
type script struct {
	*Builder
	t        testing.TB
	bindings Bindings
	sink     *memory
	events   *events
}

func newScript(t testing.TB) *script {
	return &script{NewBuilder(), t, Bindings{}, &memory{}, &events{}}
}

// bind adds a step with a function of its own.
func bind[T any](s *script, spec StepSpec, f func(ctx context.Context, x *Exec) (T, error), in ...Input) Promise[T] {
	spec.Kind = "kind of " + spec.ID
	s.bindings.Add(Bind(spec.Kind, func(ctx context.Context, x *Exec, _ struct{}) (T, error) { return f(ctx, x) }))
	return Add[T](s.Builder, spec, in...)
}

func (s *script) executor() *Executor {
	s.t.Helper()
	p, err := s.Build(noWorkload, "restore")
	if err != nil {
		s.t.Fatal(err)
	}
	return &Executor{Plan: p, Bindings: s.bindings, Workspace: &Workspace{Evidence: s.sink}, Sink: s.sink, Progress: s.events, Parallel: 4, Grace: 30 * time.Millisecond}
}

func (s *script) run(ctx context.Context) Result {
	s.t.Helper()
	r, err := s.executor().Run(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func verdicts(r Result) map[string]bench.Verdict {
	m := map[string]bench.Verdict{}
	for _, o := range r.Outcomes {
		m[o.Step] = o.Verdict
	}
	return m
}

func outcomeOf(t *testing.T, r Result, id string) bench.StepOutcome {
	t.Helper()
	i := slices.IndexFunc(r.Outcomes, func(o bench.StepOutcome) bool { return o.Step == id })
	if i < 0 {
		t.Fatalf("no outcome for %s", id)
	}
	return r.Outcomes[i]
}

func ok[T any](v T) func(context.Context, *Exec) (T, error) {
	return func(context.Context, *Exec) (T, error) { return v, nil }
}

func failing[T any](err error) func(context.Context, *Exec) (T, error) {
	return func(context.Context, *Exec) (T, error) { var zero T; return zero, err }
}

func judging(v bench.Verdict) func(context.Context, *Exec) (int, error) {
	return func(_ context.Context, x *Exec) (int, error) {
		j := Judgement{}
		j.Add(v, "subject", "text")
		x.Judge(j)
		return 1, nil
	}
}

func release(id string) StepSpec {
	s := spec(id)
	s.Release = true
	return s
}

func TestValuesGoFromStepToStep(t *testing.T) {
	s := newScript(t)
	two := bind(s, spec("two"), ok(Pair[int, string]{7, "seven"}))
	absent := Promise[int]{}
	bind(s, spec("end"), func(_ context.Context, x *Exec) (bool, error) {
		pair, n, text, none := In[Pair[int, string]](x, 0), In[int](x, 1), In[string](x, 2), In[int](x, 3)
		if pair.A != 7 || n != 7 || text != "seven" || none != 0 {
			return false, fmt.Errorf("got %v %v %v %v", pair, n, text, none)
		}
		return true, nil
	}, After(two), Read(two), Read(First(two)), Read(Second(two)), Read(absent))
	if r := s.run(context.Background()); r.Verdict != RunPassed || r.Reason != "" {
		t.Errorf("%s: %s", r.Verdict, r.Reason)
	}
}

// How each way to end decides the step and who depends on it.
func TestVerdicts(t *testing.T) {
	refused := &Error{Op: "dump slot", Err: ErrRefused, Hint: "close it", Log: "/log", Findings: []bench.Finding{{Verdict: Fail, Subject: "lock", Text: "held"}}}
	for _, c := range []struct {
		name     string
		f        func(context.Context, *Exec) (int, error)
		optional bool
		verdict  bench.Verdict
		stops    bool
		run      bench.RunVerdict
		text     string
	}{
		{"pass", ok(1), false, Pass, false, RunPassed, ""},
		{"review", judging(Review), false, Review, false, RunReview, "text"},
		{"not applicable", judging(NotApplicable), true, NotApplicable, false, RunPassed, ""},
		{"not applicable, nobody said so", judging(NotApplicable), false, NotApplicable, true, RunBlocked, "text"},
		{"judged unknown", judging(VerdictUnknown), false, VerdictUnknown, true, RunBlocked, "text"},
		{"judged fail", judging(Fail), false, Fail, true, RunFailed, "text"},
		{"judged by a word that nobody knows", judging("passed"), false, Fail, true, RunFailed, ""},
		{"error", failing[int](errors.New("broke")), false, Fail, true, RunFailed, "broke"},
		{"refused", failing[int](refused), false, Fail, true, RunFailed, "held"},
		{"unknown", failing[int](fmt.Errorf("read: %w", ErrUnknown)), false, VerdictUnknown, true, RunBlocked, "read"},
		{"dead", failing[int](fmt.Errorf("call: %w", ErrDead)), false, Fail, true, RunFailed, "slot is dead"},
		{"panic", func(context.Context, *Exec) (int, error) { panic("ouch") }, false, Fail, true, RunFailed, "panic: ouch"},
		{"goroutine ended", func(context.Context, *Exec) (int, error) { runtime.Goexit(); return 0, nil }, false, Fail, true, RunFailed, "ended its goroutine"},
		{"no such input", func(_ context.Context, x *Exec) (int, error) { return In[int](x, 0), nil }, false, Fail, true, RunFailed, "asks for input 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScript(t)
			sp := spec("step")
			sp.Optional = c.optional
			p := bind(s, sp, c.f)
			q := bind(s, spec("reads"), ok(1), Read(p))
			bind(s, spec("after"), ok(1), After(q))
			bind(s, spec("beside"), ok(1))
			bind(s, release("release"), ok(1), Read(q))
			r := s.run(context.Background())
			rest := Pass
			if c.stops {
				rest = NotRun
			}
			want := map[string]bench.Verdict{"step": c.verdict, "reads": rest, "after": rest, "beside": Pass, "release": Pass}
			if got := verdicts(r); !reflect.DeepEqual(got, want) {
				t.Errorf("verdicts %v, want %v", got, want)
			}
			if r.Verdict != c.run || !strings.Contains(r.Reason, c.text) {
				t.Errorf("run %s (%s), want %s (…%s…)", r.Verdict, r.Reason, c.run, c.text)
			}
			if c.stops {
				if f := outcomeOf(t, r, "after").Findings; len(f) != 1 || f[0].Subject != "step" {
					t.Errorf("the cause of after is not named: %v", f)
				}
			}
		})
	}
}

func TestFailureInTheReceipt(t *testing.T) {
	s := newScript(t)
	bind(s, spec("refused"), failing[int](fmt.Errorf("wrapped: %w", &Error{Op: "dump slot", Err: ErrRefused, Hint: "close it", Log: "/log", Findings: []bench.Finding{{Verdict: Review, Subject: "s", Text: "t"}}})))
	bind(s, spec("panics"), func(context.Context, *Exec) (int, error) { panic("ouch") })
	bind(s, spec("nothing"), func(context.Context, *Exec) (Slot, error) { return nil, nil })
	bind(s, spec("half"), func(context.Context, *Exec) (Pair[int, Place], error) { return Pair[int, Place]{}, nil })
	r := s.run(context.Background())
	want := &bench.Failure{Op: "dump slot", Text: "wrapped: dump slot: refused", Hint: "close it", Log: "/log", Cause: CauseRefused}
	if got := s.sink.step("refused").Error; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := s.sink.step("refused").Findings; len(got) != 1 || got[0].Subject != "s" {
		t.Errorf("findings %v", got)
	}
	if e := s.sink.step("panics").Evidence; len(e) != 1 || !strings.Contains(s.sink.evidence["panic.txt"], "TestFailureInTheReceipt") {
		t.Errorf("no stack: %v", e)
	}
	if e := outcomeOf(t, r, "nothing").Error; e == nil || !strings.Contains(e.Text, "no Slot") {
		t.Errorf("a missing slot passed: %v", e)
	}
	if e := outcomeOf(t, r, "half").Error; e == nil || !strings.Contains(e.Text, "no Place") {
		t.Errorf("a missing place passed: %v", e)
	}
}

// What a step found is in its receipt, in the order in which it was found.
func TestReceipts(t *testing.T) {
	s := newScript(t)
	p := bind(s, spec("one"), func(ctx context.Context, x *Exec) (int, error) {
		end := StartSpan(ctx, "part")
		x.Fact(bench.Fact{Name: "fact", Known: true, Value: "v"})
		if err := x.Evidence("log", []byte("text")); err != nil {
			return 0, err
		}
		end()
		x.Judge(Judgement{Facts: []bench.Fact{{Name: "second"}}, Evidence: map[string][]byte{"b": {2}, "a": {1}}})
		return 1, nil
	})
	bind(s, spec("two"), ok(2), After(p))
	e := s.executor()
	e.Digests = map[string]bench.SHA256{"manifest": noWorkload}
	if _, err := e.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, r := range s.sink.receipts {
		order = append(order, r.Event+" "+r.Step)
	}
	if want := []string{"run_start ", "step one", "step two", "run_end "}; !reflect.DeepEqual(order, want) {
		t.Errorf("receipts %q, want %q", order, want)
	}
	if d := s.sink.receipts[0].Digests; d["plan"] != e.Plan.Digest() || d["workload"] != noWorkload || d["manifest"] != noWorkload || len(e.Digests) != 1 {
		t.Errorf("digests %v", d)
	}
	r := s.sink.step("one")
	if len(r.Facts) != 2 || r.Facts[1].Name != "second" || len(r.Spans) != 1 || r.Spans[0].Name != "part" {
		t.Errorf("facts %v spans %v", r.Facts, r.Spans)
	}
	if len(r.Evidence) != 3 || r.Evidence[0].Name != "log" || r.Evidence[1].Name != "a" || r.Evidence[2].Name != "b" {
		t.Errorf("evidence %v", r.Evidence)
	}
	if last := s.sink.receipts[3]; last.Outcome != RunPassed {
		t.Errorf("outcome %s", last.Outcome)
	}
}

func TestReleaseGetsWhatThereIs(t *testing.T) {
	s := newScript(t)
	type thing struct{ name string }
	half := bind(s, spec("half"), func(context.Context, *Exec) (*thing, error) { return &thing{"left behind"}, errors.New("broke") })
	never := bind(s, spec("never"), ok(&thing{"never"}), Read(half))
	typedNil := bind(s, spec("typed nil"), func(context.Context, *Exec) (Slot, error) { var none *deadSlot; return none, errors.New("broke") })
	bind(s, release("release"), func(ctx context.Context, x *Exec) (int, error) {
		if v := In[*thing](x, 0); v == nil || v.name != "left behind" {
			return 0, fmt.Errorf("what the failed step returned: %v", v)
		}
		if v := In[*thing](x, 1); v != nil {
			return 0, fmt.Errorf("what was never made: %v", v)
		}
		if v := In[Slot](x, 2); v != nil {
			return 0, fmt.Errorf("a nil pointer came as a slot: %v", v)
		}
		return 0, ctx.Err()
	}, Move(half), Move(never), Move(typedNil))
	r := s.run(context.Background())
	if o := outcomeOf(t, r, "release"); o.Verdict != Pass {
		t.Errorf("release: %s %v", o.Verdict, o.Error)
	}
}

type deadSlot struct{ Slot }

func TestDeadline(t *testing.T) {
	t.Run("heeded", func(t *testing.T) {
		s := newScript(t)
		sp := spec("slow")
		sp.Deadline = 10 * time.Millisecond
		var hook atomic.Int32
		bind(s, sp, func(ctx context.Context, x *Exec) (int, error) {
			x.OnCancel(func() { hook.Add(1) })
			x.OnCancel(func() { hook.Add(100) })()
			x.OnCancel(func() { panic("in a hook") })
			<-ctx.Done()
			for hook.Load() == 0 {
				runtime.Gosched()
			}
			return 0, &Error{Op: "restore checkpoint", Err: ctx.Err(), Log: "/log"}
		})
		r := s.run(context.Background())
		o := outcomeOf(t, r, "slow")
		if o.Verdict != Fail || o.Error == nil || o.Error.Cause != CauseDeadline || o.Error.Log != "/log" || !strings.Contains(o.Error.Text, "10ms") {
			t.Errorf("%s %+v", o.Verdict, o.Error)
		}
		if hook.Load() != 1 {
			t.Errorf("hooks: %d", hook.Load())
		}
	})
	t.Run("success after the deadline is none", func(t *testing.T) {
		s := newScript(t)
		sp := spec("slow")
		sp.Deadline = 5 * time.Millisecond
		bind(s, sp, func(ctx context.Context, x *Exec) (int, error) { <-ctx.Done(); return 1, nil })
		if o := outcomeOf(t, s.run(context.Background()), "slow"); o.Verdict != Fail || o.Error.Cause != CauseDeadline {
			t.Errorf("%s %+v", o.Verdict, o.Error)
		}
	})
	t.Run("not heeded", func(t *testing.T) {
		s := newScript(t)
		sp := spec("deaf")
		sp.Deadline = 5 * time.Millisecond
		let, gone := make(chan struct{}), make(chan struct{})
		var undone atomic.Bool
		p := bind(s, sp, func(ctx context.Context, x *Exec) (int, error) {
			defer close(gone)
			x.OnRelease(func(context.Context) error { undone.Store(true); return nil })
			<-let
			x.Fact(bench.Fact{Name: "too late"})
			x.Judge(Judgement{})
			return 1, nil
		})
		q := bind(s, spec("next"), func(ctx context.Context, x *Exec) (int, error) { time.Sleep(60 * time.Millisecond); return 1, nil })
		bind(s, spec("never"), ok(1), After(q))
		bind(s, release("release"), ok(1), Read(p))
		r := s.run(context.Background())
		close(let)
		<-gone
		want := map[string]bench.Verdict{"deaf": Fail, "next": Pass, "never": NotRun, "release": Pass}
		if got := verdicts(r); !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if o := outcomeOf(t, r, "deaf"); o.Error.Cause != CauseDeadline || !strings.Contains(o.Error.Text, "still runs") {
			t.Errorf("%+v", o.Error)
		}
		if r.Verdict != RunFailed || !strings.Contains(r.Reason, "deaf does not heed") || !undone.Load() {
			t.Errorf("%s %s undone %v", r.Verdict, r.Reason, undone.Load())
		}
	})
}

func TestUndo(t *testing.T) {
	s := newScript(t)
	var order []string
	push := func(x *Exec, name string, err error) func() {
		return x.OnRelease(func(ctx context.Context) error {
			if ctx.Err() != nil {
				return errors.New("cancelled context")
			}
			if _, bounded := ctx.Deadline(); !bounded {
				return errors.New("no deadline")
			}
			order = append(order, name)
			return err
		})
	}
	p := bind(s, spec("one"), func(ctx context.Context, x *Exec) (int, error) {
		push(x, "a", nil)
		forgotten := push(x, "forgotten", nil)
		push(x, "b", errors.New("busy"))
		forgotten()
		return 0, nil
	})
	bind(s, spec("two"), func(ctx context.Context, x *Exec) (int, error) {
		x.OnRelease(func(context.Context) error { panic("in undo") })
		push(x, "c", nil)
		push(x, "forgotten too", nil)()
		return 0, nil
	}, After(p))
	bind(s, release("release"), func(context.Context, *Exec) (int, error) { order = append(order, "release"); return 0, nil }, After(p))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r := s.run(ctx)
	if want := []string{"release", "c", "b", "a"}; !reflect.DeepEqual(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	if r.Verdict != RunFailed || len(r.Findings) != 2 || !strings.Contains(r.Findings[0].Text, "in undo") || !strings.Contains(r.Findings[1].Text, "step one made: busy") {
		t.Errorf("%s %+v", r.Verdict, r.Findings)
	}
	if last := s.sink.receipts[len(s.sink.receipts)-1]; last.Event != "run_end" || last.Outcome != RunFailed || len(last.Findings) != 2 {
		t.Errorf("%+v", last)
	}
}

func TestUndoThatHangsIsLeftBehind(t *testing.T) {
	s := newScript(t)
	let, gone := make(chan struct{}), make(chan struct{})
	ran := false
	bind(s, spec("one"), func(ctx context.Context, x *Exec) (int, error) {
		x.OnRelease(func(context.Context) error { ran = true; return nil })
		x.OnRelease(func(context.Context) error { <-let; close(gone); return nil })
		return 0, nil
	})
	e := s.executor()
	e.UndoDeadline = 5 * time.Millisecond
	r, err := e.Run(context.Background())
	close(let)
	<-gone
	if err != nil || r.Verdict != RunFailed || !strings.Contains(r.Reason, "still runs") || !ran {
		t.Errorf("%v %s %s ran %v", err, r.Verdict, r.Reason, ran)
	}
}

func TestInterrupt(t *testing.T) {
	for _, c := range []struct {
		name    string
		err     func(ctx context.Context) error
		verdict bench.Verdict
		run     bench.RunVerdict
	}{
		{"step gives its context's error", func(ctx context.Context) error { return fmt.Errorf("restore: %w", ctx.Err()) }, VerdictUnknown, RunBlocked},
		{"step was done", func(context.Context) error { return nil }, Pass, RunBlocked},
		{"step fails", func(context.Context) error { return errors.New("broke") }, Fail, RunFailed},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScript(t)
			ctx, cancel := context.WithCancel(context.Background())
			p := bind(s, spec("running"), func(ctx context.Context, x *Exec) (int, error) {
				cancel()
				<-ctx.Done()
				return 0, c.err(ctx)
			})
			bind(s, spec("next"), ok(1), Read(p))
			bind(s, release("release"), func(ctx context.Context, x *Exec) (int, error) { return 0, ctx.Err() }, Read(p))
			r := s.run(ctx)
			want := map[string]bench.Verdict{"running": c.verdict, "next": NotRun, "release": Pass}
			if got := verdicts(r); !reflect.DeepEqual(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
			if r.Verdict != c.run || r.Reason != "interrupted" {
				t.Errorf("%s %s", r.Verdict, r.Reason)
			}
		})
	}
	t.Run("before the start", func(t *testing.T) {
		s := newScript(t)
		bind(s, spec("a"), ok(1))
		bind(s, release("release"), ok(1))
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if r := s.run(ctx); r.Verdict != RunBlocked || verdicts(r)["a"] != NotRun || verdicts(r)["release"] != Pass {
			t.Errorf("%s %v", r.Verdict, verdicts(r))
		}
	})
}

// Nothing of the executor's or of other steps' happens in a window.
func TestWindow(t *testing.T) {
	s := newScript(t)
	var mu sync.Mutex
	var log []string
	note := func(text string) {
		mu.Lock()
		defer mu.Unlock()
		log = append(log, text)
	}
	slow := func(name string, d time.Duration) func(context.Context, *Exec) (int, error) {
		return func(context.Context, *Exec) (int, error) {
			note("+" + name)
			time.Sleep(d)
			note("-" + name)
			return 1, nil
		}
	}
	need := bind(s, spec("need"), slow("need", time.Millisecond))
	bind(s, spec("long"), slow("long", 20*time.Millisecond))
	measured := func(name string) func(context.Context, *Exec) (int, error) {
		return func(_ context.Context, x *Exec) (int, error) {
			note("+" + name)
			if err := x.Evidence(name, []byte("data")); err != nil {
				return 0, err
			}
			time.Sleep(5 * time.Millisecond)
			if n := len(s.sink.evidence) + len(s.events.all); n != int(eventsBefore.Load()) {
				return 0, fmt.Errorf("%d things were written inside the window", n)
			}
			note("-" + name)
			return 1, nil
		}
	}
	one := bind(s, inWindow("one", "w"), measured("one"), Read(need))
	bind(s, inWindow("two", "w"), measured("two"), Read(need))
	bind(s, spec("other"), slow("other", time.Millisecond), Read(need))
	bind(s, spec("next"), slow("next", time.Millisecond), Read(one))
	bind(s, release("release"), slow("release", 0), After(one))
	e := s.executor()
	e.Progress = countAtOpen{s.events}
	r, err := e.Run(context.Background())
	if err != nil || r.Verdict != RunPassed {
		t.Fatalf("%v %s %s", err, r.Verdict, r.Reason)
	}
	text := strings.Join(log, " ")
	a, z := min(strings.Index(text, "+one"), strings.Index(text, "+two")), max(strings.Index(text, "-one"), strings.Index(text, "-two"))
	for _, before := range []string{"-need", "-long"} {
		if strings.Index(text, before) > a {
			t.Errorf("%s is inside the window: %s", before, text)
		}
	}
	for _, after := range []string{"+other", "+next", "+release"} {
		if i := strings.Index(text, after); i > a && i < z {
			t.Errorf("%s is inside the window: %s", after, text)
		}
	}
	if strings.Index(text, "+two") > strings.Index(text, "-one") && strings.Index(text, "+one") > strings.Index(text, "-two") {
		t.Errorf("the window's steps did not run at once: %s", text)
	}
	var told []string
	for _, ev := range s.events.all {
		if ev.Window != "" || ev.Step.Window != "" {
			told = append(told, string(ev.Kind)+" "+ev.Window+ev.Step.Id)
		}
	}
	want := []string{"window_opened w", "window_closed w", "step_started one", "step_started two"}
	if len(told) != 6 || !reflect.DeepEqual(told[:4], want) {
		t.Errorf("told %q", told)
	}
	if s.sink.evidence["one"] != "data" || len(s.sink.step("one").Evidence) != 1 {
		t.Error("evidence of the window is not in the receipt")
	}
}

// eventsBefore is what was written when the window opened.
var eventsBefore atomic.Int32

type countAtOpen struct{ *events }

func (c countAtOpen) Event(e Event) {
	c.events.Event(e)
	if e.Kind == WindowOpened {
		eventsBefore.Store(int32(len(c.events.all)))
	}
}

func TestWindowClosesWhenItsStepsAreNotRun(t *testing.T) {
	s := newScript(t)
	broken := bind(s, spec("broken"), failing[int](errors.New("broke")))
	good := bind(s, spec("good"), ok(1))
	one := bind(s, inWindow("one", "w"), ok(1), Read(broken))
	two := bind(s, inWindow("two", "w"), failing[int](errors.New("broke too")), Read(good))
	bind(s, inWindow("three", "w"), ok(1), Read(two))
	bind(s, inWindow("dead", "v"), ok(1), Read(one))
	bind(s, spec("last"), ok(1), After(good))
	want := map[string]bench.Verdict{"broken": Fail, "good": Pass, "one": NotRun, "two": Fail, "three": NotRun, "dead": NotRun, "last": Pass}
	if got := verdicts(s.run(context.Background())); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, e := range s.events.all {
		if e.Window == "v" {
			t.Error("a window without a step to run was opened")
		}
	}
}

func TestEvidenceOfAWindowThatCannotBeStoredFails(t *testing.T) {
	s := newScript(t)
	s.sink.noStore = true
	bind(s, inWindow("one", "w"), func(_ context.Context, x *Exec) (int, error) { return 1, x.Evidence("log", nil) })
	r := s.run(context.Background())
	if r.Verdict != RunFailed || s.sink.step("one").Verdict != Fail || !strings.Contains(r.Reason, "no space left") {
		t.Errorf("%s %s", r.Verdict, r.Reason)
	}
}

func TestReceiptThatCannotBeWrittenStopsTheRun(t *testing.T) {
	for _, where := range []string{"run_start", "one", "run_end"} {
		s := newScript(t)
		s.sink.fail = where
		p := bind(s, spec("one"), ok(1))
		ran := false
		bind(s, spec("two"), func(context.Context, *Exec) (int, error) { ran = true; return 1, nil }, After(p))
		r, err := s.executor().Run(context.Background())
		if err == nil || r.Verdict == RunPassed || ran != (where == "run_end") {
			t.Errorf("%s: %v %s, next step ran: %v", where, err, r.Verdict, ran)
		}
	}
}

func TestPlanWithoutStepsIsBlocked(t *testing.T) {
	if r := newScript(t).run(context.Background()); r.Verdict != RunBlocked || r.Reason == "" {
		t.Errorf("%s %q", r.Verdict, r.Reason)
	}
}

// Ready steps start in the order of the plan, no more than may run at once.
func TestOrderAndBound(t *testing.T) {
	s := newScript(t)
	var now, most atomic.Int32
	for i := range 20 {
		bind(s, spec(fmt.Sprint("s", i)), func(context.Context, *Exec) (int, error) {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(time.Millisecond)
			now.Add(-1)
			return 1, nil
		})
	}
	e := s.executor()
	e.Parallel = 3
	if _, err := e.Run(context.Background()); err != nil || most.Load() > 3 || most.Load() < 2 {
		t.Errorf("%v, %d at once", err, most.Load())
	}
	var started []string
	for _, ev := range s.events.all {
		if ev.Kind == StepStarted {
			started = append(started, ev.Step.Id)
		}
	}
	if !slices.IsSortedFunc(started, func(a, b string) int { return len(a) - len(b) }) || started[0] != "s0" || started[19] != "s19" {
		t.Errorf("order %v", started)
	}
}

// A release step of what everything stands on takes the rest away first.
func TestUnwind(t *testing.T) {
	s := newScript(t)
	var order []string
	p := bind(s, spec("make"), func(_ context.Context, x *Exec) (int, error) {
		x.OnRelease(func(context.Context) error { order = append(order, "root"); return nil })
		x.OnRelease(func(context.Context) error { order = append(order, "slot"); return errors.New("busy") })
		return 1, errors.New("broke")
	})
	bind(s, release("release"), func(ctx context.Context, x *Exec) (int, error) {
		err := x.Unwind(ctx)
		x.OnRelease(func(context.Context) error { order = append(order, "late"); return nil })
		return 1, err
	}, After(p))
	r := s.run(context.Background())
	if want := []string{"slot", "root", "late"}; !reflect.DeepEqual(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	if o := outcomeOf(t, r, "release"); o.Verdict != Fail || !strings.Contains(o.Error.Text, "step make made: busy") || len(r.Findings) != 0 {
		t.Errorf("%s %+v, run %v", o.Verdict, o.Error, r.Findings)
	}
}

// The rollout of a step is the plan's own: callers count on with their variable.
func TestRolloutIsCopied(t *testing.T) {
	b, i := NewBuilder(), int64(3)
	sp := spec("a")
	sp.Rollout = &i
	Add[int](b, sp)
	i = 9
	p, err := b.Build(noWorkload, "restore")
	if err != nil || *p.Steps[0].Rollout != 3 {
		t.Errorf("%v %v", err, p)
	}
}
