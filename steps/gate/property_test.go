package gate

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/observe"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// unknownTo hands a reading that is unknown, for whatever reason, to each gate,
// with whatever reference and whatever else was read.
func unknownTo(t *rapid.T) map[string]engine.Judgement {
	return map[string]engine.Judgement{
		ToolConfig:       JudgeToolConfig(unreadable[[]string](t)),
		Limits:           JudgeLimits(draw[bench.Resources](t), unreadable[engine.Limits](t)),
		MountContract:    JudgeMountContract(unreadable[[]bench.Mount](t), draw[[]string](t)...),
		Mounts:           JudgeMounts(draw[[]bench.Mount](t), unreadable[[]bench.Mount](t)),
		NetworkUp:        JudgeNetworkUp(unreadable[bench.Network](t)),
		Network:          JudgeNetwork(draw[bench.Network](t), unreadable[bench.Network](t)),
		Enclosure:        JudgeEnclosure(unreadable[[]bench.Finding](t)),
		Cleanup:          JudgeCleanup(unreadable[[]bench.Finding](t)),
		Locks:            JudgeLocks(draw[[]bench.Lock](t), unreadable[[]bench.Lock](t)),
		Processes:        JudgeProcesses(draw[[]bench.Process](t), unreadable[[]bench.Process](t)),
		State:            JudgeState(draw[bench.StateManifest](t), unreadable[bench.StateManifest](t)),
		Live:             JudgeLive(draw[bench.LiveState](t), unreadable[bench.LiveState](t), known1(draw[bench.LiveState](t))),
		Live + " second": JudgeLive(draw[bench.LiveState](t), known1(draw[bench.LiveState](t)), unreadable[bench.LiveState](t)),
		Server:           JudgeServer(draw[bench.SHA256](t), unreadable[bench.SHA256](t)),
		Canary:           JudgeCanary("/canary", draw[string](t), unreadable[string](t)),
		Checkpoint: func() engine.Judgement {
			cp := draw[bench.Checkpoint](t)
			cp.Facts = []bench.Fact{unreadable[string](t).Fact(engine.NetworkPreserved)}
			return JudgeCheckpoint(cp)
		}(),
	}
}

func draw[T any](t *rapid.T) T {
	var v T
	return rapid.Make[T]().Draw(t, typeName(v))
}

func unreadable[T any](t *rapid.T) engine.Reading[T] {
	if rapid.Bool().Draw(t, "never observed") {
		return engine.Reading[T]{}
	}
	return engine.Unknown[T](rapid.String().Draw(t, "reason"), draw[bench.View](t))
}

func TestUnknownNeverPasses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for name, j := range unknownTo(t) {
			if v := j.Verdict(); v == engine.Pass || v == engine.NotApplicable || v == engine.Review {
				t.Errorf("%s: %s on an unknown reading", name, v)
			}
			if v := j.Verdict(); name != Checkpoint && name != Live && name != Live+" second" && v != engine.VerdictUnknown {
				t.Errorf("%s: %s, want unknown", name, v)
			}
		}
	})
}

// What is compared passes exactly where it is equal.
func TestComparisonsPassOnlyOnEqualValues(t *testing.T) {
	t.Run(Mounts, comparison(JudgeMounts, func(m []bench.Mount) string { return text(observe.Normalise(m)) }))
	t.Run(Network, comparison(JudgeNetwork, func(n bench.Network) string {
		return text([]string{sorted(n.Links), sorted(n.Addresses), sorted(n.Routes), sorted(n.Rules)})
	}))
	t.Run(Processes, comparison(JudgeProcesses, func(p []bench.Process) string { return sorted(p) }))
	t.Run(State, comparison(JudgeState, func(s bench.StateManifest) string {
		return text([]string{sorted(s.Entries), text(append([]string{}, s.Exclude...))})
	}))
	t.Run(Server, comparison(JudgeServer, func(s bench.SHA256) string { return string(s) }))
	t.Run(Canary, comparison(func(want string, r engine.Reading[string]) engine.Judgement { return JudgeCanary("/canary", want, r) },
		func(s string) string { return s }))
}

// comparison draws two values that are equal or differ a little or a lot; form
// is what they are equal by.
func comparison[T any](judge func(T, engine.Reading[T]) engine.Judgement, form func(T) string) func(*testing.T) {
	return func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			a := draw[T](t)
			b := a
			switch rapid.IntRange(0, 2).Draw(t, "difference") {
			case 1:
				all := variants(a)
				b = all[rapid.IntRange(0, len(all)-1).Draw(t, "change")].value
			case 2:
				b = draw[T](t)
			}
			equal := form(a) == form(b)
			switch v := judge(a, known1(b)).Verdict(); {
			case v == engine.Pass && !equal:
				t.Errorf("passes on %s, want %s", form(b), form(a))
			case v == engine.Fail && equal:
				t.Errorf("fails on what is equal: %s", form(a))
			}
		})
	}
}
