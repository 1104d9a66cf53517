// Package sweep takes away what a run left on the host when nobody is there any
// more to release it: the engine was killed, the host crashed, a release failed.
// It knows the run's ledger and nothing else.
//
// Always holds: a thing is taken away only if it is the one that the ledger
// means: a process by pid and start time, everything else by device and inode;
// where the engine died before it wrote an identity, by the run's random claim
// in the thing's own name. Names alone, inodes alone and pids alone decide
// nothing. What does not bear the run's claim is left alone even if the ledger
// names it. A thing is written down as gone only after its absence was read
// back. What cannot be learnt is unknown, never gone.
package sweep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
)

// Options of one sweep.
type Options struct {
	// RunDir is the run's directory.
	RunDir string
	// State is the state directory that the run's scratch directory has to lie in.
	State string
	// Held is the run's ledger where the caller holds the run and goes on with it; nil
	// where the sweep is to hold it.
	Held *record.FileLedger
	// Spare is what is left alone: an engine that goes on with the run goes on in it.
	Spare engine.Inheritance
	// DryRun changes nothing on the host, nor in the ledger.
	DryRun bool
	// Hook is called at each point of the sweep; nil for nothing. Tests stop a sweep there.
	Hook func(Point)
}

// Point is a moment of a sweep.
type Point struct {
	// Stage is "ended": every process was ended; "taken": a thing is gone and the
	// ledger does not say so yet; "recorded": the ledger says so.
	Stage string
	// Index of the thing in the order in which they are taken away, from 0.
	Index int
}

// The stages of a sweep.
const (
	StageEnded    = "ended"
	StageTaken    = "taken"
	StageRecorded = "recorded"
)

// Outcome says what became of a thing.
type Outcome string

// The outcomes. After the first three the thing is gone.
const (
	// Taken: it was there and is not any more.
	Taken Outcome = "taken"
	// Absent: it was not there.
	Absent Outcome = "absent"
	// Foreign: it is not there; something else has its name or its number and was left alone.
	Foreign Outcome = "foreign"
	// Planned: it is there; a sweep that is no dry run would take it away.
	Planned Outcome = "would-take"
	// Failed: it is there and could not be taken away.
	Failed Outcome = "failed"
	// Unknown: whether it is there could not be learnt, or how to take it away is not known.
	Unknown Outcome = "unknown"
)

// Thing is something that the ledger says is the run's.
type Thing struct {
	// ID is its number in the ledger; -1 for a temporary file in the run's own directory, which no ledger names.
	ID   int64  `json:"id"`
	Kind string `json:"kind"`
	// What names it for people: its path, its group and pid.
	What    string  `json:"what"`
	Outcome Outcome `json:"outcome"`
	// Reason is empty where the outcome says everything.
	Reason string `json:"reason,omitempty"`
	Hint   string `json:"hint,omitempty"`
}

// Report is what a sweep of one run did.
type Report struct {
	RunDir string `json:"run"`
	// Claim is the run's random claim; empty if the run ended before it owned anything.
	Claim string `json:"claim,omitempty"`
	// Torn is the number of the ledger's last line if it was cut off while it was written, else 0.
	Torn int `json:"torn,omitempty"`
	// Things in the order in which they were taken away: the last that was made comes first.
	Things []Thing `json:"things"`
}

// Worst is the outcome that decides: Failed, then Unknown, else Taken.
func (r Report) Worst() Outcome {
	worst := Taken
	for _, t := range r.Things {
		switch {
		case t.Outcome == Failed:
			return Failed
		case t.Outcome == Unknown:
			worst = Unknown
		}
	}
	return worst
}

// patience is how long one thing may take to go: dead processes let go of their
// namespaces, and those of mounts and devices, a while after they died.
var patience = 15 * time.Second

// lockPatience is how long the run's lock is waited for: a process that was
// killed may hold it for a moment longer.
const lockPatience = 500 * time.Millisecond

// Sweep takes away what the run's ledger says is there and is the run's, the
// last thing first, and writes into the ledger what is gone. Idempotent: a
// second sweep finds nothing.
//
// The error says that nothing was done: record.ErrRunning if an engine or
// another sweep holds the run, ErrUsage if RunDir is no run, ErrRefused if its
// ledger is not one that this program writes, or of another state directory.
// What could not be taken away is no error but an outcome in the report.
func Sweep(ctx context.Context, o Options) (Report, error) {
	r := Report{RunDir: o.RunDir, Things: []Thing{}}
	ledger := filepath.Join(o.RunDir, record.LedgerFile)
	if err := isRun(o.RunDir); err != nil {
		return r, err
	}
	s := &sweeper{Options: o, ledger: o.Held}
	if o.Held == nil {
		release, err := hold(ctx, o)
		if err != nil {
			return r, err
		}
		defer release()
	}
	// An engine that died before it had a ledger owned nothing.
	if _, err := os.Lstat(ledger); err == nil {
		if s.open, r.Torn, err = record.ReadLedger(ledger); err != nil {
			return r, err
		}
		if s.claim, err = readClaim(ledger); err != nil {
			return r, err
		}
		r.Claim = s.claim.id
	}
	if len(s.open) > 0 {
		if err := errors.Join(s.claim.in(o.State), s.claim.of(ledger)); err != nil {
			return r, err
		}
		var err error
		if s.boot, err = record.BootID(); err != nil {
			return r, err
		}
		if !o.DryRun && o.Held == nil {
			if s.ledger, err = record.OpenLedger(ledger); err != nil {
				return r, err
			}
			defer s.ledger.Close()
		}
		if err := s.things(ctx, &r); err != nil {
			return r, err
		}
	}
	if err := s.temporary(&r); err != nil {
		return r, err
	}
	if s.ledger != nil && o.Held == nil {
		return r, s.ledger.Close()
	}
	return r, nil
}

// Claim is the random claim of a run whose scratch directory lies in a state directory:
// 12 hex digits; empty if it ended before it owned anything. ErrRefused if the ledger is
// of another state directory, or none that this program writes.
func Claim(runDir, state string) (string, error) {
	ledger := filepath.Join(runDir, record.LedgerFile)
	c, err := readClaim(ledger)
	if err != nil || c.id == "" {
		return "", err
	}
	return c.id, errors.Join(c.in(state), c.of(ledger))
}

// isRun requires that a directory is a run's.
func isRun(dir string) error {
	if record.IsRun(dir) {
		return nil
	}
	return &engine.Error{Op: "sweep " + dir, Err: fmt.Errorf("%w: it is no run", engine.ErrUsage), Hint: "name a run directory, or a folder of them"}
}

// hold keeps engines and other sweeps out. A dry run writes nothing, not even a lock.
func hold(ctx context.Context, o Options) (func() error, error) {
	take := record.Hold
	if o.DryRun {
		take = record.HoldToRead
	}
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for {
		release, err := take(o.RunDir)
		if !errors.Is(err, record.ErrRunning) {
			return release, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// sweeper is one sweep.
type sweeper struct {
	Options
	open  []record.Owned
	claim claim
	boot  string
	// ledger is nil in a dry run.
	ledger *record.FileLedger
	// ended says what became of each group's processes, by ledger number.
	ended map[int64]ending
	// killed are the pids that were in the run's groups.
	killed map[int]bool
	// stuck says which groups that are spared hold others, who did not end.
	stuck error
}

// things ends the processes, then takes the things away, the last first.
func (s *sweeper) things(ctx context.Context, r *Report) error {
	for _, owned := range s.open {
		if !s.Spare.Things[owned.ID] {
			continue
		}
		if why := s.spares(owned); why != "" {
			return &engine.Error{Op: "sweep " + s.RunDir, Err: fmt.Errorf("%w: %s", engine.ErrRefused, why), Hint: "this program writes no such line: look at the ledger"}
		}
	}
	s.endProcesses(ctx)
	s.hook(StageEnded, 0)
	if s.stuck != nil {
		return s.stuck
	}
	for i, owned := range slices.Backward(s.open) {
		if s.Spare.Things[owned.ID] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return &engine.Error{Op: "sweep " + s.RunDir, Err: context.Cause(ctx), Hint: "sweep again: it goes on where it stopped"}
		}
		i = len(s.open) - 1 - i
		t := s.thing(ctx, owned)
		t.ID, t.Kind = owned.ID, owned.Kind
		r.Things = append(r.Things, t)
		s.hook(StageTaken, i)
		switch t.Outcome {
		case Taken, Absent, Foreign:
			if s.ledger == nil {
				continue
			}
			if err := s.ledger.Gone(owned.ID); err != nil {
				return err
			}
		}
		s.hook(StageRecorded, i)
	}
	return nil
}

// spares says why a thing that is to be left alone is none of the run's; empty if it is.
func (s *sweeper) spares(o record.Owned) string {
	if why := s.claim.refuses(o); why != "" {
		return why
	}
	if o.Kind == "process" && o.Identity != nil {
		if err := s.claim.holds(int(o.Identity.Pid)); err != nil {
			return err.Error()
		}
	}
	return ""
}

func (s *sweeper) hook(stage string, index int) {
	if s.Hook != nil {
		s.Hook(Point{Stage: stage, Index: index})
	}
}

// thing takes one thing away.
func (s *sweeper) thing(ctx context.Context, o record.Owned) Thing {
	lasting := o.Kind == "file" || o.Kind == "directory"
	if o.Boot != s.boot && !lasting {
		return Thing{What: name(o), Outcome: Absent, Reason: "the host was started anew since"}
	}
	if why := s.claim.refuses(o); why != "" {
		return Thing{What: name(o), Outcome: Unknown, Reason: why, Hint: "this program writes no such line: look at the ledger"}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var t Thing
	switch o.Kind {
	case "process":
		t = s.process(o)
	case "cgroup":
		t = s.cgroup(ctx, o)
	case "scope":
		t = s.scope(ctx, o)
	case "mount", "namespace":
		t = s.mount(ctx, o)
	case "loop":
		t = s.loop(ctx, o)
	case "export":
		t = s.export(ctx, o)
	case "file", "directory":
		t = s.path(ctx, o)
	case "link":
		t = s.link(o)
	default:
		t = Thing{Outcome: Unknown, Reason: "this program does not know such a thing", Hint: "sweep with the program that made the run"}
	}
	t.What = name(o)
	return t
}

// name is a thing for people.
func name(o record.Owned) string {
	switch {
	case o.Kind == "process" && o.Identity != nil:
		return fmt.Sprintf("%d (%s)", o.Identity.Pid, o.Claim.Note)
	case o.Kind == "process":
		return o.Claim.Note
	case o.Kind == "loop" && o.Identity != nil:
		return o.Identity.Loop + " of " + o.Claim.Backing
	case o.Kind == "loop":
		return "device of " + o.Claim.Backing
	}
	return o.Claim.Path
}

func failed(err error, hint string) Thing {
	if errors.Is(err, engine.ErrUnknown) {
		return Thing{Outcome: Unknown, Reason: err.Error(), Hint: hint}
	}
	return Thing{Outcome: Failed, Reason: err.Error(), Hint: hint}
}

// poll calls done until it says true, an error comes or ctx ends. The period
// grows from a fifth of a millisecond to twenty.
func poll(ctx context.Context, done func() (bool, error)) error {
	for wait := 200 * time.Microsecond; ; wait = min(2*wait, 20*time.Millisecond) {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", engine.ErrDeadline, context.Cause(ctx))
		case <-time.After(wait):
		}
	}
}
