package steps

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/offer"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// The environment of a policy's program on the host, beside PATH. It has no other variable.
const (
	// EnvURL is the base of the slot's guest server, such as http://127.0.0.1:40123, open while the program runs.
	EnvURL = "DRUMS_URL"
	// EnvInstruction is task.instruction as the manifest has it; empty where it has none.
	EnvInstruction = "DRUMS_INSTRUCTION"
	// EnvSeed is experiment.seed plus the rollout's number, decimal.
	EnvSeed = "DRUMS_SEED"
	// EnvDeadline is when the program and all that it started are killed: RFC 3339, UTC, with nanoseconds.
	EnvDeadline = "DRUMS_DEADLINE"
	// EnvTask is task.id.
	EnvTask = "DRUMS_TASK"
)

// Act lets the policy act.
func Act(b *engine.Builder, at At, slot engine.Promise[engine.Slot], p bench.ActParams, after ...engine.Input) engine.Promise[engine.Acted] {
	limit := slack
	for _, c := range p.Commands {
		limit += duration(string(c.Timeout)) + slack
	}
	if p.Policy.Host != nil {
		limit += duration(string(p.Policy.Host.Timeout)) + slack
	}
	in := append([]engine.Input{engine.Use(slot)}, after...)
	return engine.Add[engine.Acted](b, at.spec(KindAct, p, limit), in...)
}

var bindAct = engine.Bind(KindAct, func(ctx context.Context, x *engine.Exec, p bench.ActParams) (engine.Acted, error) {
	slot := engine.In[engine.Slot](x, 0)
	defer tellPages(ctx, x, slot)
	for _, s := range p.Policy.Substitutes {
		x.Fact(substitute(FactPolicySubstitute, s))
	}
	switch {
	case p.Policy.None != nil: // the negative control does nothing
		return engine.Acted{}, nil
	case p.Policy.Host != nil:
		return engine.Acted{}, hostPolicy(ctx, x, slot, p)
	}
	c := dial(slot, p.Port)
	for i, cmd := range p.Commands {
		if err := command(ctx, x, c, fmt.Sprintf("oracle %d", i), cmd); err != nil {
			return engine.Acted{}, err
		}
	}
	return engine.Acted{}, nil
})

// hostPolicy lets a program on the host act: the guest server is offered to it
// from its start until its whole tree has ended. A status other than 0 is a
// failure of the policy, and no score comes of the rollout.
func hostPolicy(ctx context.Context, x *engine.Exec, slot engine.Slot, p bench.ActParams) (err error) {
	const op = "run policy"
	ws := x.Workspace()
	if ws.Host == nil {
		return &engine.Error{Op: op, Err: fmt.Errorf("%w: this run has no means to run a program on the host", engine.ErrRefused)}
	}
	program, err := ws.Host.Load(ctx, engine.HostProgram{Name: slot.Name(), Exec: p.Policy.Host.Exec, Dir: ws.Manifest, SHA256: p.Policy.Host.Sha256})
	if err != nil {
		return err
	}
	forget := x.OnRelease(program.Release)
	fact := func(name string, value any, source string) {
		x.Fact(bench.Fact{Name: "policy." + name, Known: true, Value: fmt.Sprint(value), Source: source, View: engine.ViewHost})
	}
	fact("sha256", p.Policy.Host.Sha256, "the copy that is run")

	server, err := offer.Open(ctx, slot.Dial, int(p.Port))
	if err != nil {
		return err
	}
	// Whatever happens, nothing of the policy's may be open when the next step looks at the slot.
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), slack)
		defer cancel()
		used, cerr := server.Close(end)
		rerr := program.Release(end)
		if rerr == nil {
			forget()
		}
		if cerr == nil {
			fact("connections", used.Connections, "offer of the guest server")
			fact("connections-reset", used.Reset, "offer of the guest server")
			if used.Failed != nil {
				fact("connection-failed", used.Failed, "offer of the guest server")
			}
		}
		err = errors.Join(blameSlot(end, err, slot, p.Port), cerr, rerr)
	}()

	limit := duration(string(p.Policy.Host.Timeout))
	deadline := time.Now().Add(limit)
	timed, cancel := context.WithDeadlineCause(ctx, deadline, fmt.Errorf("%w: its time of %s was up, and what was left of its tree was ended", engine.ErrDeadline, limit))
	defer cancel()
	result, err := program.Run(timed, []string{
		EnvURL + "=" + server.URL(),
		EnvInstruction + "=" + p.Instruction,
		EnvSeed + "=" + strconv.FormatInt(p.Seed, 10),
		EnvDeadline + "=" + deadline.UTC().Format(time.RFC3339Nano),
		EnvTask + "=" + string(p.Task),
	})
	fact("elapsed_ns", result.Elapsed.Nanoseconds(), "engine")
	fact("ended", result.Ended, "cgroup")
	fact("files-left-out", result.FilesLeftOut, "its working directory")
	if result.Truncated {
		fact("output-truncated", true, "engine")
	}
	if kerr := keepResult(x, result); kerr != nil {
		return errors.Join(err, kerr)
	}
	if err != nil {
		return err
	}
	fact("exit", result.Exit, "wait4")
	switch {
	case result.Exit < 0:
		return &engine.Error{Op: op, Err: fmt.Errorf("%q was ended by signal %d: %s", p.Policy.Host.Exec, -result.Exit, tail(result.Stderr))}
	case result.Exit != 0:
		return &engine.Error{Op: op, Err: fmt.Errorf("%q exited with %d, not 0: %s", p.Policy.Host.Exec, result.Exit, tail(result.Stderr))}
	}
	return nil
}

// keepResult keeps what the program printed and the files that it left as evidence.
func keepResult(x *engine.Exec, r engine.HostResult) error {
	keep := []engine.HostFile{{Name: "policy.stdout", Data: r.Stdout}, {Name: "policy.stderr", Data: r.Stderr}}
	for _, f := range r.Files {
		keep = append(keep, engine.HostFile{Name: "policy/" + f.Name, Data: f.Data})
	}
	for _, f := range keep {
		if len(f.Data) == 0 {
			continue
		}
		if err := x.Evidence(f.Name, f.Data); err != nil {
			return err
		}
	}
	return nil
}

// blameSlot says of a policy that failed that its slot had died, where it had:
// that is a failure of the environment and not of the policy.
func blameSlot(ctx context.Context, err error, slot engine.Slot, port int64) error {
	if err == nil || errors.Is(err, engine.ErrRefused) {
		return err
	}
	if m, ok := slot.(engine.Mortal); ok {
		if dead := m.Alive(); errors.Is(dead, engine.ErrDead) {
			return fmt.Errorf("%w; %w", dead, err)
		}
	}
	if _, dead := dial(slot, port).Probe(ctx); errors.Is(dead, engine.ErrDead) {
		return fmt.Errorf("%w; %w", dead, err)
	}
	return err
}
