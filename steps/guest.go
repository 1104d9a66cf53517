package steps

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// canaryLimit bounds what is read of a canary file; ours is 64 bytes.
const canaryLimit = 4096

func dial(slot engine.Slot, port int64) *guest.Client {
	return guest.New(slot.Dial, int(port), guest.DefaultLimits())
}

// command runs one command in the guest and requires the exit status that it names. Its output is evidence.
func command(ctx context.Context, x *engine.Exec, c *guest.Client, name string, cmd bench.Command) error {
	_, err := runCommand(ctx, x, c, name, cmd)
	return err
}

// runCommand is command, and what it printed.
func runCommand(ctx context.Context, x *engine.Exec, c *guest.Client, name string, cmd bench.Command) (guest.Result, error) {
	r, err := c.Execute(ctx, cmd.Exec, duration(string(cmd.Timeout)))
	if err != nil {
		return r, fmt.Errorf("%s: %w", name, err)
	}
	if err := keepOutput(x, name, r); err != nil {
		return r, err
	}
	switch {
	case r.TimedOut:
		return r, &engine.Error{Op: name, Err: fmt.Errorf("%w after %s: %s", engine.ErrDeadline, cmd.Timeout, words(cmd.Exec))}
	case r.Signalled:
		return r, &engine.Error{Op: name, Err: fmt.Errorf("%s was ended by a signal: %s", words(cmd.Exec), tail(r.Stderr))}
	case int64(r.Exit) != cmd.Exit:
		return r, &engine.Error{Op: name, Err: fmt.Errorf("%s exited with %d, not %d: %s", words(cmd.Exec), r.Exit, cmd.Exit, tail(r.Stderr))}
	}
	return r, nil
}

func keepOutput(x *engine.Exec, name string, r guest.Result) error {
	if len(r.Stdout) > 0 {
		if err := x.Evidence(name+".stdout", r.Stdout); err != nil {
			return err
		}
	}
	if len(r.Stderr) > 0 {
		return x.Evidence(name+".stderr", r.Stderr)
	}
	return nil
}

// words is a command fit for one line: an argument may be a whole program.
func words(argv []string) string {
	const most = 100
	short := make([]string, len(argv))
	for i, word := range argv {
		if short[i] = word; len(word) > most {
			short[i] = word[:most] + "…"
		}
	}
	return fmt.Sprintf("%q", short)
}

// tail is the end of a program's output, fit for one line.
func tail(b []byte) string {
	const most = 300
	if len(b) > most {
		b = b[len(b)-most:]
	}
	return fmt.Sprintf("%q", b)
}

// plant writes a fresh canary and reads it back. Its digest is a fact: no two are
// the same, and nobody can put one back who has only read the record.
func plant(ctx context.Context, x *engine.Exec, c *guest.Client, file string) (string, error) {
	var r [32]byte
	if _, err := rand.Read(r[:]); err != nil {
		return "", err
	}
	value := hex.EncodeToString(r[:])
	if err := c.WriteFile(ctx, file, []byte(value), 0o600); err != nil {
		return "", &engine.Error{Op: "plant canary " + file, Err: err}
	}
	back, err := c.ReadFile(ctx, file, canaryLimit)
	if err != nil {
		return "", &engine.Error{Op: "read back canary " + file, Err: err}
	}
	if string(back) != value {
		return "", &engine.Error{Op: "read back canary " + file, Err: errors.New("holds something else than what was written")}
	}
	x.Fact(bench.Fact{Name: "canary.sha256", Known: true, Value: string(canonical.Sum([]byte(value))), Source: file, View: engine.ViewGuest})
	return value, nil
}

// Readiness polls the guest until the manifest's rule holds.
func Readiness(b *engine.Builder, at At, slot engine.Promise[engine.Slot], p bench.ReadinessParams, after ...engine.Input) engine.Promise[engine.Ready] {
	in := append([]engine.Input{engine.Read(slot)}, after...)
	return engine.Add[engine.Ready](b, at.spec(KindReadiness, p, duration(string(p.Readiness.Deadline))+slack), in...)
}

// Take hands a slot over that a pool kept ready: the readiness rule is judged anew.
func Take(b *engine.Builder, at At, slot engine.Promise[engine.Slot], p bench.ReadinessParams, after ...engine.Input) engine.Promise[engine.Ready] {
	in := append([]engine.Input{engine.Read(slot)}, after...)
	return engine.Add[engine.Ready](b, at.spec(KindTake, p, duration(string(p.Readiness.Deadline))+slack), in...)
}

var (
	bindReadiness = engine.Bind(KindReadiness, becomeReady)
	bindTake      = engine.Bind(KindTake, becomeReady)
)

func becomeReady(ctx context.Context, x *engine.Exec, p bench.ReadinessParams) (engine.Ready, error) {
	limit := duration(string(p.Readiness.Deadline))
	deadline := time.Now().Add(limit)
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	slot := engine.In[engine.Slot](x, 0)
	c := dial(slot, p.Port)
	tick := time.NewTicker(max(duration(string(p.Readiness.Period)), time.Millisecond))
	defer tick.Stop()
	look := watchScreen(p)
	polls, answered, last := 0, false, error(nil)
	probed := false // every probe held, after the last picture
	for {
		polls++
		probe, err := c.Probe(ctx)
		if err == nil {
			if !answered {
				answered = true
				x.Fact(bench.Fact{Name: "first_answer_ns", Known: true, Value: fmt.Sprint(x.SinceStart(time.Now()).Nanoseconds()), Source: "guest server", View: engine.ViewGuest})
			}
			if err = serving(probe, p.Services); errors.Is(err, engine.ErrDead) {
				return engine.Ready{}, err
			}
		}
		// The screen's rule takes pictures of two moments. What a probe asks, with a program of its own, is asked in
		// between, or once it holds.
		if err == nil {
			seen := look.at(ctx, x, c, probe)
			between := probed
			probed = false
			switch {
			case seen == nil && between:
			case seen == nil || look.half:
				if err = probeAll(ctx, c, p.Readiness.Probes); err == nil {
					probed, err = true, seen
				}
			default:
				err = seen
			}
		}
		if err == nil {
			x.Fact(look.facts...)
			x.Fact(bench.Fact{Name: "readiness-polls", Known: true, Value: fmt.Sprint(polls), Source: "engine"})
			if f, ok := slot.(engine.Filling); ok {
				if err := f.BecameReady(ctx); err != nil {
					return engine.Ready{}, err
				}
			}
			if err := look.keep(x, "screen.png"); err != nil {
				return engine.Ready{}, err
			}
			return engine.Ready{}, look.roundTrip(ctx, x, c, p.Moving)
		}
		if ctx.Err() == nil && time.Now().Before(deadline) {
			last = err // not the deadline's own echo, which can be there before ctx knows
		}
		if m, ok := slot.(engine.Mortal); ok {
			if err := m.Alive(); err != nil {
				return engine.Ready{}, err
			}
		}
		select {
		case <-ctx.Done():
			if err := look.keep(x, "screen-refused.png"); err != nil {
				last = errors.Join(last, err)
			}
			return engine.Ready{}, &engine.Error{Op: "wait for readiness",
				Err:  fmt.Errorf("%w: %d polls in %s; last: %v", engine.ErrDeadline, polls, limit, last),
				Hint: "raise readiness.deadline, or look at the services' logs in the guest below /run/guestd"}
		case <-tick.C:
		}
	}
}

// serving requires that each service of the manifest was started and lives.
func serving(p guest.Probe, services []string) error {
	if p.Phase == guest.PhaseFailed {
		return &engine.Error{Op: "watch services", Err: fmt.Errorf("%w: %s", engine.ErrDead, p.Reason), Hint: "look at the service's log in the guest below " + guest.LogDir}
	}
	seen := map[string]bool{}
	for _, s := range p.Services {
		seen[s.Name] = s.Alive && s.Ready
	}
	for _, name := range services {
		if !seen[name] {
			return fmt.Errorf("service %s is not up yet", name)
		}
	}
	return nil
}

func probeAll(ctx context.Context, c *guest.Client, probes []bench.Command) error {
	for _, p := range probes {
		if err := probeCommand(ctx, c, p); err != nil {
			return err
		}
	}
	return nil
}

func probeCommand(ctx context.Context, c *guest.Client, cmd bench.Command) error {
	r, err := c.Execute(ctx, cmd.Exec, duration(string(cmd.Timeout)))
	switch {
	case err != nil:
		return err
	case r.TimedOut, r.Signalled, int64(r.Exit) != cmd.Exit:
		return fmt.Errorf("probe %s: exit %d: %s", words(cmd.Exec), r.Exit, tail(r.Stderr))
	}
	return nil
}

// Prepare runs the task's set-up and plants the canary.
func Prepare(b *engine.Builder, at At, slot engine.Promise[engine.Slot], p bench.PrepareParams, after ...engine.Input) engine.Promise[engine.Canary] {
	limit := slack
	for _, c := range p.Setup {
		limit += duration(string(c.Timeout)) + slack
	}
	in := append([]engine.Input{engine.Use(slot)}, after...)
	return engine.Add[engine.Canary](b, at.spec(KindPrepare, p, limit), in...)
}

var bindPrepare = engine.Bind(KindPrepare, func(ctx context.Context, x *engine.Exec, p bench.PrepareParams) (engine.Canary, error) {
	c := dial(engine.In[engine.Slot](x, 0), p.Port)
	for i, cmd := range p.Setup {
		if err := command(ctx, x, c, fmt.Sprintf("setup %d", i), cmd); err != nil {
			return "", err
		}
	}
	value, err := plant(ctx, x, c, string(p.Canary.File))
	return engine.Canary(value), err
})

// Reseed makes a restored slot its own: the checkpoint's canary must be there
// and is replaced by one that only this rollout knows. A canary of another
// rollout is contamination.
func Reseed(b *engine.Builder, at At, slot engine.Promise[engine.Slot], cp engine.Promise[engine.Checkpoint], p bench.ReseedParams, after ...engine.Input) engine.Promise[engine.Canary] {
	in := append([]engine.Input{engine.Use(slot), engine.Read(cp)}, after...)
	limit := deadlineGate
	for _, o := range p.Own {
		limit += duration(string(o.Reseed.Timeout)) + slack
	}
	return engine.Add[engine.Canary](b, at.spec(KindReseed, p, limit), in...)
}

var bindReseed = engine.Bind(KindReseed, func(ctx context.Context, x *engine.Exec, p bench.ReseedParams) (engine.Canary, error) {
	c := dial(engine.In[engine.Slot](x, 0), p.Port)
	want := engine.In[engine.Checkpoint](x, 1).Handle.Reference.Canary
	j := judgeCanary(ctx, c, string(p.Canary.File), want)
	x.Judge(j)
	if j.Verdict() != engine.Pass {
		return "", nil
	}
	if p.Identity {
		if err := newIdentity(ctx, engine.In[engine.Slot](x, 0), c); err != nil {
			return "", err
		}
	}
	if err := makeOwn(ctx, x, c, p.Own); err != nil {
		return "", err
	}
	value, err := plant(ctx, x, c, string(p.Canary.File))
	return engine.Canary(value), err
})
