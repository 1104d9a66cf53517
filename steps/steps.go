// Package steps holds the kinds of steps, one file for each: its constructor,
// which wires typed promises, and its binding, which does the work on whatever
// arm runs the plan.
//
// Always holds: a step knows no arm; what a step learns goes into its receipt,
// not into memory shared with another step; nothing here decides a number.
package steps

import (
	"time"

	"github.com/drumsbench/drumsbench/engine"
)

// Kinds of steps, as plans and records carry them.
const (
	KindSurvey     = "survey"
	KindMount      = "mount"
	KindProvision  = "provision"
	KindReadiness  = "readiness"
	KindTake       = "take"
	KindPrepare    = "prepare"
	KindDump       = "dump"
	KindCheckpoint = "checkpoint"
	KindRestore    = "restore"
	KindResume     = "resume"
	KindReseed     = "reseed"
	KindGate       = "gate"
	KindAct        = "act"
	KindEvaluate   = "evaluate"
	KindRelease    = "release"
	KindMeasure    = "measure"
	KindInspect    = "inspect"
	// Of runs that hold several slots at once.
	KindBaseline = "baseline"
	KindDensity  = "density"
	KindIsolate  = "isolate"
	// Of experiments that have the page cache dropped.
	KindDropCache = "drop-cache"
	// Of branching tasks.
	KindIdentify = "identify"
	KindWitness  = "witness"
	KindAudit    = "audit"
	// Of slots by hand only.
	KindAdopt     = "adopt"
	KindAdoptSlot = "adopt-slot"
	KindExecute   = "execute"
)

// Deadlines of steps whose time the manifest does not set. They bound a hang,
// they are no targets: a first mount hashes and converts a whole image, and a host
// that is emulated itself, and busy, takes twenty times as long for anything.
const (
	deadlineMount      = 10 * time.Minute
	deadlineProvision  = 3 * time.Minute
	deadlineDump       = 5 * time.Minute
	deadlineCheckpoint = 10 * time.Minute // a copy is hashed
	deadlineRestore    = 5 * time.Minute
	deadlineGate       = 2 * time.Minute
	deadlineAdopt      = 3 * time.Minute
	deadlineRelease    = 3 * time.Minute
	deadlineDropCache  = 5 * time.Minute // every file of an image is opened
	// slack is added to a time that the manifest states, for the exchange around it.
	slack = 5 * time.Second
)

// At says where in the plan a step stands.
type At struct {
	// ID is the step's name.
	ID string
	// Window, Rollout, Slot, Warmup, Control, Branch and Round as in bench.Step.
	Window  string
	Rollout *int64
	Slot    string
	Warmup  bool
	Control string
	Branch  string
	Round   *int64
}

func (a At) spec(kind string, params any, deadline time.Duration) engine.StepSpec {
	return engine.StepSpec{ID: a.ID, Kind: kind, Params: params, Deadline: deadline,
		Window: a.Window, Rollout: a.Rollout, Slot: a.Slot, Warmup: a.Warmup, Control: a.Control, Branch: a.Branch, Round: a.Round}
}

// Bindings are the functions of all kinds, bound when a plan is executed.
func Bindings() engine.Bindings {
	return engine.Bindings{
		KindSurvey: bindSurvey, KindMount: bindMount, KindProvision: bindProvision, KindReadiness: bindReadiness, KindTake: bindTake,
		KindPrepare: bindPrepare, KindDump: bindDump, KindRestore: bindRestore,
		KindResume: bindResume, KindReseed: bindReseed, KindGate: bindGate,
		KindAct: bindAct, KindEvaluate: bindEvaluate, KindRelease: bindRelease,
		KindMeasure: bindMeasure, KindInspect: bindInspect, KindBaseline: bindBaseline, KindDensity: bindDensity, KindIsolate: bindIsolate, KindIdentify: bindIdentify, KindWitness: bindWitness, KindAudit: bindAudit, KindDropCache: bindDropCache, KindCheckpoint: bindCheckpoint, KindAdopt: bindAdopt, KindAdoptSlot: bindAdoptSlot, KindExecute: bindExecute,
	}
}

// duration parses a duration that the schema has checked.
func duration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0 // an expired deadline fails at once; it never lets a step run for ever
	}
	return d
}
